"""What becomes of committed state under a changed program: each store, output, topic and task.

A store is found again by its name and its identity (``weir.state.commit.record.StoreIdentity``), in whichever
sub-topology it is now. How a start brings the tasks there is decided in ``weir.pipelines.spark.beginnings``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import polars as pl

from weir.pipelines.topology.clocks import clocks_of
from weir.pipelines.topology.lineage import (
    FINAL_RESULTS,
    STANDING_RESULTS,
    SUPPRESSION,
    is_made_up,
    operator_of,
    subscriptions_of,
)
from weir.pipelines.topology.nodes import RETENTION, SUPPRESSION_SETTING, AggregateNode, SuppressNode
from weir.pipelines.topology.sub_topology import IN_SLICES, PRODUCERS, WEIR, SubTopology
from weir.pipelines.topology.topology import Topology
from weir.state.commit.columns import Difference, differences
from weir.state.commit.record import CommitRecord, CommittedTopology, StoreAside, StoreIdentity
from weir.state.commit.type_names import dtype_of, type_name
from weir.state.types import BlobRef, StoreSpec

_FINGERPRINT = re.compile(r"-[0-9a-f]{8}$")
"""The end of a sub-topology's stored name in rows written before names were free of it."""


_UNREAD = "for which it needs a changelog: run the program as it was with logging=True first"
_UNCHECKED = "and it has no changelog to check them against: run the program as it was with logging=True first"
_RESTORED_WITH_OTHERS = f"its task is restored because of what has changed in it, {_UNREAD}"


class Fate(StrEnum):
    """What becomes of a store."""

    GOES_ON = "continues"
    EVOLVES = "evolves"
    """It keeps its rows, which get other columns, or begin or cease to expire: its tasks restore it from its
    changelog."""
    COMES_BACK = "comes back"
    """It was kept aside, and its tasks restore it as it was then."""
    BEGINS_EMPTY = "begins empty"
    IS_REBUILT = "is rebuilt"
    """It begins empty although it has rows: they mean something else, or belong to other tasks."""
    IS_KEPT_ASIDE = "is kept aside"
    """The program does not have it."""
    IS_DROPPED = "is dropped"
    """The program does not have it, and it has no changelog that could keep its rows."""


@dataclass(frozen=True, kw_only=True)
class StoreChange:
    """What becomes of one store."""

    store: str
    """Its committed name."""
    fate: Fate
    notes: tuple[str, ...] = ()
    """How it evolves, why it is rebuilt, since when it has been aside, or what its suppression still held."""
    shown: str = ""
    """Its made-up name in the program, if that is another; else ""."""


@dataclass(frozen=True, kw_only=True)
class SettingChange:
    """A changed setting of a store that is kept; "" where it was not set, or no longer is."""

    store: str
    setting: str
    before: str
    now: str


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the tasks of a sub-topology come from, by the stored names of committed sub-topologies."""

    goes_on: str | None
    """Its tasks go on with the local stores of this one's tasks."""
    parts: tuple[str, ...]
    """All that it has stores or topics of."""


