"""Which updates of an aggregation or table the nodes below see: all, or the newest of an epoch."""

from __future__ import annotations

from weir.pipelines.topology.nodes import (
    FilterNode,
    KeptTableNode,
    MapValuesNode,
    Node,
    TableSinkNode,
    ToStreamNode,
    readers_of,
)


def keeps_every_update(node: Node) -> bool:
    """Whether the nodes below an aggregation or table need each of its updates within an epoch.

    They need only the newest per key if all lead to sinks of updates, directly or through filters and mappings of the
    table, which may keep their rows.
    """
    return not all(_keeps_newest(child) for child in readers_of(node))


def _keeps_newest(node: Node) -> bool:
    if isinstance(node, TableSinkNode):
        return node.collapses
    if isinstance(node, KeptTableNode):
        return not keeps_every_update(node)
    if isinstance(node, (FilterNode, MapValuesNode)):
        return node.is_table and not keeps_every_update(node)
    return isinstance(node, ToStreamNode) and not keeps_every_update(node)
