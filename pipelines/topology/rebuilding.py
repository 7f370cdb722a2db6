"""The part of a program that computes one store from one topic: what a lost store without a changelog is rebuilt by.

Running it belongs to ``weir.pipelines.tasks.rebuilding`` (PROTOCOL 38).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from weir.pipelines.operators.sliding_windows import SlidingWindows
from weir.pipelines.operators.windows import TimeWindows
from weir.pipelines.serdes.timestamps import UsePartitionTimeOnInvalidTimestamp, WallclockTimestampExtractor
from weir.pipelines.topology.idle import idle_after_ms
from weir.pipelines.topology.nodes import (
    AggregateNode,
    ChildNode,
    ExpectNode,
    FilterNode,
    FlatMapValuesNode,
    MapNode,
    MapValuesNode,
    Node,
    PeekNode,
    RepartitionNode,
    SelectKeyNode,
    SourceNode,
    SuppressNode,
    TableNode,
    WithTimestampNode,
)
from weir.state.types import StoreClock, StoreKind, StoreSpec

_STATELESS = (
    FilterNode,
    ExpectNode,
    MapValuesNode,
    FlatMapValuesNode,
    MapNode,
    SelectKeyNode,
    WithTimestampNode,
    PeekNode,
)


def keeper_of(nodes: Sequence[Node], store: str) -> Node:
    """The node that keeps a store."""
    return next(node for node in nodes for spec in node.stores if spec.name == store)


def source_of(node: Node) -> SourceNode:
    """The topic that a store is computed from, of a node for which ``why_not_rebuilt`` is None."""
    while not isinstance(node, SourceNode):
        (node,) = node.parents
    return node


def why_not_rebuilt(node: Node, store: StoreSpec) -> str | None:
    """Why the records of one topic do not give the rows of ``store``, which ``node`` keeps, again; None if they do."""
    if not isinstance(node, AggregateNode | TableNode):
        return "its operator is neither an aggregation nor a table of a topic"
    if store.expires_by is StoreClock.WALL_CLOCK:
        return "its rows expire by the wall clock"
    if idle_after_ms(node) is not None:
        return "the wall clock moves its stream time while input is idle"
    above: Node = node.parent
    while not isinstance(above, SourceNode):
        if isinstance(above, RepartitionNode):
            return "its records come over a repartition"
        if not isinstance(above, _STATELESS):
            return f"it depends on {above.name}, which is not computed from each record alone"
        above = above.parent
    if isinstance(above.timestamp, WallclockTimestampExtractor | UsePartitionTimeOnInvalidTimestamp):
        return "the times of its records are not in the records alone"
    return None


def needs_all_records(node: Node, store: StoreSpec) -> bool:
    """Whether the newest record of each key does not give the rows of ``store`` again, as older ones count too."""
    is_newest_rows = isinstance(node, TableNode) and isinstance(node.parent, SourceNode)
    return not is_newest_rows or store.kind is not StoreKind.KEY_VALUE or store.retention_ms is not None


def kept_ms(node: Node, store: StoreSpec) -> int | None:
    """How long after a record's time nothing in ``store`` depends on the record any more; None for ever."""
    match node:
        case AggregateNode(windows=TimeWindows() as windows):
            return max(windows.size_ms + windows.grace_ms, store.retention_ms or 0)
        case AggregateNode(windows=SlidingWindows() as windows):  # its store keeps them from their end on
            return windows.difference_ms + max(windows.kept_ms, store.retention_ms or 0)
        case TableNode() if store.kind is StoreKind.KEY_VALUE:  # a row is its key's newest record
            return store.retention_ms
    return None


def rebuilding_nodes(node: Node) -> tuple[Node, ...]:
    """Copies of the nodes from the topic to ``node``, and of the suppression that is evaluated with it, without all
    others: nothing else that reads them is called."""
    chain = [node]
    while not isinstance(chain[0], SourceNode):
        chain.insert(0, chain[0].parents[0])
    chain += [child for child in node.children if isinstance(child, SuppressNode) and child.fused_with is node]
    copies: dict[Node, Node] = {}
    for each in chain:
        if isinstance(each, PeekNode):
            copies[each] = copies[each.parent]
            continue
        copies[each] = made = copy.copy(each)
        made.children = []
        if isinstance(made, ChildNode):
            made.parent = copies[made.parent]
            made.parent.children.append(made)
        if isinstance(made, AggregateNode):
            made.late_to = None
        if isinstance(made, AggregateNode | TableNode):
            made.store = replace(made.store, is_in_memory=False)
    return tuple(dict.fromkeys(copies.values()))