@dataclass(frozen=True, kw_only=True)
class TopologyChange:
    """How a program differs from a commit."""

    stores: tuple[StoreChange, ...]
    """The program's stores in order, then those kept aside."""
    settings: tuple[SettingChange, ...]
    """Settings of stores that are kept. They apply to what is read from now on; existing rows stay as they are."""
    outputs_added: tuple[str, ...]
    outputs_removed: tuple[str, ...]
    topics_kept: tuple[str, ...]
    topics_added: tuple[str, ...]
    topics_removed: tuple[str, ...]
    """Topics that the commit's program read and this one does not."""
    origins: Mapping[int, Origin]
    """By sub-topology."""
    aside: Mapping[str, StoreAside]
    """Stores that the next commit lists as kept aside."""
    confusions: tuple[str, ...]
    """Stores and columns that look renamed, each worded as the end of a sentence."""
    pending_blobs: int
    """Files of rows on their way to tasks that cannot take them any more."""
    is_other_topology: bool
    restored: tuple[str, ...]
    """Stores that no local store holds as the program needs them."""
    is_unrelated: bool
    """Whether the programs share no store, output or topic: probably two applications with one id."""
    newly_divided: tuple[str, ...]
    """Stores whose keys a topic's producers divided among several tasks, and a repartition does now."""
    no_longer_divided: tuple[str, ...]
    """Stores whose keys a repartition divided among several tasks, and a topic's producers do now. They stay in this
    list: producers with another partitioner would send a key to a task that does not have its row."""

    @property
    def loses_state(self) -> bool:
        return self.is_unrelated or bool(self.confusions) or any(each.fate is Fate.IS_REBUILT for each in self.stores)

    @property
    def is_blocked(self) -> bool:
        """Whether rows on their way between sub-topologies would be lost, which no flag allows (PROTOCOL 26)."""
        return self.pending_blobs > 0

    def of(self, *fates: Fate) -> tuple[str, ...]:
        """The stores with one of these fates."""
        return tuple(each.store for each in self.stores if each.fate in fates)

    def loss(self) -> str:
        """What is lost, worded as the end of a sentence."""
        rebuilt = [
            f"the store {each.store!r} would begin empty, without what was read so far, because {each.notes[0]}"
            for each in self.stores
            if each.fate is Fate.IS_REBUILT
        ]
        return " and ".join([*rebuilt, *self.confusions])


def compare(
    committed: CommitRecord,
    topology: Topology,
    counts: Mapping[int, int],
    *,
    identities: Mapping[str, StoreIdentity] | None = None,
    leftovers: Collection[str] = (),
    is_readable: Callable[[BlobRef], bool] = lambda blob: True,
    partitions: Mapping[str, int] | None = None,
) -> TopologyChange:
    """Compare a program, with its number of tasks by sub-topology, with a commit.

    ``identities`` are those of committed stores, for commits that do not have them; a store without any is taken to be
    unchanged. ``leftovers`` are stores that the commit does not have, with rows in a changelog. ``is_readable`` tells
    whether the rows in a blob have the columns of its edge. ``partitions`` of topics are those that they have now;
    others are taken to have as many as before.
    """
    past = _Past(committed, topology, identities or {})
    changes = {
        store.name: replace(
            _change_of(store.name, sub_topology, counts[sub_topology.index], past, partitions or {}),
            shown="" if (shown := topology.shown(store.name)) == store.name else shown,
        )
        for sub_topology in topology.sub_topologies
        for store in sub_topology.stores
    }
    changes |= dict(_separated(topology, committed.topology, changes))
    changes |= {
        name: replace(changes[name], fate=Fate.IS_REBUILT, notes=(_RESTORED_WITH_OTHERS,))
        for name in _left_behind(topology, counts, past, changes, leftovers)
    }
    aside = {
        name: StoreAside(
            since_epoch=committed.epoch,
            tasks=past.tasks_of[home],
            identity=past.identities.get(name),
            clocks={
                partition_of_task(task): found
                for task, commit in committed.tasks.items()
                if sub_topology_of(task) == home and (found := clocks_of([name], commit.clocks))
            },
        )
        for name, home in past.homes.items()
        if name not in changes and name not in past.unlogged
    } | {name: kept for name, kept in past.aside.items() if name not in changes}
    restored = _restored(past, changes, leftovers)
    specs = {store.name: store for each in topology.sub_topologies for store in each.stores}
    origins = _origins(topology, counts, past, changes, restored)
    outputs_now = topology.committed_form.outputs
    outputs_before = committed.topology.outputs if committed.topology else outputs_now
    topics_before = sorted(past.topics)
    topics_known = committed.topics
    kept = [name for name, change in changes.items() if change.fate in (Fate.GOES_ON, Fate.EVOLVES)]
    topics_kept = tuple(topic for topic in topology.topics() if topic in topics_known)
    edges = {edge.name: edge for edge in topology.edges}
    ranks_before = (committed.topology.topics if committed.topology else None) or ()
    ranks_kept = (topology.committed_form.topics or ())[: len(ranks_before)] == ranks_before
    return TopologyChange(
        stores=(
            *(
                _with_changelog(
                    _with_suppression(change, committed.topology, topology),
                    specs[change.store],
                    had_one=change.store not in past.unlogged,
                )
                for change in changes.values()
            ),
            *(_kept_aside(name, committed.topology, topology.committed_form) for name in aside),
            *(
                StoreChange(store=name, fate=Fate.IS_DROPPED, notes=("it has no changelog that could keep its rows",))
                for name in past.homes
                if name not in changes and name in past.unlogged
            ),
        ),
        settings=_settings_changed(committed.topology, topology.committed_form, kept),
        outputs_added=_without(outputs_now, outputs_before),
        outputs_removed=_without(outputs_before, outputs_now),
        topics_kept=topics_kept,
        topics_added=_without(topology.topics(), topics_known),
        topics_removed=_without(topics_before, topology.topics()),
        origins=origins,
        aside=aside,
        confusions=tuple(_confusions(topology, past, changes)),
        pending_blobs=sum(
            blob.edge not in edges
            or partition_of_task(blob.target) >= counts[edges[blob.edge].target]
            or past.tasks_of.get(sub_topology_of(blob.target)) != counts[edges[blob.edge].target]
            or _have_moved(sub_topology_of(blob.target), topology.sub_topology(edges[blob.edge].target), past, changes)
            or not ranks_kept
            or not is_readable(blob)
            for blob in committed.pending_blobs
        ),
        restored=tuple(sorted(restored)),
        newly_divided=_divided_otherwise(PRODUCERS, WEIR, topology, past, changes),
        no_longer_divided=_divided_otherwise(WEIR, PRODUCERS, topology, past, changes),
        is_other_topology=committed.fingerprint != topology.fingerprint,
        is_unrelated=not (kept or topics_kept or past.aside.keys() & changes.keys())
        and not set(outputs_now) & set(outputs_before),
    )


