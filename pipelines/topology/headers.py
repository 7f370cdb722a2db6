"""Which operators pass the headers of their rows on, row by row.

Of all others, a result has the headers of the record that caused it, which its place tells
(``weir.pipelines.tasks.processor``); which nodes have headers at all, they say themselves (``Node.has_headers``).
"""

from __future__ import annotations

from weir.pipelines.topology.joins import JoinBufferNode, StreamTableJoinNode
from weir.pipelines.topology.nodes import (
    ROW_BY_ROW,
    AggregateNode,
    LateRecordsNode,
    Node,
    RepartitionNode,
    SourceNode,
    SuppressNode,
    TableSinkNode,
)
from weir.pipelines.topology.processors import ProcessorNode

_PASSES_HEADERS = (
    *ROW_BY_ROW,
    JoinBufferNode,
    LateRecordsNode,
    ProcessorNode,
    RepartitionNode,
    SourceNode,
    StreamTableJoinNode,
    SuppressNode,
    TableSinkNode,
)


def passes_headers(node: Node) -> bool:
    """Whether a node's operator takes rows with ``_headers``, and forwards each with those of its row, or of the last
    record in it."""
    return isinstance(node, _PASSES_HEADERS) or (isinstance(node, AggregateNode) and node.keeps_headers)
