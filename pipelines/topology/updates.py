"""Which updates of an aggregation or table what follows it can tell apart: all, the newest of an epoch, the final."""

from __future__ import annotations

from weir.pipelines.topology.nodes import (
    AggregateNode,
    FilterNode,
    MapValuesNode,
    Node,
    SuppressNode,
    TableSinkNode,
    ToStreamNode,
    readers_of,
)


def forwards_final(node: AggregateNode) -> bool:
    """Whether only closed windows leave the aggregation: it emits on close, or is evaluated with its suppression."""
    return node.is_final or any(isinstance(child, SuppressNode) and child.fused_with is node for child in node.children)


def keeps_every_update(node: Node) -> bool:
    """Whether what follows an aggregation or table can tell apart its updates within an epoch.

    Only a sink of updates, directly or behind stateless operators on the table, keeps the newest a key.
    """
    return not all(_keeps_newest(child) for child in readers_of(node))


def _keeps_newest(node: Node) -> bool:
    if isinstance(node, TableSinkNode):
        return node.collapses
    if isinstance(node, (FilterNode, MapValuesNode)):
        return node.is_table and not keeps_every_update(node)
    return isinstance(node, ToStreamNode) and not keeps_every_update(node)
