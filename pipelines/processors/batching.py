"""Gathers the records of each key into batches, over columns.

An open batch is a row of counts, by key, and its records in chunks, by key and the chunk's place: what arrived in one
go, each value column as a list. So an arrival costs as much as itself, and a batch that leaves is read by known keys.
When it is due by the wall clock is a timer of its key. Which records it takes is decided here, record by record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from weir.pipelines.operators.numbering import numbered
from weir.pipelines.processors.processor import BatchProcessor, Punctuation
from weir.pipelines.processors.times import as_ms
from weir.pipelines.processors.value_sizes import value_bytes
from weir.state.frames import copies, flat, in_order, listed, parted, picked, with_series
from weir.state.stores.key_value import KeyValueStore
from weir.state.stores.specs import PLACE, TIME
from weir.state.stores.timers import NEVER_MS

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

    def of(self, keys: np.ndarray) -> np.ndarray:
        """For each record, given by its key, the batch that it leaves with; -1 for the open one."""
        found = np.searchsorted(self.ends, np.arange(len(keys)), side="right")
        return np.where(np.append(self.keys, -1)[found] == keys, found, -1)


@dataclass(frozen=True)
class _Open:
    """What is kept of the open batches of ``keys``: ``OPEN`` as numbers, times in ms, by name."""

    keys: pl.DataFrame
    found: np.ndarray
    """Which of them have an open batch; the numbers of the others are 0."""
    numbers: Mapping[str, np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.numbers[name]

    def at(self, places: np.ndarray) -> _Open:
        """Those at ``places``."""
        numbers = {name: numbers[places] for name, numbers in self.numbers.items()}
        return _Open(in_order(self.keys, places), self.found[places], numbers)


class Batching(BatchProcessor[Any, Any, Any, Any]):
    """One task's batches. Neither keys nor values are null."""

    def __init__(self, shape: BatchShape, limits: BatchLimits) -> None:
        self._shape, self._limits = shape, limits
        self._key, self._values = list(shape.key), list(shape.value)

    def init(self, context: Any) -> None:
        self.context = context
        self._retime()

    def process_batch(self, rows: pl.DataFrame) -> pl.DataFrame | None:
        keys, numbers = numbered(picked(rows, self._key))
        of = numbers.to_numpy()
        turns = np.arange(rows.height)
        if keys.height < rows.height:
            turns = np.argsort(of, kind="stable")
            rows, of = in_order(rows, turns), of[turns]
        sizes = value_bytes(picked(rows, self._values))
        held = self._held(keys)
        cuts = self._cuts(of, sizes, held)
        if not cuts.keys.size:
            self._keep(rows, of, sizes, held, cuts)
            return None
        batch_of = cuts.of(of)
        leaves = batch_of >= 0
        left, kept = parted(rows, pl.Series(leaves))
        batches = self._leave(left, batch_of[leaves], held, cuts)
        self._keep(kept, of[~leaves], sizes[~leaves], held, cuts)
        causes = in_order(picked(rows, ("_partition", "_offset")), cuts.causes)
        batches = batches.hstack(in_order(keys, cuts.keys)).hstack(causes)
        return in_order(batches, np.argsort(turns[cuts.causes], kind="stable"))

    def on_timers(self, rows: pl.DataFrame) -> pl.DataFrame | None:
        if self._limits.max_wait_ms is None:
            return None
        held = self._held(picked(rows, self._key))
        there = np.flatnonzero(held.found)
        return self._gone(held.at(there)) if there.size else None

    def close(self) -> None:
        if self._limits.flushes:
            for keys in self._parts():
                held = self._held(keys)
                self.context.forward_rows(self._gone(held))
                self._cancel(held.keys)

    @property
    def _open(self) -> KeyValueStore:
        rows: KeyValueStore = self.context.state_store(self._shape.open).rows
        return rows

    @property
    def _chunks(self) -> KeyValueStore:
        rows: KeyValueStore = self.context.state_store(self._shape.chunks).rows
        return rows

    def _held(self, keys: pl.DataFrame) -> _Open:
        return _Open(keys, *self._open.get_numbers(keys))

    def _parts(self) -> Iterator[pl.DataFrame]:
        """The keys of all open batches in parts, each read after the one before has been taken out."""
        above: Any = None
        while (held := next(self._open.range(above).frames(SCAN_ROWS), None)) is not None:
            keys = picked(held, self._key)
            last = keys.row(-1)
            above = last if len(last) > 1 else last[0]
            yield keys

    # which records a batch takes

    def _cuts(self, of: np.ndarray, record_sizes: np.ndarray, held: _Open) -> _Cuts:
        """Where the batches of records end, given by their keys, in that order, and their sizes."""
        counts, sizes, total = held["count"], held["_bytes"], np.cumsum(record_sizes)
        ends = np.searchsorted(of, np.arange(held.keys.height), side="right")
        starts = np.concatenate([[0], ends[:-1]])
        before = np.where(starts > 0, total[starts - 1], 0)
        max_records, max_bytes = self._limits.max_records, self._limits.max_bytes
        is_cut = np.zeros(len(counts), bool)
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

    def _leave(self, rows: pl.DataFrame, batch_of: np.ndarray, held: _Open, cuts: _Cuts) -> pl.DataFrame:
        """The batches of ``cuts``, in their order: of the open ones, and of ``rows``, each with its batch."""
        values, times = picked(rows, self._values), rows.get_column("_ts").to_numpy()
        first_ms, last_ms = np.full(len(cuts.keys), NEVER_MS), np.full(len(cuts.keys), -NEVER_MS)
        np.minimum.at(first_ms, batch_of, times)
        np.maximum.at(last_ms, batch_of, times)
        first = np.flatnonzero(np.diff(cuts.keys, prepend=-1))
        first = first[held.found[cuts.keys[first]]]
        if first.size:
            begun = held.at(cuts.keys[first])
            first_ms[first] = np.minimum(first_ms[first], begun["first_time"])
            last_ms[first] = np.maximum(last_ms[first], begun["last_time"])
            batch_of = np.concatenate([np.repeat(first, begun["count"]), batch_of])
            values = in_order(self._take(begun).vstack(values), np.argsort(batch_of, kind="stable"))
        return self._batches(values, np.bincount(batch_of, minlength=len(cuts.keys)), first_ms, last_ms)

    def _gone(self, held: _Open) -> pl.DataFrame:
        """Take out all of these open batches, as the rows to forward, in their order."""
        values = self._take(held)
        self._open.delete_rows(held.keys)
        return self._batches(values, held["count"], held["first_time"], held["last_time"]).hstack(held.keys)

    def _take(self, begun: _Open) -> pl.DataFrame:
        """Take the records out of open batches, in their order: the value columns."""
        chunks = begun["_chunks"]
        of, places = copies(chunks)
        keys = with_series(in_order(begun.keys, of), pl.Series(PLACE, places))
        rows = self._chunks.get_rows(keys)
        self._chunks.delete_rows(keys)
        lists = picked(rows, self._values)
        if any(column.null_count() for column in lists.get_columns()):  # the program has gained the column
            lists = rows.select_seq(
                pl.coalesce(name, pl.lit(None, self._shape.value[name]).repeat_by(CHUNK_COUNT)) for name in self._values
            )
        return flat(lists)

    def _batches(
        self, values: pl.DataFrame, counts: np.ndarray, first_ms: np.ndarray, last_ms: np.ndarray
    ) -> pl.DataFrame:
        """Batches, given the records of the first, the second and so on, and how many each has."""
        records = values.get_column(self._values[0]) if self._shape.is_scalar else values.to_struct()
        return with_series(
            listed(records.alias("records").to_frame(), counts),
            pl.Series("count", counts),
            pl.Series("first_time", first_ms).cast(TIME),
            pl.Series("last_time", last_ms).cast(TIME),
            pl.Series("_ts", last_ms),
        )

    # batches that stay open

    def _keep(self, rows: pl.DataFrame, of: np.ndarray, sizes: np.ndarray, held: _Open, cuts: _Cuts) -> None:
        """Keep ``rows``, which have not left, as a chunk for each key."""
        is_cut = np.zeros(len(held.found), bool)
        is_cut[cuts.keys] = True
        is_closed = held.found & is_cut
        is_closed[of] = False
        if is_closed.any():
            closed = held.keys.filter(pl.Series(is_closed))
            self._open.delete_rows(closed)
            self._cancel(closed)
        if rows.is_empty():
            return
        starts = np.flatnonzero(np.diff(of, prepend=-1))
        stays, counts = of[starts], np.diff(starts, append=len(of))
        times = rows.get_column("_ts").to_numpy()
        first_ms, last_ms = np.minimum.reduceat(times, starts), np.maximum.reduceat(times, starts)
        begun, goes_on = held.at(stays), (held.found & ~is_cut)[stays]
        chunks = np.where(goes_on, begun["_chunks"], 0)
        self._chunks.put_rows(
            with_series(
                begun.keys.hstack(listed(picked(rows, self._values), counts)),
                pl.Series(PLACE, chunks),
                pl.Series(CHUNK_COUNT, counts),
                pl.Series("_ts", last_ms),
            )
        )
        now_ms = as_ms(self.context.current_system_time)
        last_ms = np.where(goes_on, np.maximum(begun["last_time"], last_ms), last_ms)
        self._open.put_numbers(
            begun.keys,
            {
                "count": np.where(goes_on, begun["count"], 0) + counts,
                "first_time": np.where(goes_on, np.minimum(begun["first_time"], first_ms), first_ms),
                "last_time": last_ms,
                "_bytes": np.where(goes_on, begun["_bytes"], 0) + np.add.reduceat(sizes, starts),
                "_opened": np.where(goes_on, begun["_opened"], now_ms),
                "_chunks": chunks + 1,
                "_ts": last_ms,
            },
        )
        if (new := np.flatnonzero(~goes_on)).size:
            self._set(in_order(begun.keys, new), pl.lit(now_ms))

    # timers

    def _set(self, rows: pl.DataFrame, opened: pl.Expr) -> None:
        """Set the timers of open batches that are there since ``opened`` (ms, by the wall clock)."""
        if self._limits.max_wait_ms is not None:
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
