"""Final results: a windowed aggregation and the suppression until its windows close, evaluated as one.

Only the last state of a window is forwarded, so a window that opens and closes within one batch never touches the
store, and closing the others is one range read. The result is the same as evaluating the two separately, record by
record (KIP-328).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from weir.pipelines.operators.aggregation import next_close_ms, write_states
from weir.pipelines.operators.closing import advance, follow
from weir.pipelines.operators.epoch import Epoch, has_key
from weir.pipelines.operators.fold import PLACE, Fold
from weir.pipelines.operators.idle import NOWHERE
from weir.pipelines.operators.windows import TimeWindows
from weir.state.frames import in_order, parted, picked, repeated, where
from weir.state.stores.typed import TypedStore
from weir.state.types import StoreSpec


@dataclass(frozen=True, kw_only=True)
class FinalResults:
    """Folds records into open windows; forwards each window's state once, when stream time closes it.

    The state is deleted then; a store with a retention keeps it longer and expires it itself. Results are ordered by
    (window end, key), their ``_ts`` is the greatest timestamp folded in, and their ``_partition`` and ``_offset`` are
    those of the record that closed the window.
    """

    store: StoreSpec
    fold: Fold
    windows: TimeWindows
    late_to: str | None = None

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        by = list(self.store.key)
        rows = has_key(rows, by[:-2], epoch)
        if rows.is_empty():
            return rows
        keeps = self.store.retention_ms is not None
        before_ms, stream_time = advance(self.store.name, self.windows.grace_ms, rows.get_column("_ts"), epoch)
        places = picked(rows, PLACE)
        rows, late = self.windows.assign(rows, stream_time)
        epoch.drop_late(late, self.late_to, places.get_column("_offset"), stream_time)
        store = TypedStore(self.store, epoch.session)
        closed_before = self.windows.closed_before(int(stream_time[-1]))
        closed = self._closed(store, before_ms, int(stream_time[-1]))
        parts = []
        if rows.height:
            groups = self.fold.group(rows, by)
            is_closing = groups.get_column("window_start").cast(pl.Int64) < closed_before
            closing, still_open = parted(groups, is_closing)
            keys, order, stored = store.fetch_sorted(picked(still_open, by))
            if closing.height:
                stored = pl.concat([stored, self._stored(closing, closed, by)])
                groups = pl.concat([still_open, closing])
            states = self.fold.merge(groups, stored, rows)
            of_store = picked(states[: len(keys)], (*self.fold.state, "_ts", "_deleted"))
            write_states(store, self.fold, keys, in_order(of_store, order))
            if closing.height:
                final = states[len(keys) :]
                if keeps:
                    write_states(store, self.fold, store.encode(picked(closing, by)), final)
                parts.append(where(final, ~final.get_column("_deleted")))
                if closed.height:
                    closed = closed.join(closing, on=by, how="anti", nulls_equal=True)
        if closed.height:
            parts.append(closed)
        if not any(part.height for part in parts):
            return rows.clear()
        return self._results(parts, stream_time, places)

    @property
    def clock(self) -> str:
        return self.store.name

    def next_close_ms(self, epoch: Epoch) -> int | None:
        return next_close_ms(self.store, self.windows, epoch)

    def close(self, before_ms: int, epoch: Epoch) -> pl.DataFrame | None:
        """The windows that stream time has closed."""
        since_ms, now_ms = follow(self.store.name, self.windows.grace_ms, before_ms, epoch)
        closed = self._closed(TypedStore(self.store, epoch.session), since_ms, now_ms)
        return self._results([closed], pl.Series([now_ms]), NOWHERE) if closed.height else None

    def _closed(self, store: TypedStore, before_ms: int | None, now_ms: int) -> pl.DataFrame:
        """The stored windows closed since ``before_ms``; with key columns if there are any."""
        keeps = self.store.retention_ms is not None
        since = self.windows.closed_before(before_ms) if keeps and before_ms is not None else 0
        upto = self.windows.closed_before(now_ms)
        keys, states = store.scan(store.window_upper(max(since, 0)), store.window_upper(max(upto, 0)))
        if not keys:
            return states
        closed = pl.concat([store.decode(keys), states], how="horizontal")
        if not keeps:
            store.delete(keys)
        return closed

    def _stored(self, closing: pl.DataFrame, closed: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """The stored states aligned with ``closing``, as a store's ``fetch`` gives them."""
        columns = [*self.fold.state, "_ts"]
        if "window_start" not in closed.columns:
            return closed.select_seq(columns).clear(closing.height).with_columns_seq(_found=pl.lit(False))
        return (
            closing.select_seq(by)
            .join(
                closed.with_columns_seq(_found=pl.lit(True)), on=by, how="left", nulls_equal=True, maintain_order="left"
            )
            .select_seq(*columns, pl.col("_found").fill_null(False))
        )

    def _results(self, parts: list[pl.DataFrame], stream_time: pl.Series, places: pl.DataFrame) -> pl.DataFrame:
        by = list(self.store.key)
        columns = [*by, *self.fold.state, "_ts"]
        states = pl.concat([picked(part, columns) for part in parts if part.height])
        if states.height > 1:
            states = states.sort("window_start", *by[:-2], nulls_last=False)
        return results_of(self.fold, states, self.windows.grace_ms, stream_time, places)


def results_of(
    fold: Fold, states: pl.DataFrame, grace_ms: int, stream_time: pl.Series, places: pl.DataFrame
) -> pl.DataFrame:
    """The ``states`` of windows as results, each with the place of the record that closed it: the first of ``places``
    at whose turn, in ``stream_time``, it was closed."""
    closes_ms = states.get_column("window_end").cast(pl.Int64).to_numpy() + grace_ms
    closer = places[np.searchsorted(stream_time.to_numpy(), closes_ms)]
    gone = repeated("_deleted", False, states.height, np.bool_)
    return fold.finish(states.hstack(closer).hstack([gone]))
