"""Versioned stores of processors: the values of a key, each with the time from which it is valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

import polars as pl

from weir.pipelines.arguments import positive_ms
from weir.pipelines.processors.stores import DeclaredStore, Opened, types_of
from weir.pipelines.processors.times import as_ms, as_time, bound_ms
from weir.pipelines.serdes.row_type import RowType
from weir.state.stores.specs import VALID_FROM, versioned_spec
from weir.state.stores.versioned import NOT_PUT, VALID_TO_UNDEFINED, VersionedRow
from weir.state.stores.versioned import VersionedStore as StateVersionedStore
from weir.state.types import StoreSpec

K = TypeVar("K")
V = TypeVar("V")


class VersionedRecord(NamedTuple, Generic[V]):
    """A value that is valid from ``timestamp`` until ``valid_to``; None means until a newer one is put."""

    value: V
    timestamp: datetime
    valid_to: datetime | None


@dataclass(frozen=True)
class VersionedKeyValueStore(DeclaredStore):
    """The values of each key as of any time.

    A value that was replaced stays for ``history_retention`` of the store's stream time, and a put may be that late;
    stream time is the latest that was put. Types are as in ``KeyValueStore``.
    """

    name: str
    key: Any
    value: Any
    history_retention: timedelta

    def types(self) -> tuple[RowType, RowType]:
        return types_of(self.name, self.key, self.value, VALID_FROM)

    def spec(self) -> StoreSpec:
        key, value = self.types()
        history_ms = positive_ms(self.history_retention, f"store {self.name!r}: history_retention")
        return self.applied(versioned_spec(self.name, key.columns, value.columns, history_ms=history_ms))

    def opened(self, now_ms: Callable[[], int | None]) -> OpenVersionedKeyValueStore[Any, Any]:
        return OpenVersionedKeyValueStore(self.spec(), StateVersionedStore, *self.types(), now_ms)


class OpenVersionedKeyValueStore(Opened[StateVersionedStore], Generic[K, V]):
    """A versioned store in a processor's hands: it reads its own writes, which belong to the epoch."""

    def put(self, key: K, value: V | None, timestamp: datetime) -> VersionedRecord[V | None] | None:
        """Add a value that is valid from ``timestamp``, or replace the one that begins then; None deletes the key from
        then on.

        Returns it with the time until which it is valid, or None if it is older than the history; such puts are
        dropped and counted.

        Raises:
            ValueError: The key is null.
            TypeError: The key or value does not fit the store's types.
        """
        valid_to_ms = self._open.put(self._of(key), self._row(value), as_ms(timestamp))
        if valid_to_ms == NOT_PUT:
            return None
        return VersionedRecord(value, timestamp, None if valid_to_ms == VALID_TO_UNDEFINED else as_time(valid_to_ms))

    def get(self, key: K, as_of: datetime | None = None) -> VersionedRecord[V] | None:
        """The newest value, or the one that was valid at ``as_of``; None if there was none.

        For times before the history, only a value that is the newest of its key is found.
        """
        return self._record(self._open.get(self._of(key), bound_ms(as_of)))

    def delete(self, key: K, timestamp: datetime) -> VersionedRecord[V] | None:
        """Delete the key from ``timestamp`` on, and return what was valid then; None if that is older than the
        history."""
        return self._record(self._open.delete(self._of(key), as_ms(timestamp)))

    def versions(
        self, key: K, earliest: datetime | None = None, latest: datetime | None = None, *, oldest_first: bool = False
    ) -> Iterator[VersionedRecord[V]]:
        """The values that were valid at some time from ``earliest`` through ``latest``, newest first."""
        found = self._open.versions(self._of(key), bound_ms(earliest), bound_ms(latest), oldest_first=oldest_first)
        return (self._made(row) for row in found)

    def get_rows(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Rows aligned with ``keys``: key columns, and ``as_of_ms`` (Int64) unless the newest are wanted.

        Key columns, value columns, ``_ts`` (Int64, ms), which is when the value began, and ``_found``.
        """
        return self._open.get_rows(keys)

    def put_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Put values in order: key columns, value columns, ``_ts`` (Int64, ms), from when each is valid, and
        ``_deleted``. Returns those that were put; those older than the history are dropped and counted."""
        return self._open.put_rows(rows)

    def _record(self, row: VersionedRow | None) -> VersionedRecord[V] | None:
        return None if row is None else self._made(row)

    def _made(self, row: VersionedRow) -> VersionedRecord[V]:
        valid_to = None if row.valid_to_ms is None else as_time(row.valid_to_ms)
        return VersionedRecord(self._item(row.value), as_time(row.valid_from_ms), valid_to)
