"""Tables from records: each record is the newest row of its key; a null value deletes the row."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from weir.pipelines.operators.epoch import Epoch, has_key
from weir.state.frames import in_order
from weir.state.stores.access import StoreTime
from weir.state.stores.key_value import KeyValueStore
from weir.state.stores.typed import TypedStore
from weir.state.stores.versioned import VersionedStore
from weir.state.types import StoreSpec


@dataclass(frozen=True, kw_only=True)
class Materialization:
    """Keeps the newest row of each key in a store and forwards every row, tombstones of unknown keys included.

    The order of arrival decides, not the timestamp. Null keys are dropped and counted. If rows of the store expire, a
    record that has already expired is counted as ``expired_records`` and not kept, but still forwarded.
    """

    store: StoreSpec

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        by = list(self.store.key)
        rows = has_key(rows, by, epoch)
        if self.store.retention_ms is not None:
            store = KeyValueStore(self.store, epoch.session, StoreTime(clocks=epoch.clocks, now_ms=epoch.now_ms))
            store.put_rows(rows)
            epoch.note_expired(self.store.name, store.expired_puts)
            return rows
        kept = rows.unique(by, keep="last", maintain_order=True) if rows.height > 1 else rows
        columns = TypedStore(self.store, epoch.session)
        if kept.get_column("_deleted").any():
            columns.delete(columns.encode(kept.filter("_deleted")))
            kept = kept.filter(~pl.col("_deleted"))
        if kept.height:
            keys, order = columns.encode_sorted(kept)
            columns.write(keys, in_order(kept, order))
        return rows


@dataclass(frozen=True, kw_only=True)
class VersionedMaterialization:
    """Keeps the rows of each key with the times from which they are valid, and forwards every row that it keeps.

    A row older than the store's history is neither kept nor forwarded, and counted as ``expired_records``. Null keys
    are dropped and counted (KIP-889, KIP-914).
    """

    store: StoreSpec

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        rows = has_key(rows, self.store.key.names()[:-1], epoch)
        store = VersionedStore(self.store, epoch.session, StoreTime(clocks=epoch.clocks, now_ms=epoch.now_ms))
        kept = store.put_rows(rows)
        epoch.note_expired(self.store.name, store.expired_puts)
        return kept
