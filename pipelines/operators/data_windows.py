"""Aggregations over windows that the records define: sessions and sliding windows.

Which windows a record opens, joins or merges depends on the records before it, so this is worked out record by record
(by ``session_windows`` and ``sliding_windows``); the states are computed over columns. Sessions whose
records are all in time need no such walk (``session_columns``). The store is ordered by key, then window end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import polars as pl

from weir.pipelines.operators.closing import advance, follow, note, now
from weir.pipelines.operators.epoch import Epoch, has_key
from weir.pipelines.operators.fold import PLACE, Fold
from weir.pipelines.operators.idle import NOWHERE
from weir.pipelines.operators.states import States
from weir.pipelines.serdes.shapes import TIME
from weir.state.stores.expiry import ExpiryIndex
from weir.state.stores.session import SessionStore
from weir.state.types import StoreSpec

Window = tuple[int, int, int]
"""A key's number in its batch, window start and end in ms."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Records of one epoch and the stored windows that they can affect."""

    rows: pl.DataFrame
    """The records in order, with ``_key``, the number of the record's key."""
    stream_time: pl.Series
    """Stream time at each record's own turn, as far as windows are closed."""
    found: pl.DataFrame
    """All columns of the store, ``_key`` and ``_seen``: false for windows from the store of unseen ones, which come
    last."""

    def parted(self, keys: pl.Series) -> tuple[Batch, Batch]:
        """The parts of all other keys and of ``keys``, which are numbers as in ``_key``."""
        if keys.is_empty():
            return self, Batch(rows=self.rows.clear(), stream_time=self.stream_time.clear(), found=self.found.clear())
        is_one, found_is_one = (frame.get_column("_key").is_in(keys.implode()) for frame in (self.rows, self.found))
        others, ones = (
            Batch(rows=self.rows.filter(mask), stream_time=self.stream_time.filter(mask), found=self.found.filter(held))
            for mask, held in ((~is_one, ~found_is_one), (is_one, found_is_one))
        )
        return others, ones


@dataclass
class Trace:
    """What the records do to windows, in order; records are given by row, states by number."""

    updates: list[tuple[int, int, int, int | None]] = field(default_factory=list)
    """Record, window start and end, new state; None where the window is removed."""
    late: list[tuple[int, int, int]] = field(default_factory=list)
    """Record, and start and end of the window that it is late for."""
    newest: dict[Window, tuple[int, int | None]] = field(default_factory=dict)
    """The last record and state of each changed window."""
    unseen: dict[Window, tuple[int, int | None]] = field(default_factory=dict)
    """The same for closed windows, including records that came too late for them: later windows are derived from these,
    and nothing else sees them."""

    def put(self, record: int, window: Window, state: int | None) -> None:
        self.updates.append((record, window[1], window[2], state))
        self.newest[window] = record, state


class DataWindows(Protocol):
    """Windows that the records define."""

    @property
    def closes_after_ms(self) -> int:
        """A window is closed once stream time reaches its end plus this."""
        ...

    @property
    def takes_null_values(self) -> bool: ...

    @property
    def ends_are_times(self) -> bool:
        """Whether a result's timestamp is the end of its window; else it is the greatest timestamp folded in."""
        ...

    @property
    def keep_bounds(self) -> bool:
        """Whether windows stay as they were opened, instead of being replaced by longer ones."""
        ...

    def reach_ms(self) -> tuple[int, int]:
        """How long before a record a window that it affects may end, and how long after the record one may start."""
        ...

    def trace(self, batch: Batch, states: States) -> Trace: ...

    def by_columns(self, batch: Batch, fold: Fold) -> tuple[pl.DataFrame, pl.DataFrame, Batch]:
        """Windows to write that need no walk, with states; stored windows that they replace; and the rest, to walk."""
        ...