class _Past:
    """What a commit says of the program that made it."""

    def __init__(self, committed: CommitRecord, topology: Topology, identities: Mapping[str, StoreIdentity]) -> None:
        form = committed.topology
        self.tasks_of: dict[str, int] = {}
        """The number of tasks by stored name."""
        self.topics: dict[str, str] = {}
        """By topic, the stored name of the sub-topology that read it."""
        for task, commit in committed.tasks.items():
            name = sub_topology_of(task)
            self.tasks_of[name] = self.tasks_of.get(name, 0) + 1
            self.topics |= dict.fromkeys(commit.positions, name)
        self.partitions = partitions_of(committed)
        self.names = {_FINGERPRINT.sub("", name): name for name in self.tasks_of}
        """The names without what an older Weir added to them."""
        if form is not None:
            self.homes = {store: name for name, stores in form.stores.items() for store in stores}
        else:
            self.homes = {
                store.name: self.names[sub_topology.stored_name]
                for sub_topology in topology.sub_topologies
                if sub_topology.stored_name in self.names
                for store in sub_topology.stores
            }
        """By store, the stored name of its sub-topology."""
        self.identities = {**identities, **((form.identities if form else None) or {})}
        self.aside = dict(form.aside) if form else {}
        self.removed = frozenset(form.removed) if form else frozenset()
        self.unlogged = frozenset(store for commit in committed.tasks.values() for store in commit.unlogged)
        """The stores whose rows are only in local stores."""
        self.expiry = {
            setting.store: "its rows no longer expire" if setting.before else "its rows expire, also those that it has"
            for setting in _settings_changed(form, topology.committed_form, self.homes)
            if setting.setting == RETENTION and not (setting.before and setting.now)
        }
        """Stores whose rows have begun or ceased to expire: a restore makes, or leaves out, the index by time."""

    def identity_of(self, store: str) -> StoreIdentity | None:
        """What a store was, here or when it was put aside; None if that is not known."""
        aside = self.aside.get(store)
        return self.identities.get(store) if aside is None else aside.identity

    def count_of(self, store: str) -> int:
        """How many tasks had it."""
        aside = self.aside.get(store)
        return self.tasks_of[self.homes[store]] if aside is None else aside.tasks


