"""Which operators pass the headers of their rows on, row by row.

Of all others, a result has the headers of the record that caused it, which its place tells
(``weir.pipelines.tasks.processor``); which nodes have headers at all, they say themselves (``Node.has_headers``).
"""

from __future__ import annotations

from weir.pipelines.topology.nodes import (
    BranchNode,
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
    TableSinkNode,
    ToStreamNode,
    WithTimestampNode,
)
from weir.pipelines.topology.processors import ProcessorNode

_ROW_BY_ROW = (
    BranchNode,
    FilterNode,
    FlatMapValuesNode,
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
    TableSinkNode,
    ToStreamNode,
    WithTimestampNode,
)


def passes_headers(node: Node) -> bool:
    """Whether a node's operator takes rows with ``_headers``, and forwards each with those of its row."""
    return isinstance(node, _ROW_BY_ROW)