@dataclass(frozen=True, kw_only=True)
class DataWindowedAggregation:
    """One state per key and window. It expires when the store's retention after the window's end has passed.

    Null keys are dropped and counted, and so are null values where the windows do not accept them. Updates have the key
    columns, ``window_start``, ``window_end``, finished values, ``_ts _partition _offset _deleted``. With
    ``every_update`` they are those of processing record by record, else the newest of each window. With ``is_final``
    each window's state is forwarded once, when stream time closes the window, ordered by window end, then key.
    """

    store: StoreSpec
    unseen: StoreSpec | None = None
    """Closed windows including the records that came too late for them, where later windows derive from these."""
    fold: Fold
    windows: DataWindows
    every_update: bool
    is_final: bool
    late_to: str | None = None

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        by = list(self.store.key)[:-2]
        rows = has_key(rows, by, epoch)
        if not self.windows.takes_null_values and rows.get_column("_deleted").any():
            kept = rows.filter(~pl.col("_deleted"))
            epoch.counts["null_values"] += rows.height - kept.height
            rows = kept
        if rows.is_empty():
            return rows
        delay_ms, times_ms = self.windows.closes_after_ms, rows.get_column("_ts")
        before_ms, stream_time = advance(self.store.name, delay_ms, times_ms, epoch)
        note(self.store.name, rows, stream_time, epoch)
        store = SessionStore(self.store, epoch.session)  # without a clock, to find windows closed meanwhile too
        unseen = SessionStore(self.unseen, epoch.session) if self.unseen else None
        if unseen:
            epoch.clocks[unseen.spec.name] = epoch.clocks[self.store.name]
        batch = self._batch(rows, stream_time, store, unseen, by, epoch)
        is_walked = self.every_update and not self.is_final
        if is_walked:
            puts, tombstones, left = [], [], batch
        else:
            put, gone, left = self.windows.by_columns(batch, self.fold)
            puts, tombstones = [put], [gone]
        updates: list[pl.DataFrame] = []
        if left.rows.height:
            states = self.fold.states(left.rows, left.found)
            trace = self.windows.trace(left, states)
            late = self._rows(left.rows, [(record, start, end, None) for record, start, end in trace.late])
            epoch.drop_late(late, self.late_to, rows.get_column("_offset"), stream_time)
            net = _net(trace.newest)
            walked = self._states(left.rows, states, trace.updates if is_walked else net)
            changed = self._states(left.rows, states, net) if is_walked else walked
            puts.append(changed.filter(~pl.col("_deleted")))
            tombstones.append(changed.filter("_deleted"))
            updates = [walked] if is_walked else []
            if unseen and trace.unseen:
                missed = self._states(left.rows, states, _net(trace.unseen))
                self._write(unseen, [missed], batch.found, epoch.clocks[self.store.name])
        for gone in tombstones:
            if gone.height:
                store.delete_rows(gone)
        over = self._write(store, puts, batch.found, epoch.clocks[self.store.name])
        if self.is_final:
            closed = self._closed(store, before_ms, stream_time, rows.select_seq(PLACE), over)
            return rows.clear() if closed is None else closed
        frames = [frame for frame in updates or [*tombstones, *puts] if frame.height]
        return self.fold.finish(pl.concat(frames)) if frames else rows.clear()

    def _write(
        self, store: SessionStore, puts: list[pl.DataFrame], found: pl.DataFrame, stream_time_ms: int
    ) -> list[pl.DataFrame]:
        """Write windows to the store, except those that opened and expired within the batch, which are returned."""
        over = []
        is_over = pl.col("window_end").dt.timestamp("ms") <= stream_time_ms - (store.spec.retention_ms or 0)
        for put in (each for each in puts if each.height):
            if (live := put.filter(~is_over)).height:
                store.write_rows(live, are_lasting=self.windows.keep_bounds)
            if live.height < put.height:
                over.append(put.filter(is_over))
                stale = over[-1].join(found, on=list(self.store.key), how="semi", nulls_equal=True)
                if stale.height:
                    store.delete_rows(stale)
        return over

    def _batch(
        self,
        rows: pl.DataFrame,
        stream_time: pl.Series,
        store: SessionStore,
        unseen: SessionStore | None,
        by: list[str],
        epoch: Epoch,
    ) -> Batch:
        before, after = self.windows.reach_ms()
        times = pl.col("_ts")
        keys = rows.group_by(by).agg(
            (times.min() - before).alias("earliest_end_ms"), (times.max() + after).alias("latest_start_ms")
        )
        keys = keys.sort(by)  # about the order in which the store is read and written fastest, its own
        numbers = keys.select_seq(by).with_row_index("_key")
        found = store.find_rows(keys).with_columns_seq(_seen=True)
        if unseen and ExpiryIndex(unseen.spec, epoch.session).oldest_ms() is not None:
            found = pl.concat([found, unseen.find_rows(keys).with_columns_seq(_seen=False)])
        found = found.rename({"_asked": "_key"})
        return Batch(
            rows=rows.join(numbers, on=by, how="left", nulls_equal=True, maintain_order="left"),
            stream_time=stream_time,
            found=found,
        )

    def _rows(self, rows: pl.DataFrame, windows: Sequence[tuple[int, int, int, int | None]]) -> pl.DataFrame:
        """The record of each window, with the window's bounds."""
        bounds = [
            pl.Series(name, [each[place] for each in windows], dtype=pl.Int64).cast(TIME)
            for name, place in (("window_start", 1), ("window_end", 2))
        ]
        return rows[[each[0] for each in windows]].drop("_key").hstack(bounds)

    def _states(
        self, rows: pl.DataFrame, states: States, windows: Sequence[tuple[int, int, int, int | None]]
    ) -> pl.DataFrame:
        """The windows with their states: key columns, window bounds, state columns, ``_ts``, place, ``_deleted``."""
        numbers = [None if state is None or states.is_gone(state) else state for _, _, _, state in windows]
        framed = self._rows(rows, windows)
        found = states.frame(numbers)
        ends = framed.get_column("window_end").dt.timestamp("ms")
        times = ends if self.windows.ends_are_times else found.get_column("_ts").fill_null(ends)
        return pl.DataFrame(
            [
                *framed.select_seq(*self.store.key).get_columns(),
                *found.select_seq(*self.fold.state).get_columns(),
                times.alias("_ts"),
                *framed.select_seq(PLACE).get_columns(),
                pl.Series("_deleted", [number is None for number in numbers], dtype=pl.Boolean()),
            ]
        )

    @property
    def clock(self) -> str:
        return self.store.name

    def next_close_ms(self, epoch: Epoch) -> int | None:
        delay_ms = self.windows.closes_after_ms
        open_from = now(self.store.name, delay_ms, epoch) - delay_ms + 1
        found = next(ExpiryIndex(self.store, epoch.session).in_order(open_from), None)
        return None if found is None else found[1] + delay_ms

    def close(self, before_ms: int, epoch: Epoch) -> pl.DataFrame | None:
        """The windows that stream time has closed, if results are final; the store expires them itself."""
        since_ms, now_ms = follow(self.store.name, self.windows.closes_after_ms, before_ms, epoch)
        if not self.is_final:
            return None
        return self._closed(SessionStore(self.store, epoch.session), since_ms, pl.Series([now_ms]), NOWHERE, [])

    def _closed(
        self,
        store: SessionStore,
        before_ms: int | None,
        stream_time: pl.Series,
        places: pl.DataFrame,
        over: list[pl.DataFrame],
    ) -> pl.DataFrame | None:
        """The windows closed since ``before_ms``, including those of ``over``; None if there are none."""
        columns = [*self.store.key, *self.fold.state, "_ts"]
        delay_ms = self.windows.closes_after_ms
        after_ms = None if before_ms is None else before_ms - delay_ms + 1
        stored = store.find_ended(after_ms, int(stream_time[-1]) - delay_ms).frame()
        closed = pl.concat([stored.select_seq(columns), *(each.select_seq(columns) for each in over)])
        if closed.is_empty():
            return None
        closed = closed.sort("window_end", *list(self.store.key)[:-2], nulls_last=False)
        closers = stream_time.search_sorted(closed.get_column("window_end").dt.timestamp("ms") + delay_ms, side="left")
        return self.fold.finish(closed.hstack(places[closers]).with_columns_seq(pl.lit(False).alias("_deleted")))


def _net(windows: Mapping[Window, tuple[int, int | None]]) -> list[tuple[int, int, int, int | None]]:
    """Record, window start and end, and state of each window."""
    return [(record, start, end, state) for (_, start, end), (record, state) in windows.items()]
