"""Under which committed names the stores and edges of a program go on whose own names are made up (PROTOCOL 26).

A made-up name has a running number, which changes with every operator before it; so it says nothing of which store it
is. Such a store is found again by its lineage, in commits older than lineages by its kind, place and key, and only
where that leaves no doubt. One that is found takes its committed name, and one that is not a name that nothing has.
What becomes of the rows is then decided by names, as for every other store, in ``changes``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import TypeVar

from weir.pipelines.topology.lineage import SUBSCRIPTIONS, is_made_up, operator_of, standing_results_of, unused_name
from weir.pipelines.topology.topology import Topology
from weir.state.commit.record import CommitRecord, CommittedTopology, Lineage, StoreIdentity
from weir.state.types import CHANGELOG_FOLDER

T = TypeVar("T")


def names_over(topology: Topology, committed: CommitRecord | None) -> dict[str, str]:
    """The names that differ from the program's, by those, over a commit of this or another program."""
    program = topology.program
    if committed is None or committed.topology is None:
        return {}
    is_same = committed.fingerprint == program.fingerprint
    found = _stores_found(program, committed.topology, is_same) | _edges_found(program, committed, is_same)
    return {name: stored for name, stored in found.items() if name != stored}


def stored_table(table: str, names: Mapping[str, str]) -> str:
    """What a commit calls a table of the program, given ``names_over`` it: a changelog has the name of its store."""
    folder, _, store = table.rpartition("/")
    return f"{folder}/{names[store]}" if folder == CHANGELOG_FOLDER and store in names else table


def lacks_lineages(now: CommittedTopology, before: CommittedTopology | None) -> bool:
    """Whether ``before``, a commit's, is older than the lineages that ``now`` has: then another program cannot tell
    stores that are alike apart."""
    made_up = any(each.lineage is not None for each in (now.identities or {}).values())
    return (made_up or bool(now.edges)) and before is not None and before.edges is None


def _stores_found(program: Topology, form: CommittedTopology, is_same: bool) -> dict[str, str]:
    made_up = {name for node in program.nodes for name in node.made_up_names}
    now = {
        store.name: (sub_topology.stored_name, sub_topology.identities[store.name])
        for sub_topology in program.sub_topologies
        for store in sub_topology.stores
    }
    given = now.keys() - made_up
    identities = form.identities or {}
    before = {
        store: (home, identities.get(store))
        for home, stores in form.stores.items()
        for store in stores
        if is_made_up(store) and store not in given
    }
    aside = {store: kept.identity for store, kept in form.aside.items() if store not in given}
    wanted = {name: identity for name, (_, identity) in now.items() if name in made_up}
    found = _alike(_lineages(wanted), _lineages({store: identity for store, (_, identity) in before.items()}))
    without = {store: each for store, each in before.items() if each[1] is None or each[1].lineage is None}
    if is_same:
        found |= {name: name for name in wanted if name in without}
    else:
        found |= _alike_in_old_rows({name: now[name] for name in wanted if name not in found}, without)
    found |= _alike(_lineages({name: each for name, each in wanted.items() if name not in found}), _lineages(aside))
    return _with_others(
        wanted, found, {*given, *form.aside, *(store for each in form.stores.values() for store in each)}
    )


def _lineages(identities: Mapping[str, StoreIdentity | None]) -> dict[str, Lineage]:
    return {name: each.lineage for name, each in identities.items() if each is not None and each.lineage is not None}


