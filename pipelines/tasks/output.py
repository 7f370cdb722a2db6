"""What an epoch of a task outputs besides its state, and how the batches of an epoch become one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from weir.pipelines.serdes.headers import HEADERS
from weir.pipelines.serdes.shapes import TIME
from weir.pipelines.tasks.metrics import EpochMetrics
from weir.pipelines.topology.nodes import TableSinkNode
from weir.state.commit.outbox import AT
from weir.state.frames import framed
from weir.state.stopwatch import Activity, during


@dataclass(frozen=True, kw_only=True)
class EpochOutput:
    """The output of an epoch of a task, besides the state in its session."""

    sinks: dict[str, pl.DataFrame]
    """Rows by table, if there are any: the table's columns except ``_epoch``; ``_seq`` counts from 0."""
    edges: dict[str, pl.DataFrame]
    """Rows by repartition edge, if there are any: the edge's columns and those of the key, in the order of sending."""
    counts: dict[str, int]
    """Counts of this epoch: ``rows_out``, ``suppression_emits``, ``late_records`` (counted once per window),
    ``null_keys``, ``null_values``."""
    clocks: dict[str, int]
    """Stream time in ms by operator."""
    gauges: dict[str, int]
    """``open_windows``: windows now in the stores."""
    next_punctuation_ms: int | None = None
    wants_commit: bool = False
    """Whether a processor has asked for a commit."""
    metrics: EpochMetrics = field(default_factory=EpochMetrics)


def joined(outputs: Sequence[EpochOutput], sinks: Iterable[TableSinkNode]) -> EpochOutput:
    """The outputs of one epoch's batches, in order, as if they had been one; ``sinks`` that collapse do so again."""
    if len(outputs) == 1:
        return outputs[0]
    counts: Counter[str] = Counter()
    for output in outputs:
        counts.update(output.counts)
    written = {}
    for sink in sinks:
        parts = [output.sinks[sink.table] for output in outputs if sink.table in output.sinks]
        if not parts:
            continue
        rows = pl.concat(parts)
        if sink.collapses:
            counts["rows_out"] -= rows.height
            rows = rows.unique(sink.key_columns, keep="last", maintain_order=True)
            counts["rows_out"] += rows.height
        written[sink.table] = rows.with_columns_seq(pl.int_range(pl.len(), dtype=pl.Int64).alias("_seq"))
    edges = {
        name: pl.concat([output.edges[name] for output in outputs if name in output.edges])
        for name in dict.fromkeys(name for output in outputs for name in output.edges)
    }
    return replace(
        outputs[-1],
        sinks=written,
        edges=edges,
        counts=dict(counts),
        wants_commit=any(output.wants_commit for output in outputs),
        metrics=sum((output.metrics for output in outputs), EpochMetrics()),
    )


def sink_rows(node: TableSinkNode, rows: pl.DataFrame) -> pl.DataFrame:
    """What a sink's table gets from the rows that reach it in an epoch: its columns except ``_epoch``."""
    if node.collapses and rows.height > 1:
        rows = rows.unique(list(node.record.key_columns), keep="last", maintain_order=True)
    if node.sink is not None:
        with during(Activity.ENCODE):
            leaving = node.sink.outgoing(rows)
        if not node.keeps_times:
            return leaving
        return leaving.with_columns_seq(
            rows.select_seq(pl.col(node.day_column).cast(TIME).dt.timestamp("ms").alias(AT))
        )
    columns = [rows.get_column(name) for name in (*node.record.columns, "_ts", "_deleted")]
    at = len(node.record.columns)
    columns[at] = columns[at].cast(TIME)
    columns.insert(at + 1, pl.int_range(rows.height, dtype=pl.Int64, eager=True).alias("_seq"))
    if node.keeps_headers:
        columns.append(rows.get_column(HEADERS))
    return framed(columns)
