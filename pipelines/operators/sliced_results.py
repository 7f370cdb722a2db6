"""Final results of hopping windows: each record is folded into its slice, and a window is merged when it closes.

The store has one row per key and slice, however many windows that is in, with the slice's bounds as ``window_start``
and ``window_end``. Rows of whole windows, as ``final_results`` keeps them, count for these windows: a store that was
begun with them goes on. What a slice is belongs to ``slices``.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from weir.pipelines.operators.aggregation import write_states
from weir.pipelines.operators.closing import advance, follow, now
from weir.pipelines.operators.epoch import Epoch, has_key
from weir.pipelines.operators.final_results import results_of
from weir.pipelines.operators.fold import PLACE
from weir.pipelines.operators.idle import NOWHERE
from weir.pipelines.operators.open_slices import OpenSlices
from weir.pipelines.operators.slices import SLICE, SLICED, Slices
from weir.pipelines.operators.windows import WINDOW_COLUMNS
from weir.state.frames import picked, where
from weir.state.stores.typed import TypedStore
from weir.state.types import StoreSpec


@dataclass(frozen=True, kw_only=True)
class SlicedResults:
    """What ``FinalResults`` gives, for hopping windows and a fold that needs no order.

    A slice is deleted once its last window is closed.
    """

    store: StoreSpec
    slices: Slices
    late_to: str | None = None

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        slices = self.slices
        rows = has_key(rows, list(slices.key), epoch)
        if rows.is_empty():
            return rows
        before_ms, stream_time = advance(self.store.name, self.slices.windows.grace_ms, rows.get_column("_ts"), epoch)
        places = picked(rows, PLACE)
        opened, until = slices.open_from(before_ms), slices.open_from(int(stream_time[-1]))
        rows, late = slices.assign(rows, stream_time, opened)
        if late is not None:
            epoch.drop_late(late, self.late_to, places.get_column("_offset"), stream_time)
        store = TypedStore(self.store, epoch.session)
        groups = None
        if rows.height:  # in the order of the store's keys, by which it is read and written
            groups = slices.fold.group(rows, [*slices.key, SLICE]).sort(SLICE, *slices.key, nulls_last=False)
        closed = self._closed(store, opened, until, groups, epoch)
        if groups is not None:
            self._keep(store, until, groups, epoch)
        if closed.is_empty():
            return rows.clear()
        return results_of(self.slices.fold, closed, self.slices.windows.grace_ms, stream_time, places)

    @property
    def clock(self) -> str:
        return self.store.name

    def next_close_ms(self, epoch: Epoch) -> int | None:
        """The stream time at which the next window closes that has records; None if there is none."""
        store, windows = TypedStore(self.store, epoch.session), self.slices.windows
        opened = self.slices.open_from(now(self.store.name, windows.grace_ms, epoch))
        first: int | None = None
        for key, _ in epoch.session.scan(self.store.name):
            start, end = (store.decode([key]).get_column(name).cast(pl.Int64).to_numpy() for name in WINDOW_COLUMNS)
            if (end - start < windows.size_ms).all():
                of_slice = max(opened, int(self.slices.first_windows(self.slices.numbers(start))[0]))
                first = of_slice if first is None else min(first, of_slice)
                break  # those of later slices are no earlier
            first = int(start[0]) // windows.advance_ms if first is None else first
        return None if first is None else first * windows.advance_ms + windows.kept_ms

    def close(self, before_ms: int, epoch: Epoch) -> pl.DataFrame | None:
        """The windows that stream time has closed."""
        grace_ms = self.slices.windows.grace_ms
        since_ms, now_ms = follow(self.store.name, grace_ms, before_ms, epoch)
        opened, until = self.slices.open_from(since_ms), self.slices.open_from(now_ms)
        closed = self._closed(TypedStore(self.store, epoch.session), opened, until, None, epoch)
        if closed.is_empty():
            return None
        return results_of(self.slices.fold, closed, grace_ms, pl.Series([now_ms]), NOWHERE)

    def _closed(
        self, store: TypedStore, opened: int, until: int, groups: pl.DataFrame | None, epoch: Epoch
    ) -> pl.DataFrame:
        """The windows from ``opened`` to before ``until``, of what is stored and of ``groups``; deletes the slices that
        are in no later window."""
        if until <= opened:
            return pl.DataFrame()
        slices, windows = self.slices, self.slices.windows
        kept_from_ms = until * windows.advance_ms
        before_ms = kept_from_ms - windows.advance_ms + windows.size_ms
        parts = [OpenSlices.of(store, epoch).take(store, before_ms, kept_from_ms)]
        if groups is not None:
            numbers, behind = slices.parts(groups)
            is_whole = behind == 0
            is_meant = is_whole & (slices.first_windows(numbers) < until)
            parts.append(slices.slices_of(where(groups, pl.Series(is_meant))))
            if not is_whole.all():
                parts.append(slices.late_windows(groups.filter(pl.Series(~is_whole)), opened, until))
        return slices.windows_of(pl.concat(parts), opened, until)

    def _keep(self, store: TypedStore, until: int, groups: pl.DataFrame, epoch: Epoch) -> None:
        """Merge ``groups`` into the stored slices, those that are in windows from ``until`` on."""
        slices = self.slices
        numbers, behind = slices.parts(groups)
        groups = where(groups, pl.Series(slices.last_windows(numbers) >= until))
        if groups.is_empty():
            return
        rows = slices.slices_of(groups)
        if behind.any():
            rows = slices.united(rows)
        epoch.clocks[f"{SLICED}{self.store.name}"] = 0
        keys = store.encode(picked(rows, list(self.store.key)))
        stored = store.fetch(keys)
        merged = slices.fold.merge(rows, stored, rows)
        write_states(store, slices.fold, keys, merged)
        if (open_slices := OpenSlices.known(store, epoch)) is not None:
            open_slices.put(store, merged, stored.get_column("_found"))


def make_whole(spec: StoreSpec, slices: Slices, epoch: Epoch) -> None:
    """Put open windows in the place of their slices in a store that another program has kept by slices."""
    if epoch.clocks.pop(f"{SLICED}{spec.name}", None) is None:
        return
    store = TypedStore(spec, epoch.session)
    keys, states = store.scan()
    if keys:
        store.delete(keys)
        windows = slices.open_windows(spec.name, store.decode(keys).hstack(states), epoch.clocks)
        store.write(store.encode(windows), windows)
