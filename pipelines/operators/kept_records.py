"""What one side of a stream-stream join holds, as columns that stay in memory from epoch to epoch while they are few.

Looking for each key in the store takes long where an epoch has many. The store has the same records, and it alone
counts: what is here is forgotten with the task's processors, whenever the store may differ from what they have seen. Of
a store with more than its share of the memory, what is needed is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from weir.pipelines.operators import memory_share
from weir.pipelines.operators.epoch import Epoch
from weir.state.frames import picked, where
from weir.state.stores.key_value import KeyValueStore

ROWS_A_KEY, READ_A_KEY = 256, 32
"""Going through so many rows in memory takes less time than finding a key's rows in the store; and reading so many of
them into memory is soon made up for."""
MOST_PARTS = 64
"""Frames of newer rows become one once there are so many: one for each epoch would take more memory than their rows."""


@dataclass(eq=False)
class KeptRecords:
    """The records of one store in any order, perhaps with some that have expired; None if they are not kept here."""

    rows: pl.DataFrame | None
    _newer: list[pl.DataFrame] = field(default_factory=list)
    """Records written since: apart, so that an epoch with few records does not copy all others."""

    @staticmethod
    def of(store: KeyValueStore, columns: Sequence[str], keys: int, epoch: Epoch) -> pl.DataFrame | None:
        """All records of the store, with these columns; None if it is better to look for ``keys`` keys there."""
        count, name = store.columns.count(), _name(store)
        known = epoch.instances.get(name)
        if count > keys * (READ_A_KEY if known is None else ROWS_A_KEY):
            return None
        if known is None:
            is_little = count <= memory_share.MOST_ROWS
            known = epoch.instances[name] = KeptRecords(_read(store, columns, epoch) if is_little else None)
        assert isinstance(known, KeptRecords)
        return known._settled(store)

    @staticmethod
    def add(store: KeyValueStore, rows: pl.DataFrame, epoch: Epoch) -> None:
        """Keep ``rows``, which are written to ``store``, too, if its records have been read."""
        known = epoch.instances.get(_name(store))
        if isinstance(known, KeptRecords) and known.rows is not None and rows.height:
            known._newer.append(picked(rows, known.rows.columns))
            if len(known._newer) == MOST_PARTS:
                known._newer = [pl.concat(known._newer, rechunk=True)]
                if known._newer[0].height > known.rows.height:
                    known._settled(store)

    def _settled(self, store: KeyValueStore) -> pl.DataFrame | None:
        """All records in one frame, without those that have expired."""
        if self.rows is not None:
            rows = pl.concat([self.rows, *self._newer], rechunk=True) if self._newer else self.rows
            now_ms, retention_ms = store.stream_time_ms, store.spec.retention_ms
            if now_ms is not None and retention_ms is not None:
                rows = where(rows, rows.get_column("_ts") > now_ms - retention_ms)
            is_kept = memory_share.may_keep(self, rows.height, int(rows.estimated_size()))
            self.rows, self._newer = rows if is_kept else None, []
        return self.rows


def _read(store: KeyValueStore, columns: Sequence[str], epoch: Epoch) -> pl.DataFrame | None:
    """The records in the store, unless they are too large."""
    keys, values, size = list[bytes](), list[bytes](), 0
    for key, value in epoch.session.scan(store.spec.name):
        keys.append(key)
        values.append(value)
        size += len(key) + len(value)
        if size > memory_share.MOST_BYTES:
            return None
    return picked(store.columns.decode(keys).hstack(store.columns.rows.decode(values)), columns)


def _name(store: KeyValueStore) -> str:
    return f"_kept:{store.spec.name}"
