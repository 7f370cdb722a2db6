"""Which outputs of a topology have rows that belong to days and come from those days' records, and by which time.

A backfill leaves out all other outputs, each with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weir.pipelines.sinks.sql import SqlTable
from weir.pipelines.topology import Topology
from weir.pipelines.topology.nodes import AggregateNode, Node, SuppressNode, WithTimestampNode
from weir.pipelines.topology.topology import table_spec


@dataclass(frozen=True, kw_only=True)
class DayOutput:
    """An output whose rows a swap replaces."""

    table: str
    """The table that commits write."""
    column: str
    """The time that says to which day a row belongs: ``window_start`` or ``_ts``."""


@dataclass(frozen=True, kw_only=True)
class DaySink:
    """A sink outside the warehouse to which rows of days can be published again."""

    name: str
    has_windows: bool
    """Whether its rows come from windows, which change until they are closed."""


@dataclass(frozen=True, kw_only=True)
class DayOutputs:
    """A topology's outputs as a backfill sees them."""

    swapped: tuple[DayOutput, ...]
    left_out: Mapping[str, str]
    """The reasons, by table or sink."""
    published: tuple[DaySink, ...]
    """Sinks outside the warehouse whose rows can be published again."""
    look_back_ms: int
    """How long before a row's day a record may be and still contribute to it: the longest windows and their grace."""


def day_outputs(topology: Topology) -> DayOutputs:
    """What a backfill of ``topology`` swaps and what it leaves out."""
    swapped, published, left_out, look_back_ms = [], [], {}, 0
    for sink in topology.sinks:
        name = sink.table if sink.sink is None else sink.sink.name
        upstream = _ancestors(sink)
        endless = sorted(name for node in upstream if _retention_ms(node) is None for name in node.store_names)
        if sink.is_updates and not sink.record.is_windowed:
            left_out[name] = "it is a running table, and the records of some days alone would give different rows"
        elif any(isinstance(node, WithTimestampNode) for node in upstream):
            left_out[name] = "its records get other times than they were read with, so days do not tell them apart"
        elif endless:
            left_out[name] = f"it is computed from {endless[0]!r}, which holds earlier records too"
        elif isinstance(sink.sink, SqlTable) and sink.sink.key and "window_start" not in sink.sink.key:
            left_out[name] = "a row of a later day that was published would be replaced by an earlier one"
        else:
            if sink.sink is None:
                swapped.append(DayOutput(table=table_spec(sink).name, column=sink.day_column))
            else:
                has_windows = any(isinstance(node, AggregateNode) for node in upstream)
                published.append(DaySink(name=name, has_windows=has_windows))
                left_out[name] = "its rows have left the warehouse; a swap with --publish publishes them again"
            kept_ms = (_retention_ms(node) or 0 for node in upstream if isinstance(node, AggregateNode))
            look_back_ms = max(look_back_ms, sum(kept_ms))
    return DayOutputs(swapped=tuple(swapped), left_out=left_out, published=tuple(published), look_back_ms=look_back_ms)


def _ancestors(node: Node) -> set[Node]:
    found: set[Node] = set()
    waiting = list(node.parents)
    while waiting:
        ancestor = waiting.pop()
        if ancestor not in found:
            found.add(ancestor)
            waiting += ancestor.parents
    return found


def _retention_ms(node: Node) -> int | None:
    """How long a record contributes to a node's results; None for ever, or when that is not known."""
    windows = node.windows if isinstance(node, AggregateNode | SuppressNode) else None
    return None if windows is None else windows.kept_ms
