"""Aggregations that keep one state per key, or per key and window, and forward its updates.

``count``, ``reduce``, ``aggregate`` and ``agg`` differ only in the fold. Windowed aggregations whose results
are final are in ``final_results``.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from weir.pipelines.operators.closing import advance, follow, note, now
from weir.pipelines.operators.epoch import Epoch, has_key
from weir.pipelines.operators.fold import Fold
from weir.pipelines.operators.windows import TimeWindows, UnlimitedWindows
from weir.state.frames import in_order, picked
from weir.state.stores.typed import TypedStore
from weir.state.types import StoreSpec


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """One state per key. Null keys and null values are dropped and counted.

    Updates have the key columns, the finished values, ``_ts _partition _offset _deleted``. With ``every_update`` there
    is one per record, as if records were processed one by one; else only the newest of each key, since nothing
    downstream would keep another.
    """

    store: StoreSpec
    fold: Fold
    every_update: bool

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        rows = has_key(rows, list(self.store.key), epoch)
        if rows.get_column("_deleted").any():
            kept = rows.filter(~pl.col("_deleted"))
            epoch.counts["null_values"] += rows.height - kept.height
            rows = kept
        if rows.is_empty():
            return rows
        return fold_into(TypedStore(self.store, epoch.session), self.fold, rows, self.every_update)


@dataclass(frozen=True, kw_only=True)
class WindowedAggregation:
    """One state per key and window. It is deleted when the window closes, since nothing can change it then.

    A store with a retention keeps it longer and expires it itself. Null keys are dropped and counted; null values are
    folded. Updates are those of ``Aggregation``, with ``window_start`` and ``window_end`` among the key columns,
    ordered by record, then window.
    """

    store: StoreSpec
    fold: Fold
    windows: TimeWindows | UnlimitedWindows
    every_update: bool
    late_to: str | None = None

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        rows = has_key(rows, list(self.store.key)[:-2], epoch)
        if rows.is_empty():
            return rows
        _, stream_time = advance(self.store.name, self._delay_ms, rows.get_column("_ts"), epoch)
        note(self.store.name, rows, stream_time, epoch)
        offsets = rows.get_column("_offset")
        rows, late = self.windows.assign(rows, stream_time)
        epoch.drop_late(late, self.late_to, offsets, stream_time)
        store = TypedStore(self.store, epoch.session)
        updates = rows if rows.is_empty() else fold_into(store, self.fold, rows, self.every_update)
        self._forget_closed(store, int(stream_time[-1]))
        return updates

    @property
    def clock(self) -> str:
        return self.store.name

    def next_close_ms(self, epoch: Epoch) -> int | None:
        return next_close_ms(self.store, self.windows, epoch)

    def close(self, before_ms: int, epoch: Epoch) -> None:
        """Delete the closed windows; their updates have been forwarded already."""
        _, now_ms = follow(self.store.name, self._delay_ms, before_ms, epoch)
        self._forget_closed(TypedStore(self.store, epoch.session), now_ms)

    @property
    def _delay_ms(self) -> int:
        return self.windows.closes_after_ms or 0

    def _forget_closed(self, store: TypedStore, stream_time_ms: int) -> None:
        if self.store.retention_ms is None:
            keys, _ = store.scan(b"", store.window_upper(max(self.windows.closed_before(stream_time_ms), 0)))
            store.delete(keys)


def next_close_ms(spec: StoreSpec, windows: TimeWindows | UnlimitedWindows, epoch: Epoch) -> int | None:
    """The stream time at which the store's next window closes; None if there is no such window."""
    if windows.closes_after_ms is None:
        return None
    store = TypedStore(spec, epoch.session)
    closed_before = windows.closed_before(now(spec.name, windows.closes_after_ms, epoch))
    found = epoch.session.first(spec.name, store.window_upper(max(closed_before, 0)))
    if found is None:
        return None
    end_ms: int = store.decode([found[0]]).get_column("window_end").dt.timestamp("ms")[0]
    return end_ms + windows.closes_after_ms


def fold_into(store: TypedStore, fold: Fold, rows: pl.DataFrame, every_update: bool) -> pl.DataFrame:
    """Fold ``rows`` (at least one) into the store and return the updates with finished values."""
    by = list(store.spec.key)
    groups = fold.group(rows, by)
    keys, order, stored = store.fetch_sorted(picked(groups, by))
    if every_update:
        updates, states = fold.running(groups, stored, rows, by)
    else:
        updates = states = fold.merge(groups, stored, rows)
    write_states(store, fold, keys, in_order(picked(states, (*fold.state, "_ts", "_deleted")), order))
    return fold.finish(updates)


def write_states(store: TypedStore, fold: Fold, keys: list[bytes], states: pl.DataFrame) -> None:
    """Write the states, aligned with ``keys``, to the store; delete those that are gone."""
    gone = states.get_column("_deleted")
    if gone.any():
        is_gone = gone.to_list()
        store.delete([key for key, deleted in zip(keys, is_gone, strict=True) if deleted])
        keys = [key for key, deleted in zip(keys, is_gone, strict=True) if not deleted]
        states = states.filter(~gone)
    store.write(keys, picked(states, [*fold.state, "_ts"]))
