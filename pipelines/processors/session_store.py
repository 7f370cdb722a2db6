"""Session stores of processors: one value per key and session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import polars as pl

from weir.pipelines.arguments import positive_ms
from weir.pipelines.operators.functions import Windowed
from weir.pipelines.processors.stores import DeclaredStore, Opened, types_of
from weir.pipelines.processors.times import as_ms, bound_ms
from weir.pipelines.processors.window_store import BOUNDS, windowed
from weir.pipelines.serdes.row_type import RowType
from weir.state.stores.session import SessionStore as StateSessionStore
from weir.state.stores.specs import TIME, session_spec
from weir.state.stores.window import WindowKey
from weir.state.types import StoreSpec

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class SessionStore(DeclaredStore):
    """One value per key and session; the bounds of a session are the times of its first and last record.

    A session lives for ``retention`` of the store's stream time from its end; that is the latest end that was put.
    Types are as in ``KeyValueStore``.
    """

    name: str
    key: Any
    value: Any
    retention: timedelta

    def types(self) -> tuple[RowType, RowType]:
        return types_of(self.name, self.key, self.value, *BOUNDS)

    def spec(self) -> StoreSpec:
        key, value = self.types()
        retention_ms = positive_ms(self.retention, f"store {self.name!r}: retention")
        return self.applied(session_spec(self.name, key.columns, value.columns, retention_ms=retention_ms))

    def opened(self, now_ms: Callable[[], int | None]) -> OpenSessionStore[Any, Any]:
        return OpenSessionStore(self.spec(), StateSessionStore, *self.types(), now_ms)


class OpenSessionStore(Opened[StateSessionStore], Generic[K, V]):
    """A session store in a processor's hands: it reads its own writes, which belong to the epoch.

    A session is a ``Windowed`` with both ends inclusive. Results are ordered by key, then the session's end, then its
    start; None means no bound.
    """

    def put(self, session: Windowed, value: V | None) -> None:
        """Set the value of a session; None removes it. An expired session is dropped and counted.

        Raises:
            ValueError: The key is null, or the session ends before it starts.
            TypeError: The key or value does not fit the store's types.
        """
        key, start_ms, end_ms = self._place(session)
        self._open.put(key, self._row(value), start_ms, end_ms, self._now_ms())

    def remove(self, session: Windowed) -> None:
        """Remove a session; an absent one is harmless."""
        self._open.remove(*self._place(session))

    def fetch_session(self, key: K, start: datetime, end: datetime) -> V | None:
        """The value of the session with these bounds; None if there is none."""
        row = self._open.fetch_session(self._of(key), as_ms(start), as_ms(end))
        return None if row is None else self._item(row)

    def fetch(self, key: K) -> Iterator[tuple[Windowed, V]]:
        """All sessions of a key."""
        return self._entries(self._open.fetch(self._of(key)))

    def backward_fetch(self, key: K) -> Iterator[tuple[Windowed, V]]:
        """All sessions of a key, in reverse."""
        return self._entries(self._open.backward_fetch(self._of(key)))

    def fetch_keys(self, lower: K | None, upper: K | None) -> Iterator[tuple[Windowed, V]]:
        """All sessions of the keys from ``lower`` through ``upper``."""
        return self._entries(self._open.fetch_keys(self._bound(lower), self._bound(upper)))

    def find_sessions(
        self, key: K, earliest_end: datetime | None, latest_start: datetime | None
    ) -> Iterator[tuple[Windowed, V]]:
        """The key's sessions that end at ``earliest_end`` or later and start at ``latest_start`` or earlier.

        With a record's time less the gap, and that time plus the gap, these are the sessions that it joins.
        """
        return self._entries(self._open.find_sessions(self._of(key), bound_ms(earliest_end), bound_ms(latest_start)))

    def backward_find_sessions(
        self, key: K, earliest_end: datetime | None, latest_start: datetime | None
    ) -> Iterator[tuple[Windowed, V]]:
        """Like ``find_sessions``, in reverse."""
        found = self._open.backward_find_sessions(self._of(key), bound_ms(earliest_end), bound_ms(latest_start))
        return self._entries(found)

    def find_ended(self, earliest_end: datetime | None, latest_end: datetime) -> Iterator[tuple[Windowed, V]]:
        """The sessions of all keys that end from ``earliest_end`` through ``latest_end``, by end."""
        return self._entries(self._open.find_ended(bound_ms(earliest_end), as_ms(latest_end)))

    def find_rows(self, keys: pl.DataFrame) -> pl.DataFrame:
        """``find_sessions`` for many keys at once: key columns, ``earliest_end_ms`` and ``latest_start_ms`` (Int64).

        Key columns, ``window_start``, ``window_end``, value columns, ``_ts`` (Int64, ms), and ``_asked`` (UInt32), the
        index in ``keys`` of the row that asked.
        """
        return self._open.find_rows(keys)

    def put_rows(self, rows: pl.DataFrame) -> None:
        """Put sessions in order: key columns, ``window_start``, ``window_end`` (in UTC), value columns, ``_ts`` (Int64,
        ms)."""
        self._open.put_rows(rows.with_columns_seq(pl.col(*BOUNDS).cast(TIME)))

    def delete_rows(self, keys: pl.DataFrame) -> None:
        """Remove the sessions of ``keys`` (key columns, ``window_start``, ``window_end``)."""
        self._open.delete_rows(keys.with_columns_seq(pl.col(*BOUNDS).cast(TIME)))

    def _place(self, session: Windowed) -> tuple[Any, int, int]:
        if not isinstance(session, Windowed):
            raise TypeError(f"store {self._spec.name!r} got the session {session!r}; pass a Windowed(key, start, end)")
        return self._of(session.key), as_ms(session.window_start), as_ms(session.window_end)

    def _entries(self, found: Iterable[tuple[WindowKey, Any]]) -> Iterator[tuple[Windowed, V]]:
        return ((windowed(self._key_item(each.key), each), self._item(row)) for each, row in found)
