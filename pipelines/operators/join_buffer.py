"""Records of a stream that wait for the table they join until the table is known as of their time (KIP-923)."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.fold import PLACE
from weir.pipelines.operators.idle import NOWHERE
from weir.pipelines.serdes.shapes import TIME
from weir.state.frames import without
from weir.state.stores.codec import PRESENT, time_bytes
from weir.state.stores.typed import TypedStore
from weir.state.types import StoreSpec


@dataclass(frozen=True, kw_only=True)
class JoinBuffer:
    """Holds records until stream time is their timestamp plus ``grace_ms``; releases them by time, key and number.

    Records that are already older are released at once, and so are those without key or value, which have nothing to
    wait for. Stream time is that of the records that wait. Rows keep their ``_ts``; ``_partition`` and ``_offset`` are
    those of the record that released them.
    """

    store: StoreSpec
    """The waiting records, by time (``_at``), key and number (``_seq``)."""
    grace_ms: int

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        key = self.store.key.names()[1:-1]
        waits = rows.select_seq(pl.any_horizontal(pl.col(key).is_not_null()) & ~pl.col("_deleted")).to_series()
        columns, own_turns = rows.columns, waits.arg_true().cast(pl.Int64)
        rows = rows.with_columns_seq(_turn=pl.int_range(pl.len(), dtype=pl.Int64))
        arrived = rows.filter(waits)
        if arrived.is_empty():
            return without(rows, "_turn")
        count = f"_rows:{self.store.name}"
        first = epoch.clocks.get(count, 0)
        epoch.clocks[count] = first + arrived.height
        stream_time = epoch.advance(self.store.name, arrived.get_column("_ts"))
        arrived = arrived.with_columns_seq(
            pl.col("_ts").cast(TIME).alias("_at"), _seq=first + pl.int_range(pl.len(), dtype=pl.Int64)
        )
        in_time = arrived.get_column("_ts") >= stream_time - self.grace_ms
        store = TypedStore(self.store, epoch.session)
        due = self._take_due(store, int(stream_time[-1])).with_columns_seq(_turn=pl.lit(-1, pl.Int64))
        names = [*self.store.key, *self.store.value, "_ts", "_turn"]
        every = pl.concat([due.select_seq(names), arrived.filter(in_time).select_seq(names)])
        at = stream_time.search_sorted(every.get_column("_ts") + self.grace_ms, side="left")
        turns = own_turns.append(pl.Series([rows.height], dtype=pl.Int64)).gather(at)  # the last means not yet
        every = every.with_columns_seq(pl.max_horizontal("_turn", turns.alias("_at_turn")).alias("_turn"))
        stays = every.filter(pl.col("_turn") == rows.height)
        store.write(store.encode(stays), stays)
        goes = every.filter(pl.col("_turn") < rows.height)
        goes = goes.hstack(rows.select_seq(PLACE)[goes.get_column("_turn")]).with_columns_seq(_deleted=pl.lit(False))
        at_once = [rows.filter(~waits).with_columns_seq(_seq=pl.lit(None, pl.Int64)), arrived.filter(~in_time)]
        names = [*columns, "_turn", "_seq"]
        gone = pl.concat([part.select_seq(names) for part in (goes, *at_once)])
        return gone.sort("_turn", "_ts", *key, "_seq").select_seq(columns)

    @property
    def clock(self) -> str:
        return self.store.name

    def next_close_ms(self, epoch: Epoch) -> int | None:
        oldest = epoch.session.first(self.store.name)
        if oldest is None:
            return None
        times = TypedStore(self.store, epoch.session).decode([oldest[0]]).get_column("_at")
        return int(times.dt.timestamp("ms")[0]) + self.grace_ms

    def close(self, before_ms: int, epoch: Epoch) -> pl.DataFrame | None:
        """The records that are due."""
        due = self._take_due(TypedStore(self.store, epoch.session), epoch.clocks[self.store.name])
        if due.is_empty():
            return None
        key = self.store.key.names()[1:-1]
        due = due.sort("_at", *key, "_seq")  # long keys are not in order in the store
        return (
            due.select_seq(*key, *self.store.value, "_ts")
            .hstack(NOWHERE[[0] * due.height])
            .with_columns_seq(_deleted=pl.lit(False))
        )

    def _take_due(self, store: TypedStore, stream_time_ms: int) -> pl.DataFrame:
        """Remove the records that have waited long enough, in the order in which they are released."""
        keys, rows = store.scan(b"", PRESENT + time_bytes(stream_time_ms - self.grace_ms + 1))
        due = store.decode(keys).hstack(rows)
        store.delete(keys)
        return due