def _divided_otherwise(
    before: str, now: str, topology: Topology, past: _Past, changes: Mapping[str, StoreChange]
) -> tuple[str, ...]:
    """Stores that keep their rows, in several tasks, among which ``before`` divided the keys and ``now`` does."""
    return tuple(
        name
        for name, change in changes.items()
        if change.fate in (Fate.GOES_ON, Fate.EVOLVES, Fate.COMES_BACK)
        and (known := past.identity_of(name)) is not None
        and known.owner.startswith(before)
        and (topology.committed_form.identities or {})[name].owner.startswith(now)
        and past.count_of(name) > 1
    )


def _have_moved(target: str, now: SubTopology, past: _Past, changes: Mapping[str, StoreChange]) -> bool:
    """Whether rows that wait for the tasks of ``target`` would go to other stores than before."""
    stores = {store.name for store in now.stores}
    return any((home == target) != (name in stores) for name, home in past.homes.items() if name in changes)


def _change_of(
    store: str, sub_topology: SubTopology, tasks: int, past: _Past, partitions: Mapping[str, int]
) -> StoreChange:
    now = sub_topology.identities[store]
    home, aside = past.homes.get(store), past.aside.get(store)
    if home is not None:
        before, tasks_before = past.identities.get(store), past.tasks_of[home]
    elif aside is not None:
        before, tasks_before = aside.identity or past.identities.get(store), aside.tasks
    else:
        return StoreChange(store=store, fate=Fate.BEGINS_EMPTY)
    if before and store in sub_topology.hops and before.grouping == now.grouping + IN_SLICES:
        before = replace(before, grouping=now.grouping)  # its first epoch makes windows of them
    reasons = [*_other_identity(before, now)] if before else []
    if tasks_before != tasks:
        reasons.append(f"its keys were divided among {tasks_before} tasks and are now divided among {tasks}")
    elif home is not None:
        reasons += [
            f"topic {topic!r} had {past.partitions[topic]} partitions and has {partitions[topic]}, so its keys belong "
            "to other tasks"
            for topic in sub_topology.topics_of(store)
            if 0 < past.partitions.get(topic, 0) != partitions.get(topic, past.partitions.get(topic))
        ]
    notes = tuple(_other_columns(before, now)) if before else ()
    notes += (past.expiry[store],) if store in past.expiry else ()
    if store in past.unlogged and not reasons:
        if before and before.owner.startswith(PRODUCERS) and now.owner.startswith(WEIR) and tasks > 1:
            reasons.append(f"its keys were divided by {PRODUCERS}, {_UNCHECKED}")
        elif notes:
            reasons.append(f"it would evolve ({', '.join(notes)}), {_UNREAD}")
    if reasons:
        return StoreChange(store=store, fate=Fate.IS_REBUILT, notes=tuple(reasons))
    if home is None and aside is not None:
        return StoreChange(store=store, fate=Fate.COMES_BACK, notes=(f"as of epoch {aside.since_epoch}", *notes))
    return StoreChange(store=store, fate=Fate.EVOLVES if notes else Fate.GOES_ON, notes=notes)


def _other_identity(before: StoreIdentity, now: StoreIdentity) -> Iterator[str]:
    """Why the rows that a store has cannot be those of the program."""
    if before.kind and before.kind != now.kind:
        yield f"it was a {_worded(before.kind)} store and is now a {_worded(now.kind)} store"
    if list(before.key.items()) != list(now.key.items()):
        yield f"its key was {_columns(before.key)} and is now {_columns(now.key)}"
    if before.kind and not _is_grouped_so(before, now):
        yield f"its rows were by {before.grouping or 'key alone'} and are now by {now.grouping or 'key alone'}"
    if before.owner and _format_of(before.owner) != _format_of(now.owner):
        yield f"its keys were divided by {before.owner} and are now divided by {now.owner}"
    for each in _differences(before, now):
        if each.is_other_type and not each.is_wider:
            yield f"its {each}"


