"""Gathers the records of each key into batches, over columns.

An open batch is a row of counts, by key, and its records in chunks, by key and the chunk's place: what arrived in one
go, each value column as a list. So an arrival costs as much as itself, and a batch that leaves is read by known keys.
When it is due by the wall clock is a timer of its key. Which records it takes is decided here, record by record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from weir.pipelines.operators.table_view import numbered
from weir.pipelines.processors.processor import BatchProcessor, Punctuation
from weir.pipelines.processors.times import as_ms
from weir.pipelines.processors.value_sizes import value_bytes
from weir.state.frames import parted, picked, where, with_series, without
from weir.state.stores.key_value import KeyValueStore
from weir.state.stores.specs import PLACE, TIME

RESULT = pl.Schema({"count": pl.Int64(), "first_time": TIME, "last_time": TIME})
"""The columns of a batch beside its ``records``."""
OPEN = pl.Schema({**RESULT, "_bytes": pl.Int64(), "_opened": pl.Int64(), "_chunks": pl.Int64()})
"""What is kept of an open batch: its size, when by the wall clock its first record arrived (ms), how many chunks."""
CHUNK_COUNT = "_count"
"""How many records a chunk has; beside the lists, since those of columns that a program gains are null."""
SCAN_ROWS = 50_000
"""How many open batches are looked at together."""


def chunk_columns(value: pl.Schema) -> pl.Schema:
    """The value columns of the store of chunks."""
    return pl.Schema({**{name: pl.List(dtype) for name, dtype in value.items()}, CHUNK_COUNT: pl.Int64()})


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """When a batch leaves; they may change from run to run."""

    max_records: int | None
    max_bytes: int | None
    max_wait_ms: int | None
    flushes: bool
    """Whether open batches leave when the application stops."""


@dataclass(frozen=True, kw_only=True)
class BatchShape:
    """What is batched, and where it is kept."""

    key: Sequence[str]
    value: pl.Schema
    is_scalar: bool
    open: str
    chunks: str


class _Cuts(NamedTuple):
    """The batches that leave, by key, then in order; records are in the order of keys.

    ``ends`` is the record before which a batch ends, ``causes`` the one that makes it leave.
    """

    keys: np.ndarray
    ends: np.ndarray
    causes: np.ndarray

    def of(self, keys: np.ndarray) -> pl.Series:
        """For each record, given by its key, the batch that it leaves with; null for the open one."""
        found = np.searchsorted(self.ends, np.arange(len(keys)), side="right")
        leaves = np.append(self.keys, -1)[found] == keys
        return pl.select(pl.when(pl.Series(leaves)).then(pl.Series(found.astype(np.int64)))).to_series()


class Batching(BatchProcessor[Any, Any, Any, Any]):
    """One task's batches. Neither keys nor values are null."""

    def __init__(self, shape: BatchShape, limits: BatchLimits) -> None:
        self._shape, self._limits = shape, limits
        self._key, self._values = list(shape.key), list(shape.value)

    def init(self, context: Any) -> None:
        self.context = context
        self._retime()

    def process_batch(self, rows: pl.DataFrame) -> pl.DataFrame | None:
        keys, of = numbered(picked(rows, self._key))
        rows = rows.with_row_index("_turn").with_columns_seq(of.alias("_of"), _size=value_bytes(self._shape.value))
        if keys.height < rows.height:
            rows = rows.sort("_of", maintain_order=True)
        held = self._open.get_rows(keys)
        cuts = self._cuts(rows, held)
        if not cuts.keys.size:
            self._keep(rows, held, cuts)
            return None
        rows = rows.with_columns_seq(_batch=cuts.of(rows.get_column("_of").to_numpy()))
        left, kept = parted(rows, rows.get_column("_batch").is_not_null())
        batches = self._leave(left, held, cuts)
        self._keep(kept, held, cuts)
        causes = rows.select_seq("_turn", "_partition", "_offset")[cuts.causes]
        return batches.hstack(keys[cuts.keys]).hstack(causes).sort("_turn", maintain_order=True)

    def on_timers(self, rows: pl.DataFrame) -> pl.DataFrame | None:
        if self._limits.max_wait_ms is None:
            return None
        held = self._open.get_rows(rows.select_seq(self._key)).filter("_found")
        return self._gone(held) if held.height else None

    def close(self) -> None:
        if self._limits.flushes:
            for held in self._parts():
                self.context.forward_rows(self._gone(held))
                self._cancel(held)

    @property
    def _open(self) -> KeyValueStore:
        rows: KeyValueStore = self.context.state_store(self._shape.open).rows
        return rows

    @property
    def _chunks(self) -> KeyValueStore:
        rows: KeyValueStore = self.context.state_store(self._shape.chunks).rows
        return rows

    def _parts(self) -> Iterator[pl.DataFrame]:
        """All open batches in parts, each read after the one before has been taken out."""
        above: Any = None
        while (held := next(self._open.range(above).frames(SCAN_ROWS), None)) is not None:
            last = held.select_seq(self._key).row(-1)
            above = last if len(last) > 1 else last[0]
            yield held

    # which records a batch takes

    def _cuts(self, rows: pl.DataFrame, held: pl.DataFrame) -> _Cuts:
        """Where the batches of ``rows``, which are in the order of keys, end; ``held`` are the open ones by key."""
        counts, sizes = (_or_zero(held.get_column(name)) for name in ("count", "_bytes"))
        of = rows.get_column("_of").to_numpy()
        total = np.cumsum(rows.get_column("_size").to_numpy())
        ends = np.searchsorted(of, np.arange(held.height), side="right")
        starts = np.concatenate([[0], ends[:-1]])
        before = np.where(starts > 0, total[starts - 1], 0)
        max_records, max_bytes = self._limits.max_records, self._limits.max_bytes
        is_cut = np.zeros(held.height, bool)
        if max_records is not None:
            is_cut |= counts + ends - starts >= max_records
        if max_bytes is not None:
            is_cut |= sizes + total[ends - 1] - before >= max_bytes
        found: list[tuple[int, int, int]] = []
        if is_cut.any():
            totals = [0, *total.tolist()]
            for key in np.flatnonzero(is_cut).tolist():
                start, end = int(starts[key]), int(ends[key])
                count, size = int(counts[key]), int(sizes[key])
                while start < end:
                    stop, is_full = end, False
                    if max_bytes is not None:
                        wanted = totals[start] + max_bytes - size
                        if (reached := bisect_left(totals, wanted, start + 1, end + 1)) <= end:
                            is_full = totals[reached] == wanted or (not count and reached == start + 1)
                            stop = reached if is_full else reached - 1
                    if max_records is not None and (last := start + max_records - count) <= stop:
                        stop, is_full = max(last, start), last > start
                    if stop == end and not is_full:
                        break
                    found.append((key, stop, stop - 1 if is_full else stop))
                    start, count, size = stop, 0, 0
        keys, stops, causes = np.array(found, np.int64).reshape(-1, 3).T
        return _Cuts(keys, stops, causes)

    # batches that leave

    def _leave(self, rows: pl.DataFrame, held: pl.DataFrame, cuts: _Cuts) -> pl.DataFrame:
        """The batches of ``cuts``, in their order: of the open ones, and of ``rows``, which have their ``_batch``."""
        first = np.flatnonzero(np.diff(cuts.keys, prepend=-1))
        taken = self._take(held[cuts.keys[first]].with_columns_seq(_batch=pl.Series(first)).filter("_found"))
        records = rows.select_seq("_batch", *self._values, _first="_ts", _last="_ts")
        return self._batches(pl.concat([taken, records]))

    def _gone(self, held: pl.DataFrame) -> pl.DataFrame:
        """Take out all of ``held`` open batches, as the rows to forward, in their order."""
        taken = self._take(held.with_columns_seq(_batch=pl.int_range(pl.len())))
        self._open.delete_rows(held.select_seq(self._key))
        return self._batches(taken).hstack(held.select_seq(self._key))

    def _take(self, begun: pl.DataFrame) -> pl.DataFrame:
        """Take the records out of open batches, in their order: ``_batch``, value columns, and of the whole batch the
        least and the greatest time, ``_first`` and ``_last`` (ms)."""
        places = begun.select_seq(
            "_batch",
            *self._key,
            pl.int_ranges(0, "_chunks").alias(PLACE),
            _first=pl.col("first_time").dt.timestamp("ms"),
            _last=pl.col("last_time").dt.timestamp("ms"),
        ).explode(PLACE)
        chunks = self._chunks.get_rows(places)
        self._chunks.delete_rows(places)
        values = chunks.select_seq(
            pl.coalesce(name, pl.lit(None, dtype).repeat_by(CHUNK_COUNT)) for name, dtype in self._shape.value.items()
        )
        return (
            values.hstack(places.select_seq("_batch", "_first", "_last"))
            .select_seq("_batch", *self._values, "_first", "_last")
            .explode(self._values)
        )

    def _batches(self, records: pl.DataFrame) -> pl.DataFrame:
        """Records in order with their ``_batch``, as one row for each, by ``_batch``."""
        value = pl.col(self._values[0]) if self._shape.is_scalar else pl.struct(self._values)
        return (
            records.sort("_batch", maintain_order=True)
            .group_by("_batch", maintain_order=True)
            .agg(
                value.alias("records"),
                pl.len().cast(pl.Int64).alias("count"),
                pl.col("_first").min().cast(TIME).alias("first_time"),
                pl.col("_last").max().cast(TIME).alias("last_time"),
                pl.col("_last").max().alias("_ts"),
            )
            .drop("_batch")
        )

    # batches that stay open

    def _keep(self, rows: pl.DataFrame, held: pl.DataFrame, cuts: _Cuts) -> None:
        """Keep ``rows``, which have not left, as a chunk for each key."""
        is_cut, is_held = np.zeros(held.height, bool), held.get_column("_found").to_numpy()
        is_cut[cuts.keys] = True
        is_closed = is_held & is_cut
        is_closed[rows.get_column("_of").to_numpy()] = False
        if is_closed.any():
            closed = picked(held.filter(pl.Series(is_closed)), self._key)
            self._open.delete_rows(closed)
            self._cancel(closed)
        if rows.is_empty():
            return
        grouped = rows.group_by("_of", maintain_order=True).agg(
            *self._values,
            pl.len().cast(pl.Int64).alias(CHUNK_COUNT),
            pl.col("_size").sum(),
            pl.col("_ts").min().cast(TIME).alias("_first"),
            pl.col("_ts").max(),
        )
        stays = grouped.get_column("_of").to_numpy()
        goes_on = pl.Series((is_held & ~is_cut)[stays])
        begun = without(held, "_ts", "_found")
        if len(stays) < held.height:
            begun = begun[stays]
        if is_cut.any():
            begun = begun.with_columns_seq(pl.when(goes_on).then(pl.col(name)).alias(name) for name in OPEN)
        place = with_series(picked(begun, self._key), pl.Series(PLACE, _or_zero(begun.get_column("_chunks"))))
        self._chunks.put_rows(place.hstack(picked(grouped, (*self._values, CHUNK_COUNT, "_ts"))))
        now_ms = as_ms(self.context.current_system_time)
        self._open.put_rows(
            begun.hstack(picked(grouped, (CHUNK_COUNT, "_size", "_first", "_ts"))).select_seq(
                *self._key,
                pl.col("count").fill_null(0) + pl.col(CHUNK_COUNT),
                pl.min_horizontal("first_time", "_first"),
                pl.max_horizontal("last_time", pl.col("_ts").cast(TIME)),
                pl.col("_bytes").fill_null(0) + pl.col("_size"),
                pl.col("_opened").fill_null(now_ms),
                pl.col("_chunks").fill_null(0) + 1,
                pl.max_horizontal(pl.col("last_time").dt.timestamp("ms"), "_ts").alias("_ts"),
            )
        )
        self._set(picked(where(begun, ~goes_on), self._key), pl.lit(now_ms))

    # timers

    def _set(self, rows: pl.DataFrame, opened: pl.Expr) -> None:
        """Set the timers of open batches that are there since ``opened`` (ms, by the wall clock)."""
        if self._limits.max_wait_ms is not None and rows.height:
            self.context.timers(rows, opened + self._limits.max_wait_ms, Punctuation.WALL_CLOCK_TIME)

    def _cancel(self, keys: pl.DataFrame) -> None:
        if self._limits.max_wait_ms is not None and keys.height:
            self.context.cancel_timers(keys, Punctuation.WALL_CLOCK_TIME)

    def _retime(self) -> None:
        """Move the timers of all open batches if ``max_wait`` has changed since they were set.

        Its value is kept among the task's clocks. Timers that were set under one that is no longer there find nothing
        to do.
        """
        clock, wanted = f"_max_wait:{self._shape.open}", self._limits.max_wait_ms
        if self.context.clocks.get(clock) == wanted:
            return
        if wanted is None:
            del self.context.clocks[clock]
            return
        self.context.clocks[clock] = wanted
        for held in self._open.all().frames(SCAN_ROWS):
            self._set(held, pl.col("_opened"))


def _or_zero(column: pl.Series) -> np.ndarray:
    """Numbers, 0 for null."""
    if column.null_count() == len(column):
        return np.zeros(len(column), np.int64)
    return (column.fill_null(0) if column.null_count() else column).to_numpy()
