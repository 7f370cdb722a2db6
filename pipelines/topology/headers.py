"""Which operators pass the headers of their rows on, row by row.

Of all others, a result has the headers of the record that caused it, which its place tells
(``weir.pipelines.tasks.processor``); which nodes have headers at all, they say themselves (``Node.has_headers``).
"""

from __future__ import annotations

from weir.pipelines.topology.joins import JoinBufferNode, StreamTableJoinNode
from weir.pipelines.topology.nodes import (
    AggregateNode,
    BranchNode,
    ExpectNode,
    FilterNode,
    FlatMapValuesNode,
    LateRecordsNode,
    MapNode,
    MapValuesNode,
    MergeNode,
    Node,
    PeekNode,
    RepartitionNode,
    SelectKeyNode,
    SourceNode,
    SplitNode,
    SuppressNode,
    TableSinkNode,
    ToStreamNode,
    WithTimestampNode,
)
from weir.pipelines.topology.processors import ProcessorNode

_ROW_BY_ROW = (
    BranchNode,
    ExpectNode,
    FilterNode,
    FlatMapValuesNode,
    JoinBufferNode,
    LateRecordsNode,
    MapNode,
    MapValuesNode,
    MergeNode,
    PeekNode,
    ProcessorNode,
    RepartitionNode,
    SelectKeyNode,
    SourceNode,
    SplitNode,
    StreamTableJoinNode,
    SuppressNode,
    TableSinkNode,
    ToStreamNode,
    WithTimestampNode,
)


def passes_headers(node: Node) -> bool:
    """Whether a node's operator takes rows with ``_headers``, and forwards each with those of its row, or of the last
    record in it."""
    return isinstance(node, _ROW_BY_ROW) or (isinstance(node, AggregateNode) and node.keeps_headers)