def _is_grouped_so(before: StoreIdentity, now: StoreIdentity) -> bool:
    """Whether rows that a store has are by what the program's are by; a store of slices also reads whole windows."""
    return now.grouping in (before.grouping, before.grouping + IN_SLICES)


def _format_of(owner: str) -> str:
    return owner.partition(", ")[2]


def _other_columns(before: StoreIdentity, now: StoreIdentity) -> Iterator[str]:
    """How a store's value columns have changed: what local stores hold must have the same columns in the same order."""
    found = _differences(before, now)
    yield from map(str, found)
    if any(each.before is None for each in found):
        yield "what is new is null in the rows that it has"
    if not found and list(before.value.items()) != list(now.value.items()):
        yield "its columns are in another order"


def _differences(before: StoreIdentity, now: StoreIdentity) -> list[Difference]:
    return differences(_dtypes(before.value), _dtypes(now.value))


def _dtypes(columns: Mapping[str, str]) -> dict[str, pl.DataType]:
    return {name: dtype_of(text) for name, text in columns.items()}


def _confusions(topology: Topology, past: _Past, changes: Mapping[str, StoreChange]) -> Iterator[str]:
    """Stores and columns that are gone while others of the same kind are new."""
    identities = topology.committed_form.identities or {}
    gone = [name for name in past.homes if name not in changes]
    made_up = {name for node in topology.nodes for name in node.made_up_names}
    suppressions = {node.store.name for node in topology.nodes if isinstance(node, SuppressNode)}
    for name, change in changes.items():
        now = identities[name]
        if change.fate is Fate.BEGINS_EMPTY and name in made_up:
            similar = [other for other in gone if _may_be(name, now, other, past.identities.get(other))]
            similar += [
                other
                for other, kept in past.aside.items()
                if other not in changes and _may_be(name, now, other, kept.identity, is_aside=True)
            ]
            if similar:
                yield (
                    f"the store {topology.shown(name)!r}, made from {_made_from(now)}, would begin empty, and it "
                    f"cannot be told whether it is {' or '.join(map(repr, similar))}; if it is {similar[0]!r}, "
                    f"{_naming(name, similar[0])}, and if another operator is, do so there"
                )
        elif change.fate is Fate.BEGINS_EMPTY:
            for other in gone:
                if _looks_same(past.identities.get(other), now):
                    yield (
                        f"the store {name!r} would begin empty and {other!r}, which looks the same, would be kept "
                        f"aside; if it is the same, "
                        + (_naming(SUPPRESSION, other) if name in suppressions else f"call it {other!r}")
                    )
                    break
        if change.fate in (Fate.EVOLVES, Fate.COMES_BACK) and (before := past.identities.get(name)) is not None:
            found = _differences(before, now)
            for old in found:
                if old.now is None and (new := _renamed(old, found)) is not None:
                    yield (
                        f"the store {name!r} would no longer keep its column {old.path!r}, and {new.path!r}, which "
                        f"looks the same, would begin empty; if it is the same, call it {old.path!r}"
                    )


def _may_be(name: str, now: StoreIdentity, other: str, before: StoreIdentity | None, *, is_aside: bool = False) -> bool:
    """Whether a store with a made-up name that was not found again may be a committed one."""
    if is_made_up(other) and operator_of(other) != operator_of(name):
        return False
    if before is not None and before.lineage is not None and now.lineage is not None:
        shared = {*before.lineage.outputs} & {*now.lineage.outputs}
        if before.lineage.origin == now.lineage.origin or shared:
            return True
        if is_aside:
            return False
    return _looks_same(before, now)


def _made_from(identity: StoreIdentity) -> str:
    lineage = identity.lineage
    if lineage is None:
        return "what has no name"
    return lineage.origin + (f" for {' and '.join(lineage.outputs)}" if lineage.outputs else "")


