"""Suppression until a window closes, standing alone: behind a table that is not the aggregation itself.

A suppression directly behind its aggregation is evaluated with it (``final_results`` beside this).
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from pipelines.operators.epoch import Epoch
from pipelines.operators.fold import PLACE
from pipelines.operators.windows import TimeWindows
from state.stores.typed import TypedStore
from state.types import StoreSpec


@dataclass(frozen=True, kw_only=True)
class WindowCloseSuppression:
    """Buffers the newest update of each window in a store; forwards it once stream time closes the window.

    Tombstones are swallowed. Results are ordered by (window end, key) and keep the ``_ts`` of the buffered
    update; ``_partition`` and ``_offset`` are those of the record that closed the window.
    """

    store: StoreSpec
    windows: TimeWindows

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        by = list(self.store.key)
        stream_time = epoch.advance(self.store.name, rows.get_column("_ts"))
        store = TypedStore(self.store, epoch.session)
        newest = rows.unique(by, keep="last", maintain_order=True)
        gone = newest.filter("_deleted")
        if gone.height:
            store.delete(store.encode(gone.select(by)))
            newest = newest.filter(~pl.col("_deleted"))
        store.write(store.encode(newest.select(by)), newest.select(*self.store.value, "_ts"))
        closed_before = self.windows.closed_before(epoch.clocks[self.store.name])
        keys, states = store.scan(b"", store.window_upper(max(closed_before, 0)))
        if not keys:
            return rows.clear()
        store.delete(keys)
        results = pl.concat([store.decode(keys), states], how="horizontal")
        closers = stream_time.search_sorted(
            results.get_column("window_end").to_physical() + self.windows.grace_ms, side="left")
        return (results.hstack(rows.select(PLACE)[closers])
                .with_columns(pl.lit(False).alias("_deleted"))
                .sort("window_start", *by[:-2]).select(rows.columns))
