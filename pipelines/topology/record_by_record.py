"""The part of a sub-topology that runs record by record, because its operators see the order between them.

Other operators run one after another over all rows of an epoch. Where processors share a store, the first would then
have written all of it before the second reads it. So a record passes through all that leads from one of them to
another before the next record does; running it belongs to ``weir.pipelines.tasks.record_by_record``.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weir.pipelines.topology.arrival import parents_by_arrival
from weir.pipelines.topology.nodes import Node, RepartitionNode, SourceNode
from weir.pipelines.topology.processors import ProcessorNode


@dataclass(frozen=True, kw_only=True)
class RecordByRecord:
    """The nodes that run record by record, and those that feed them."""

    feeders: tuple[Node, ...]
    """Their parents: sources, edges, or one node that all records pass, which runs over all rows of an epoch first."""
    nodes: tuple[Node, ...]
    """Parents before children; no source is one of them."""


def record_by_record(nodes: Sequence[Node]) -> RecordByRecord | None:
    """The part of a sub-topology with these nodes, parents before children; None if it has none.

    It begins below the last node that all records on their way to it pass, and ends with the last of the operators
    that see an order.
    """
    above: dict[Node, set[Node]] = {}
    passed: dict[Node, set[Node]] = {}
    """By node, what all of its records have passed."""
    for node in nodes:
        parents = list(dict.fromkeys(node.parents))
        above[node] = {node}.union(*({each} if _is_entrance(each) else above[each] for each in parents))
        passed[node] = {node} | _in_all({each} if _is_entrance(each) else passed[each] for each in parents)
    ordered = _ordered(nodes, above)
    places = {node: place for place, node in enumerate(nodes)}
    while ordered:
        common = sorted(_in_all(passed[node] for node in ordered), key=lambda node: places.get(node, -1))
        wanted = {each for node in ordered for each in above[node] if not _is_entrance(each)}
        if common:
            gate = common[-1]
            wanted = {each for each in wanted if gate in above[each] and (each is not gate or gate in ordered)}
        owners = _kept_elsewhere(nodes, wanted)
        if not owners:
            inside = tuple(node for node in nodes if node in wanted)
            return RecordByRecord(feeders=_feeders(inside), nodes=inside)
        ordered |= owners
    return None


def _ordered(nodes: Sequence[Node], above: dict[Node, set[Node]]) -> set[Node]:
    """The operators that see the order of records between them: those that share a store, and a processor with several
    parents that one record can reach in several ways, with these parents."""
    processors = [node for node in nodes if isinstance(node, ProcessorNode)]
    uses = Counter(store.name for node in processors for store in node.shared)
    found: set[Node] = {node for node in processors if any(uses[store.name] > 1 for store in node.shared)}
    for node in processors:
        parents = [({each} if _is_entrance(each) else above[each]) for each in dict.fromkeys(node.parents)]
        if any(one & other for one, other in itertools.combinations(parents, 2)):
            found |= {node, *(each for each in node.parents if not _is_entrance(each))}
    return found


def _kept_elsewhere(nodes: Iterable[Node], inside: set[Node]) -> set[Node]:
    """The nodes outside that keep stores in which nodes inside look up rows."""
    looked_into = {store.name for node in inside for store in node.foreign_stores}
    return {node for node in nodes if node not in inside and any(store.name in looked_into for store in node.stores)}


def _feeders(inside: Sequence[Node]) -> tuple[Node, ...]:
    """The parents outside, in the order in which the rows of one record arrive."""
    found = []
    for node in inside:
        order = parents_by_arrival(node) if len(node.parents) > 1 else range(len(node.parents))
        found += [node.parents[index] for index in order]
    return tuple(parent for parent in dict.fromkeys(found) if _is_entrance(parent) or parent not in inside)


def _is_entrance(node: Node) -> bool:
    """Whether rows enter the sub-topology there: as a parent, a repartition is where they come from."""
    return isinstance(node, SourceNode | RepartitionNode)


def _in_all(sets: Iterable[set[Node]]) -> set[Node]:
    each = list(sets)
    return set.intersection(*each) if each else set()
