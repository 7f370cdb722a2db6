"""Session stores: one row per key and session ``[start, end]``, both ends inclusive, expired by stream time.

Keys are ordered by key, then the session's end, then its start, so that a key's sessions that end late enough are one
range; what has ended by a given time is found through ``weir.state.stores.expiry``. Merging sessions belongs to
``weir.pipelines.operators``; bounds are those of Kafka Streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, compress

import numpy as np
import polars as pl

from weir.state.engine.contract import StateView
from weir.state.frames import where
from weir.state.stores.access import AFTER_TIMES, HeldRow, Key, Row, Scan, Store, StoreTime
from weir.state.stores.codec import TIME_BYTES, time_bytes
from weir.state.stores.expiry import ExpiryIndex
from weir.state.stores.window import WindowKey
from weir.state.types import StoreSpec

Entry = tuple[WindowKey, Row]


class SessionStore(Store):
    """One row per key and session. A session has expired once its end is ``retention_ms`` before stream time."""

    def __init__(self, spec: StoreSpec, view: StateView, time: StoreTime | None = None) -> None:
        super().__init__(spec, view, time)
        self._index = ExpiryIndex(spec, view)
        self._known: set[bytes] = set()
        """Sessions that ``find_rows`` has found: they are in the index."""

    def put(self, key: Key, row: Row | None, start_ms: int, end_ms: int, timestamp_ms: int | None = None) -> None:
        """Set the row of a session; None removes it. A session that has expired is dropped and counted.

        Raises:
            ValueError: The key is null, or the session ends before it starts.
            TypeError: The key or row does not have the store's columns.
        """
        if end_ms < start_ms:
            raise ValueError(f"store {self.spec.name!r}: a session from {start_ms} cannot end at {end_ms}")
        (held,) = self.columns.hold([self._session(key, start_ms, end_ms)])
        self._advance(end_ms)
        if end_ms < self._from(None):
            self.expired_puts += 1
        elif row is None:
            self._drop([(held, end_ms)])
        else:
            self._index.put([(held, end_ms)])
            self.columns.write_bytes([held], [self._pack(row, timestamp_ms)])

    def remove(self, key: Key, start_ms: int, end_ms: int) -> None:
        """Remove a session; an absent one is harmless."""
        (held,) = self.columns.hold([self._session(key, start_ms, end_ms)])
        self._drop([(held, end_ms)])

    def fetch_session(self, key: Key, start_ms: int, end_ms: int) -> Row | None:
        """The row of one session; None if there is none."""
        _, value = self._get(self._session(key, start_ms, end_ms))
        return None if value is None or end_ms < self._from(None) else self._unpack(value).value

    def fetch(self, key: Key) -> Scan[Entry]:
        """All sessions of a key, by end, then start."""
        return self.find_sessions(key, None, None)

    def backward_fetch(self, key: Key) -> Scan[Entry]:
        """All sessions of a key, the one that ends last first."""
        return self.backward_find_sessions(key, None, None)

    def fetch_keys(self, lower: Key | None, upper: Key | None) -> Scan[Entry]:
        """All sessions of the keys from ``lower`` through ``upper``, by key, end, start; None means no bound."""
        return self.find_sessions_of_keys(lower, upper, None, None)

    def backward_fetch_keys(self, lower: Key | None, upper: Key | None) -> Scan[Entry]:
        """Like ``fetch_keys``, greatest key first."""
        return self.backward_find_sessions_of_keys(lower, upper, None, None)

    def find_sessions(self, key: Key, earliest_end_ms: int | None, latest_start_ms: int | None) -> Scan[Entry]:
        """The key's sessions that end at ``earliest_end_ms`` or later and start at ``latest_start_ms`` or earlier.

        Ordered by end, then start. None means no bound.
        """
        return self._scan(self._of_key(self._body(key), earliest_end_ms, False), earliest_end_ms, latest_start_ms)

    def backward_find_sessions(self, key: Key, earliest_end_ms: int | None, latest_start_ms: int | None) -> Scan[Entry]:
        """Like ``find_sessions``, the one that ends last first."""
        return self._scan(self._of_key(self._body(key), earliest_end_ms, True), earliest_end_ms, latest_start_ms)

    def find_sessions_of_keys(
        self, lower: Key | None, upper: Key | None, earliest_end_ms: int | None, latest_start_ms: int | None
    ) -> Scan[Entry]:
        """``find_sessions`` for the keys from ``lower`` through ``upper``, by key, end, start; None means no bound."""
        return self._scan(self._of_keys(lower, upper, False), earliest_end_ms, latest_start_ms)

    def backward_find_sessions_of_keys(
        self, lower: Key | None, upper: Key | None, earliest_end_ms: int | None, latest_start_ms: int | None
    ) -> Scan[Entry]:
        """Like ``find_sessions_of_keys``, greatest key first."""
        return self._scan(self._of_keys(lower, upper, True), earliest_end_ms, latest_start_ms)

    def find_ended(self, earliest_end_ms: int | None, latest_end_ms: int) -> Scan[Entry]:
        """Sessions of all keys that end from ``earliest_end_ms`` through ``latest_end_ms``, by end."""
        keys = [key for key, _ in self._index.between(self._from(earliest_end_ms), latest_end_ms)]
        return Scan(self, iter(self._held_rows(keys)), self._entry)

    def find_rows(self, keys: pl.DataFrame) -> pl.DataFrame:
        """``find_sessions`` for many keys at once: key columns, ``earliest_end_ms`` and ``latest_start_ms`` (Int64).

        All columns of the sessions found, and ``_asked`` (UInt32), the index in ``keys`` of the row that asked; in the
        order of ``keys``, then by end and start.
        """
        bounds = keys.with_columns_seq(
            window_end=pl.col("earliest_end_ms").clip(self._from(None)), window_start=pl.lit(-(1 << 62))
        )
        of_keys = [
            list(self._range(lower, lower[: -2 * TIME_BYTES] + AFTER_TIMES))
            for lower in self.columns.whole_keys(bounds)
        ]
        asked = np.repeat(
            np.arange(len(of_keys), dtype=np.uint32), np.fromiter(map(len, of_keys), np.int64, len(of_keys))
        )
        rows = [row for of_key in of_keys for row in of_key]
        self._known.update([key for key, _ in rows])
        found = self.frame_of(rows).hstack([pl.Series("_asked", asked)])
        latest_start_ms = keys.get_column("latest_start_ms")
        if latest_start_ms.null_count():
            latest_start_ms = latest_start_ms.fill_null(1 << 62)
        starts_ms = found.get_column("window_start").cast(pl.Int64).to_numpy()
        return where(found, pl.Series(starts_ms <= latest_start_ms.to_numpy()[asked]))

    def put_rows(self, rows: pl.DataFrame) -> None:
        """Put sessions in order; the last row of a key and session wins: key columns, value columns, ``_ts``."""
        ends = rows.get_column("window_end").dt.timestamp("ms")
        self.write_rows(rows.filter(self._admit(ends)).unique(self.spec.key.names(), keep="last", maintain_order=True))

    def write_rows(self, rows: pl.DataFrame, *, are_lasting: bool = False) -> None:
        """Put distinct sessions, expired or not, without advancing stream time. Columns as for ``put_rows``.

        ``are_lasting`` says that few of them, if any, are removed before they expire.
        """
        keys = self.columns.encode(rows)
        ends_ms = rows.get_column("window_end").dt.timestamp("ms").to_numpy()
        is_new = np.array([key not in self._known for key in keys], np.bool_)
        new, new_ends_ms = list(compress(keys, is_new)), ends_ms[is_new]
        if are_lasting:
            self._index.put_lists(new, new_ends_ms)
        else:
            self._index.put(zip(new, new_ends_ms.tolist(), strict=True))
        self.columns.write(keys, rows)

    def delete_rows(self, keys: pl.DataFrame) -> None:
        """Remove the sessions of ``keys`` (all key columns); absent ones are harmless."""
        self._drop(
            list(
                zip(self.columns.encode(keys), keys.get_column("window_end").dt.timestamp("ms").to_list(), strict=True)
            )
        )

    def expire(self) -> pl.DataFrame:
        """Delete the sessions that have expired and return them, by end. To be called once per epoch."""
        oldest_ms = self._oldest_live_ms()
        due = [] if oldest_ms is None else self._index.between(None, oldest_ms - 1)
        expired = self.frame_of(self._held_rows([key for key, _ in due]))
        self._drop(due)
        return expired

    def forget_expired(self) -> None:
        """Like ``expire``, for callers that do not need the rows."""
        if (oldest_ms := self._oldest_live_ms()) is not None:
            self.columns.delete(sorted(chain(*self._index.take(oldest_ms - 1))))

    def _drop(self, sessions: list[tuple[bytes, int]]) -> None:
        self._index.remove(sessions)
        keys = [key for key, _ in sessions]
        self._known.difference_update(keys)
        self.columns.delete(keys)

    def _session(self, key: Key, start_ms: int, end_ms: int) -> bytes:
        return self._body(key) + time_bytes(end_ms) + time_bytes(start_ms)

    def _entry(self, held: bytes, value: bytes) -> Entry:
        key, (end_ms, start_ms) = self._key_of(self._whole(held))
        return WindowKey(key, start_ms, end_ms), self._unpack(value).value

    def _of_key(self, body: bytes, earliest_end_ms: int | None, reverse: bool) -> Iterator[HeldRow]:
        return self._range(body + time_bytes(self._from(earliest_end_ms)), body + AFTER_TIMES, reverse)

    def _of_keys(self, lower: Key | None, upper: Key | None, reverse: bool) -> Iterator[HeldRow]:
        first = b"" if lower is None else self._body(lower)
        return self._range(first, None if upper is None else self._body(upper) + AFTER_TIMES, reverse)

    def _scan(self, rows: Iterator[HeldRow], earliest_end_ms: int | None, latest_start_ms: int | None) -> Scan[Entry]:
        earliest_ms = self._from(earliest_end_ms)
        inside = (row for row in self._started(rows, latest_start_ms) if self._times_of(row[0])[0] >= earliest_ms)
        return Scan(self, inside, self._entry)

    def _started(self, rows: Iterator[HeldRow], latest_start_ms: int | None) -> Iterator[HeldRow]:
        return (row for row in rows if latest_start_ms is None or self._times_of(row[0])[1] <= latest_start_ms)

    def _times_of(self, held: bytes) -> tuple[int, int]:
        """A session's end and start, from its key."""
        times = self._whole(held)[-2 * TIME_BYTES :]
        sign = 1 << 63
        return (int.from_bytes(times[:TIME_BYTES], "big") - sign, int.from_bytes(times[TIME_BYTES:], "big") - sign)
