"""Which expectations judge each record by itself, whatever came before it."""

from __future__ import annotations

from weir.pipelines.topology.nodes import ROW_BY_ROW, Node, RepartitionNode, SourceNode, TableNode
from weir.state.types import StoreKind


def depends_on_one_record(node: Node) -> bool:
    """Whether the rows of ``node`` depend on nothing but the record of its task that caused each of them."""
    if isinstance(node, SourceNode):
        return True
    is_plain_table = isinstance(node, TableNode) and node.store.kind is StoreKind.KEY_VALUE  # it forwards every row
    if not (is_plain_table or isinstance(node, ROW_BY_ROW)):
        return False
    return all(isinstance(parent, RepartitionNode) or depends_on_one_record(parent) for parent in node.parents)
