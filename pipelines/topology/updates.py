"""Which updates of an aggregation or table the nodes below see: all, the newest of an epoch, or only final ones."""

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
    """Whether the aggregation forwards only closed windows: it emits on close, or is evaluated with its
    suppression."""
    return node.is_final or any(isinstance(child, SuppressNode) and child.fused_with is node for child in node.children)


def keeps_every_update(node: Node) -> bool:
    """Whether the nodes below an aggregation or table need each of its updates within an epoch.

    They need only the newest per key if all lead to sinks of updates, directly or through stateless operators on the
    table.
    """
    return not all(_keeps_newest(child) for child in readers_of(node))


def _keeps_newest(node: Node) -> bool:
    if isinstance(node, TableSinkNode):
        return node.collapses
    if isinstance(node, (FilterNode, MapValuesNode)):
        return node.is_table and not keeps_every_update(node)
    return isinstance(node, ToStreamNode) and not keeps_every_update(node)
