"""Window stores of processors: one value per key and window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import polars as pl

from weir.pipelines.arguments import positive_ms
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.functions import Windowed
from weir.pipelines.processors.stores import DeclaredStore, Opened, types_of
from weir.pipelines.processors.times import as_ms, as_time, bound_ms
from weir.pipelines.serdes.row_type import RowType
from weir.state.stores.specs import TIME, window_spec
from weir.state.stores.window import WindowKey
from weir.state.stores.window import WindowStore as StateWindowStore
from weir.state.types import StoreSpec

K = TypeVar("K")
V = TypeVar("V")
BOUNDS = ("window_start", "window_end")


@dataclass(frozen=True)
class WindowStore(DeclaredStore):
    """One value per key and window of ``size``, found by the window's start.

    A window lives for ``retention`` of the store's stream time from its start; that is the latest start that was put.
    Types are as in ``KeyValueStore``.
    """

    name: str
    key: Any
    value: Any
    size: timedelta
    retention: timedelta

    def types(self) -> tuple[RowType, RowType]:
        return types_of(self.name, self.key, self.value, *BOUNDS)

    def spec(self) -> StoreSpec:
        key, value = self.types()
        size_ms = positive_ms(self.size, f"store {self.name!r}: size")
        retention_ms = positive_ms(self.retention, f"store {self.name!r}: retention")
        if retention_ms < size_ms:
            raise TopologyError(
                f"store {self.name!r} keeps windows of {self.size} for {self.retention}; keep them for at least their "
                "size"
            )
        return self.applied(
            window_spec(self.name, key.columns, value.columns, size_ms=size_ms, retention_ms=retention_ms)
        )

    def opened(self, now_ms: Callable[[], int | None]) -> OpenWindowStore[Any, Any]:
        return OpenWindowStore(self.spec(), StateWindowStore, *self.types(), now_ms)


class OpenWindowStore(Opened[StateWindowStore], Generic[K, V]):
    """A window store in a processor's hands: it reads its own writes, which belong to the epoch.

    Windows are found by their start; bounds are inclusive, None means none, and results are ordered by start, then key.
    """

    def put(self, key: K, value: V | None, window_start: datetime) -> None:
        """Set the value of a window; None deletes it. An expired window is dropped and counted.

        Raises:
            ValueError: The key is null.
            TypeError: The key or value does not fit the store's types.
        """
        self._open.put(self._of(key), self._row(value), as_ms(window_start), self._now_ms())

    def fetch(self, key: K, window_start: datetime) -> V | None:
        """The value of the key's window that starts then; None if there is none."""
        row = self._open.fetch(self._of(key), as_ms(window_start))
        return None if row is None else self._item(row)

    def fetch_between(
        self, key: K, earliest: datetime | None = None, latest: datetime | None = None
    ) -> Iterator[tuple[Windowed, V]]:
        """The key's windows that start from ``earliest`` through ``latest``."""
        return self._entries(self._open.fetch_between(self._of(key), bound_ms(earliest), bound_ms(latest)))

    def backward_fetch_between(
        self, key: K, earliest: datetime | None = None, latest: datetime | None = None
    ) -> Iterator[tuple[Windowed, V]]:
        """Like ``fetch_between``, the latest first."""
        return self._entries(self._open.backward_fetch_between(self._of(key), bound_ms(earliest), bound_ms(latest)))

    def fetch_keys(
        self, lower: K | None, upper: K | None, earliest: datetime | None = None, latest: datetime | None = None
    ) -> Iterator[tuple[Windowed, V]]:
        """The windows of the keys from ``lower`` through ``upper`` that start from ``earliest`` through ``latest``."""
        keys = self._bound(lower), self._bound(upper)
        return self._entries(self._open.fetch_keys(*keys, bound_ms(earliest), bound_ms(latest)))

    def backward_fetch_keys(
        self, lower: K | None, upper: K | None, earliest: datetime | None = None, latest: datetime | None = None
    ) -> Iterator[tuple[Windowed, V]]:
        """Like ``fetch_keys``, in reverse."""
        keys = self._bound(lower), self._bound(upper)
        return self._entries(self._open.backward_fetch_keys(*keys, bound_ms(earliest), bound_ms(latest)))

    def fetch_all(
        self, earliest: datetime | None = None, latest: datetime | None = None
    ) -> Iterator[tuple[Windowed, V]]:
        """The windows of all keys that start from ``earliest`` through ``latest``."""
        return self._entries(self._open.fetch_all(bound_ms(earliest), bound_ms(latest)))

    def backward_fetch_all(
        self, earliest: datetime | None = None, latest: datetime | None = None
    ) -> Iterator[tuple[Windowed, V]]:
        """Like ``fetch_all``, in reverse."""
        return self._entries(self._open.backward_fetch_all(bound_ms(earliest), bound_ms(latest)))

    def all(self) -> Iterator[tuple[Windowed, V]]:
        """All windows."""
        return self.fetch_all()

    def backward_all(self) -> Iterator[tuple[Windowed, V]]:
        """All windows, in reverse."""
        return self.backward_fetch_all()

    def get_rows(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Rows aligned with ``keys``, which has the key columns and ``window_start``: these, ``window_end``, value
        columns, ``_ts`` (Int64, ms), ``_found``."""
        return self._open.get_rows(self._bounded(keys))

    def fetch_all_rows(self, earliest: datetime | None = None, latest: datetime | None = None) -> pl.DataFrame:
        """``fetch_all`` as columns: key columns, ``window_start``, ``window_end``, value columns and ``_ts`` (Int64,
        ms)."""
        return self._open.fetch_all(bound_ms(earliest), bound_ms(latest)).frame()

    def put_rows(self, rows: pl.DataFrame) -> None:
        """Put windows in order: key columns, ``window_start`` (in UTC), value columns, ``_ts`` (Int64, ms)."""
        self._open.put_rows(self._bounded(rows))

    def delete_rows(self, keys: pl.DataFrame) -> None:
        """Delete the windows of ``keys`` (key columns, ``window_start``); absent ones are harmless."""
        self._open.delete_rows(self._bounded(keys))

    def _bounded(self, rows: pl.DataFrame) -> pl.DataFrame:
        start = pl.col("window_start").cast(TIME)
        return rows.with_columns_seq(start, window_end=start + pl.duration(milliseconds=self._spec.window_size_ms))

    def _entries(self, found: Iterable[tuple[WindowKey, Any]]) -> Iterator[tuple[Windowed, V]]:
        return ((windowed(self._key_item(each.key), each), self._item(row)) for each, row in found)


def windowed(key: Any, found: WindowKey) -> Windowed:
    """The key of a window or session as programs see it."""
    return Windowed(key, as_time(found.start_ms), as_time(found.end_ms))
