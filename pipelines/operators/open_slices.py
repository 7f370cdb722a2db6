"""The stored slices of a task as columns, kept in memory from epoch to epoch as long as they are few.

They are read whenever windows close, most of them many times. The store has the same rows, and it alone counts: what is
here is forgotten with the task's processors, whenever the store may differ from what they have seen. Of a store with
more than its share of the memory, what is needed is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from weir.pipelines.operators import memory_share
from weir.pipelines.operators.epoch import Epoch
from weir.state.frames import parted, picked, where
from weir.state.stores.typed import TypedStore

FEW_ROWS = 1 << 12
"""So many newer rows are kept apart at least before they are put beside the others."""
MOST_PARTS = 64
"""Frames of newer rows become one once there are so many: one for each epoch would take more memory than their rows."""


@dataclass(eq=False)
class OpenSlices:
    """The rows of one store: key columns, state columns, ``_ts``, in any order; None if they are not kept here."""

    rows: pl.DataFrame | None
    _newer: list[pl.DataFrame] = field(default_factory=list)
    """Rows written since, oldest first: apart, so that an epoch with few records does not copy all others."""
    _changed_from_ms: int | None = None
    """The earliest start of those that take the place of others."""

    @staticmethod
    def known(store: TypedStore, epoch: Epoch) -> OpenSlices | None:
        """Those of the task, if they have been read."""
        known = epoch.instances.get(_name(store))
        assert known is None or isinstance(known, OpenSlices)
        return known

    @staticmethod
    def of(store: TypedStore, epoch: Epoch) -> OpenSlices:
        """Those of the task, read if this is the first time."""
        if (known := OpenSlices.known(store, epoch)) is None:
            known = epoch.instances[_name(store)] = OpenSlices(None)
            if memory_share.may_keep(known, store.count()):
                keys, states = store.scan()
                known.rows = store.decode(keys).hstack(states)
        return known

    def take(self, store: TypedStore, before_ms: int, kept_from_ms: int) -> pl.DataFrame:
        """The rows that start before ``before_ms``; those that start before ``kept_from_ms`` are deleted."""
        if (rows := self._settled(store)) is None:
            keys, states = store.scan(b"", store.window_upper(before_ms))
            rows = store.decode(keys).hstack(states)
            store.delete(keys[: int((_starts(rows) < kept_from_ms).sum())])
            return rows
        found = where(rows, _starts(rows) < before_ms)
        self.rows, gone = parted(rows, _starts(rows) >= kept_from_ms)
        store.delete(store.encode_sorted(gone)[0])
        return found

    def put(self, store: TypedStore, rows: pl.DataFrame, is_known: pl.Series) -> None:
        """Keep ``rows``, which are written to ``store``, too; ``is_known`` says which of them replace others."""
        if self.rows is None:
            return
        if is_known.any():
            first_ms = int(_starts(rows).filter(is_known).min())  # type: ignore[arg-type]
            if self._changed_from_ms is None or first_ms < self._changed_from_ms:
                self._changed_from_ms = first_ms
        self._newer.append(picked(rows, self.rows.columns))
        if len(self._newer) == MOST_PARTS:
            self._newer = [pl.concat(self._newer, rechunk=True)]
        if sum(each.height for each in self._newer) > self.rows.height + FEW_ROWS:
            self._settled(store)

    def _settled(self, store: TypedStore) -> pl.DataFrame | None:
        """All rows, each once."""
        if self.rows is not None and self._newer:
            rows = pl.concat([self.rows, *self._newer], rechunk=True)
            if self._changed_from_ms is not None:
                near, others = parted(rows, _starts(rows) >= self._changed_from_ms)
                rows = pl.concat([others, near.unique(store.spec.key.names(), keep="last")], rechunk=True)
            self.rows, self._newer, self._changed_from_ms = rows, [], None
        kept = self.rows
        if kept is not None and not memory_share.may_keep(self, kept.height, int(kept.estimated_size())):
            self.rows = None
        return self.rows


def _name(store: TypedStore) -> str:
    return f"_open:{store.spec.name}"


def _starts(rows: pl.DataFrame) -> pl.Series:
    return rows.get_column("window_start").dt.timestamp("ms")
