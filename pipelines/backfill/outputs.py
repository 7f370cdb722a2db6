"""Which outputs of a topology hold rows of days that those days' records give, and by which time a row has its day.

The others are left out of a backfill, each with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipelines.topology import TableSinkNode, Topology
from pipelines.topology.nodes import AggregateNode, Node, SuppressNode

WINDOW_START, TIMESTAMP = "window_start", "_ts"


@dataclass(frozen=True, kw_only=True)
class DayOutput:
    """An output whose rows a swap replaces."""

    table: str
    column: str
    """The time that says to which day a row belongs: ``window_start`` or ``_ts``."""


@dataclass(frozen=True, kw_only=True)
class DayOutputs:
    """A topology's outputs as a backfill sees them."""

    swapped: tuple[DayOutput, ...]
    left_out: Mapping[str, str]
    """Why, by table."""
    look_back_ms: int
    """How long before a row's day a record may be that has a part in it: the longest windows and their grace."""


def day_outputs(topology: Topology) -> DayOutputs:
    """What a backfill of ``topology`` swaps and what it leaves out."""
    swapped, left_out, look_back_ms = [], {}, 0
    for sink in (node for node in topology.nodes if isinstance(node, TableSinkNode)):
        upstream = list(_ancestors(sink))
        endless = [node for node in upstream if node.store_names and not _is_windowed(node)]
        if sink.is_updates and not sink.record.is_windowed:
            left_out[sink.table] = "it is a running table, and the rows of some days' records alone would be other ones"
        elif endless:
            left_out[sink.table] = f"it comes out of {endless[0].store_names[0]!r}, which holds what came before"
        else:
            swapped.append(DayOutput(table=sink.table, column=WINDOW_START if sink.record.is_windowed else TIMESTAMP))
            windows = {node.windows for node in upstream if isinstance(node, AggregateNode) and node.windows}
            look_back_ms = max(look_back_ms, sum(each.size_ms + each.grace_ms for each in windows))
    return DayOutputs(swapped=tuple(swapped), left_out=left_out, look_back_ms=look_back_ms)


def _ancestors(node: Node) -> Iterator[Node]:
    parent = node.parent
    while parent is not None:
        yield parent
        parent = parent.parent


def _is_windowed(node: Node) -> bool:
    return isinstance(node, SuppressNode) or (isinstance(node, AggregateNode) and node.windows is not None)