def _naming(name: str, other: str) -> str:
    """How the operator that has the store ``name`` is told that its store is ``other``."""
    if operator_of(name) == SUPPRESSION or name == SUPPRESSION:
        given = other if is_made_up(other) else other.removesuffix("-store")
        return f"name the suppression so: .with_name({given!r})"
    if operator_of(name) == FINAL_RESULTS:
        return f"keep the final results so: .to_stream().to_table({other!r}), and join or group that table"
    if operator_of(other) == STANDING_RESULTS:
        given = subscriptions_of(other)
    else:
        given = other if is_made_up(other) else re.sub("-(subscription-store|result-store)$", "", other)
    return f"name the join so: store={given!r}"


def _renamed(old: Difference, found: Iterable[Difference]) -> Difference | None:
    """What is new in the same place as ``old``, which is left out, and has its type."""
    return next(
        (new for new in found if new.before is None and (new.now, new.struct) == (old.before, old.struct)), None
    )


def _looks_same(before: StoreIdentity | None, now: StoreIdentity) -> bool:
    if before is None:
        return True
    if (dict(before.key), dict(before.value)) != (dict(now.key), dict(now.value)):
        return False
    return not before.kind or (before.kind == now.kind and _is_grouped_so(before, now))


def _origins(
    topology: Topology,
    counts: Mapping[int, int],
    past: _Past,
    changes: Mapping[str, StoreChange],
    restored: Collection[str],
) -> dict[int, Origin]:
    found: dict[int, Origin] = {}
    taken: set[str] = set()
    # Those that still have their name choose first.
    for sub_topology in sorted(topology.sub_topologies, key=lambda each: each.stored_name not in past.names):
        stores = [store.name for store in sub_topology.stores]
        same_name = past.names.get(sub_topology.stored_name)
        homes = [past.homes[name] for name in stores if changes[name].fate in (Fate.GOES_ON, Fate.EVOLVES)]
        homes += [past.topics[source.topic] for source in sub_topology.sources if source.topic in past.topics]
        parts = tuple(dict.fromkeys(homes)) or ((same_name,) if same_name else ())
        goes_on = (
            parts[0]
            if len(parts) == 1
            and parts[0] not in taken
            and past.tasks_of[parts[0]] == counts[sub_topology.index]
            and not any(name in restored for name in stores)
            else None
        )
        if goes_on:
            taken.add(goes_on)
        found[sub_topology.index] = Origin(goes_on=goes_on, parts=parts)
    return found


def _separated(
    topology: Topology, before: CommittedTopology | None, changes: Mapping[str, StoreChange]
) -> Iterator[tuple[str, StoreChange]]:
    """Suppressions that get a store of their own, since something else now reads their aggregation: what was held back
    is in that, where they do not look for it."""
    for node in topology.nodes:
        if isinstance(node, SuppressNode) and isinstance(node.parent, AggregateNode) and node.fused_with is None:
            own, held_in = changes[node.store.name], changes[node.parent.store.name]
            is_kept = held_in.fate in (Fate.GOES_ON, Fate.EVOLVES)
            if is_kept and own.fate is Fate.BEGINS_EMPTY and _suppression_of(before, held_in.store):
                reason = f"the windows that are open in {held_in.store!r} would have no final result"
                yield own.store, replace(own, fate=Fate.IS_REBUILT, notes=(reason,))


def _restored(past: _Past, changes: Mapping[str, StoreChange], leftovers: Collection[str]) -> set[str]:
    """The stores that no local store holds as the program needs them."""
    return {
        name
        for name, change in changes.items()
        if change.fate not in (Fate.GOES_ON, Fate.BEGINS_EMPTY)
        or (change.fate is Fate.BEGINS_EMPTY and (name in leftovers or name in past.removed))
    }


def _left_behind(
    topology: Topology,
    counts: Mapping[int, int],
    past: _Past,
    changes: Mapping[str, StoreChange],
    leftovers: Collection[str],
) -> list[str]:
    """Stores without a changelog that would go on, but whose tasks do not go on with their local stores."""
    origins = _origins(topology, counts, past, changes, _restored(past, changes, leftovers))
    return [
        store.name
        for sub_topology in topology.sub_topologies
        for store in sub_topology.stores
        if origins[sub_topology.index].goes_on is None
        and changes[store.name].fate is Fate.GOES_ON
        and store.name in past.unlogged
    ]