def _alike(now: Mapping[str, Lineage], before: Mapping[str, Lineage]) -> dict[str, str]:
    """Whose lineages are the same. Several that are wholly the same are taken in order, if there are as many.

    Of the others those whose outputs, or whose steps, only one has on each side; not if the outputs say one store and
    the steps another.
    """
    found: dict[str, str] = {}
    stores = _grouped(before, before.__getitem__)
    for lineage, names in _grouped(now, now.__getitem__).items():
        if len(names) == len(stores.get(lineage, ())):
            found |= dict(zip(names, stores[lineage], strict=True))
    rest = {name: each for name, each in now.items() if name not in found}
    left = {store: each for store, each in before.items() if store not in found.values()}
    by_outputs = _only_ones(rest, left, lambda each: (each.operator, each.origin, each.outputs))
    by_steps = _only_ones(rest, left, lambda each: (each.operator, each.origin, each.steps))
    pairs = {*by_outputs.items(), *by_steps.items()}
    return found | {
        name: store
        for name, store in pairs
        if not any((name == other) != (store == other_store) for other, other_store in pairs)
    }


def _only_ones(
    now: Mapping[str, Lineage], before: Mapping[str, Lineage], key: Callable[[Lineage], Hashable]
) -> dict[str, str]:
    names, stores = (_grouped(those, lambda name, those=those: key(those[name])) for those in (now, before))  # type: ignore[misc]
    return {
        names[shared][0]: stores[shared][0]
        for shared in names.keys() & stores.keys()
        if len(names[shared]) == len(stores[shared]) == 1
    }


def _alike_in_old_rows(
    now: Mapping[str, tuple[str, StoreIdentity]], before: Mapping[str, tuple[str, StoreIdentity | None]]
) -> dict[str, str]:
    """Which are the only ones of their kind, with their key, in their sub-topology: by their value columns too, if they
    are not without those."""

    def place(name: str, home: str, identity: StoreIdentity | None) -> Hashable:
        key = None if identity is None else (tuple(identity.key.items()), identity.kind, identity.grouping)
        return operator_of(name), re.sub("[0-9]{10}", "", home), key

    def columns(name: str, home: str, identity: StoreIdentity | None) -> Hashable:
        return place(name, home, identity), None if identity is None else tuple(identity.value.items())

    found: dict[str, str] = {}
    for key in (place, columns):
        names = _grouped(now, lambda name, key=key: key(name, *now[name]))  # type: ignore[misc]
        stores = _grouped(before, lambda store, key=key: key(store, *before[store]))  # type: ignore[misc]
        for shared in names.keys() & stores.keys():
            if len(names[shared]) == len(stores[shared]) == 1:
                found.setdefault(names[shared][0], stores[shared][0])
    for name, store in [*found.items()]:
        if operator_of(name) == operator_of(store) == SUBSCRIPTIONS:  # one join has both stores
            both = standing_results_of(name), standing_results_of(store)
            if both[0] in now and both[1] in before:
                found[both[0]] = both[1]
    return found


def _edges_found(program: Topology, committed: CommitRecord, is_same: bool) -> dict[str, str]:
    form = committed.topology
    assert form is not None
    wanted = program.made_up_edges
    under_way = {blob.edge for blob in committed.pending_blobs}
    given = {edge.name for edge in program.edges if edge.name not in wanted}
    if form.edges is not None:
        found = _alike(wanted, {edge: each for edge, each in form.edges.items() if edge not in given})
        return _with_others(wanted, found, {*given, *form.edges, *under_way})
    found = {
        edge: edge
        for edge in wanted
        if is_same or edge not in under_way or (_is_only_one(edge, wanted) and _is_only_one(edge, under_way))
    }
    return _with_others(wanted, found, {*given, *under_way})


def _is_only_one(edge: str, edges: Iterable[str]) -> bool:
    return [operator_of(each) for each in edges].count(operator_of(edge)) == 1


def _with_others(wanted: Iterable[str], found: Mapping[str, str], taken: Collection[str]) -> dict[str, str]:
    """``found``, and for the others of ``wanted`` names that are not ``taken``."""
    names, used = dict(found), {*taken, *found.values()}
    for name in wanted:
        if name not in names:
            names[name] = unused_name(name, used)
            used.add(names[name])
    return names


def _grouped(names: Iterable[T], key: Callable[[T], Hashable]) -> dict[Hashable, list[T]]:
    groups: dict[Hashable, list[T]] = {}
    for name in names:
        groups.setdefault(key(name), []).append(name)
    return groups