def _with_changelog(change: StoreChange, store: StoreSpec, *, had_one: bool) -> StoreChange:
    """With a note if a store that keeps its rows no longer has a changelog, or has one again."""
    if had_one == store.is_logged or change.fate not in (Fate.GOES_ON, Fate.EVOLVES, Fate.COMES_BACK):
        return change
    notes: tuple[str, ...] = (
        ("it has a changelog from now on, which gets all its rows in the first epoch",)
        if store.is_logged
        else ("it no longer has a changelog; the one that is there stays as it is",)
    )
    if store.is_rebuilt:
        notes += ("since it is not known where its rows begin, the run stops if it is lost",)
    return replace(change, notes=(*change.notes, *notes))


def _with_suppression(change: StoreChange, before: CommittedTopology | None, now: Topology) -> StoreChange:
    """With a note if the windows of a store that goes on were held back in it, and nothing does so now."""
    is_separate = any(
        isinstance(node, SuppressNode)
        and isinstance(node.parent, AggregateNode)
        and node.parent.store.name == change.store
        for node in now.nodes
    )
    is_held = is_separate or _suppression_of(now.committed_form, change.store)
    is_gone = _suppression_of(before, change.store) and not is_held
    if not is_gone or change.fate not in (Fate.GOES_ON, Fate.EVOLVES):
        return change
    note = "its suppression is gone, so windows that are open now may reach no output until another record updates them"
    return replace(change, notes=(*change.notes, note))


def _kept_aside(store: str, before: CommittedTopology | None, now: CommittedTopology) -> StoreChange:
    if before is not None and store in before.aside:
        notes: tuple[str, ...] = (f"since epoch {before.aside[store].since_epoch}",)
    elif _suppression_of(before, store) and not any(
        _suppression_of(now, other) == _suppression_of(before, store) and not _suppression_of(before, other)
        for other in now.settings or {}
    ):  # where another store has become the one that holds back, as the aggregation's does, it has all of it
        notes = (
            "its suppression is gone, so what it still holds may reach no output until another record updates its key",
        )
    else:
        notes = ()
    return StoreChange(store=store, fate=Fate.IS_KEPT_ASIDE, notes=notes)


def _suppression_of(form: CommittedTopology | None, store: str) -> str:
    """How long updates are held back in the store, in words; empty if they are not, or that is not known."""
    return ((form.settings if form else None) or {}).get(store, {}).get(SUPPRESSION_SETTING, "")


def _settings_changed(
    before: CommittedTopology | None, now: CommittedTopology, kept: Iterable[str]
) -> tuple[SettingChange, ...]:
    if before is None or before.settings is None or now.settings is None:
        return ()
    both = [(store, before.settings.get(store, {}), now.settings.get(store, {})) for store in kept]
    return tuple(
        SettingChange(store=store, setting=name, before=old.get(name, ""), now=new.get(name, ""))
        for store, old, new in both
        for name in sorted({*old, *new} - {SUPPRESSION_SETTING})
        if old.get(name) != new.get(name) and not (before.identities is None and name == "grace" and name not in old)
    )


def sub_topology_of(task: str) -> str:
    """The stored name of a stored task's sub-topology."""
    return task.rpartition("_")[0]


def partitions_of(committed: CommitRecord) -> dict[str, int]:
    """How many partitions each topic had whose tasks have all run: others may have positions of some alone."""
    incomplete = {sub_topology_of(task) for task, each in committed.tasks.items() if each.state is None}
    unknown = {
        topic
        for task, each in committed.tasks.items()
        if sub_topology_of(task) in incomplete
        for topic in each.positions
    }
    return {topic: count for topic, count in committed.partitions.items() if topic not in unknown}


def partition_of_task(task: str) -> int:
    """The partition of a stored task."""
    return int(task.rpartition("_")[2])


def _without(names: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    gone = set(others)
    return tuple(name for name in names if name not in gone)


def _columns(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {type_name(dtype)}" for name, dtype in _dtypes(columns).items())


def _worded(kind: str) -> str:
    return kind.replace("_", "-")
