"""Window stores: one row per key and window, found by key and time, expired by stream time.

Keys begin with the window's start, so that closing windows, or reading all windows of a time, is one range. Reading one
key seeks from each start in the store to the next: its cost grows with the number of starts between the bounds (14
microseconds each, measured with a million windows), not with the number of keys. Assigning records to windows belongs
to ``weir.pipelines.operators``; bounds are inclusive, as in Kafka Streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

import polars as pl

from weir.state.stores.access import AFTER_TIMES, HeldRow, Key, Row, Scan, Store, ValueAndTimestamp
from weir.state.stores.codec import TIME_BYTES, time_bytes

V = TypeVar("V")


class WindowKey(NamedTuple):
    """A key and its window, in ms. A window ends before ``end_ms``, a session at it."""

    key: Key
    start_ms: int
    end_ms: int


Entry = tuple[WindowKey, V]


class _WindowRows(Store, Generic[V]):
    """What both window stores share; they differ in how they show a row."""

    def put(self, key: Key, row: Row | None, start_ms: int, timestamp_ms: int | None = None) -> None:
        """Set the row of the key's window that starts at ``start_ms``; None deletes it.

        A window that has expired is dropped and counted; its start advances stream time all the same.

        Raises:
            ValueError: The key is null, or the store's windows have no common size.
            TypeError: The key or row does not have the store's columns.
        """
        if self.spec.window_size_ms is None:
            raise ValueError(f"the windows of store {self.spec.name!r} have no common size; put them with put_rows")
        whole = time_bytes(start_ms) + self._body(key) + time_bytes(start_ms + self.spec.window_size_ms)
        self._advance(start_ms)
        if start_ms < self._from(None):
            self.expired_puts += 1
            return
        held = self.columns.hold([whole])
        if row is None:
            self.columns.delete(held)
        else:
            self.columns.write_bytes(held, [self._pack(row, timestamp_ms)])

    def fetch(self, key: Key, start_ms: int) -> V | None:
        """The row of the key's window that starts at ``start_ms``; None if there is none."""
        body = self._body(key)
        row = next(self._of_key(body, start_ms, start_ms, False), None)
        return None if row is None else self._show(row[1])

    def fetch_between(self, key: Key, from_ms: int | None = None, to_ms: int | None = None) -> Scan[Entry[V]]:
        """The key's windows with starts from ``from_ms`` through ``to_ms``, oldest first; None means no bound."""
        return Scan(self, self._of_key(self._body(key), from_ms, to_ms, False), self._entry)

    def backward_fetch_between(self, key: Key, from_ms: int | None = None, to_ms: int | None = None) -> Scan[Entry[V]]:
        """Like ``fetch_between``, newest first."""
        return Scan(self, self._of_key(self._body(key), from_ms, to_ms, True), self._entry)

    def fetch_keys(
        self, lower: Key | None, upper: Key | None, from_ms: int | None = None, to_ms: int | None = None
    ) -> Scan[Entry[V]]:
        """Windows of the keys from ``lower`` through ``upper``, by start, then key; None means no bound."""
        return Scan(self, self._of_keys(lower, upper, from_ms, to_ms, False), self._entry)

    def backward_fetch_keys(
        self, lower: Key | None, upper: Key | None, from_ms: int | None = None, to_ms: int | None = None
    ) -> Scan[Entry[V]]:
        """Like ``fetch_keys``, newest start first, greatest key first."""
        return Scan(self, self._of_keys(lower, upper, from_ms, to_ms, True), self._entry)

    def fetch_all(self, from_ms: int | None = None, to_ms: int | None = None) -> Scan[Entry[V]]:
        """All windows with starts from ``from_ms`` through ``to_ms``, by start, then key."""
        return Scan(self, self._of_times(from_ms, to_ms, False), self._entry)

    def backward_fetch_all(self, from_ms: int | None = None, to_ms: int | None = None) -> Scan[Entry[V]]:
        """Like ``fetch_all``, newest start first, greatest key first."""
        return Scan(self, self._of_times(from_ms, to_ms, True), self._entry)

    def all(self) -> Scan[Entry[V]]:
        """All windows, by start, then key."""
        return self.fetch_all()

    def backward_all(self) -> Scan[Entry[V]]:
        """All windows, newest start first, greatest key first."""
        return self.backward_fetch_all()

    def get_rows(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Rows aligned with ``keys`` (all key columns): the key columns, value columns, ``_ts``, ``_found``."""
        rows = self.columns.fetch(self.columns.encode(keys))
        keys = keys.select_seq(self.spec.key.names())
        live = keys.get_column("window_start").dt.timestamp("ms") >= self._from(None)
        rows = rows.with_columns_seq(pl.when(live).then(pl.col(name)).alias(name) for name in (*self._shown, "_ts"))
        return pl.concat([keys, rows.with_columns_seq(pl.col("_found") & live)], how="horizontal")

    def put_rows(self, rows: pl.DataFrame) -> None:
        """Put rows in order; the last row of a key and window wins: key columns, value columns, ``_ts``."""
        starts = rows.get_column("window_start").dt.timestamp("ms")
        rows = rows.filter(self._admit(starts)).unique(self.spec.key.names(), keep="last", maintain_order=True)
        self.columns.write(self.columns.encode(rows), rows)

    def delete_rows(self, keys: pl.DataFrame) -> None:
        """Delete the windows of ``keys`` (all key columns); absent ones are harmless."""
        self.columns.delete(self.columns.encode(keys))

    def expire(self) -> pl.DataFrame:
        """Delete the windows that have expired and return them, by start, then key. To be called once per epoch."""
        oldest_ms = self._oldest_live_ms()
        rows = [] if oldest_ms is None else list(self._view.scan(self.spec.name, b"", time_bytes(oldest_ms)))
        expired = self.frame_of(rows)
        self.columns.delete([key for key, _ in rows])
        return expired

    def _show(self, value: bytes) -> V:
        raise NotImplementedError

    def _entry(self, held: bytes, value: bytes) -> Entry[V]:
        key, (start_ms, end_ms) = self._key_of(self._whole(held))
        return WindowKey(key, start_ms, end_ms), self._show(value)

    def _of_times(self, from_ms: int | None, to_ms: int | None, reverse: bool) -> Iterator[HeldRow]:
        upper = None if to_ms is None else time_bytes(to_ms + 1)
        return self._view.scan(self.spec.name, time_bytes(self._from(from_ms)), upper, reverse=reverse)

    def _of_key(self, body: bytes, from_ms: int | None, to_ms: int | None, reverse: bool) -> Iterator[HeldRow]:
        for start in self._starts(from_ms, to_ms, reverse):
            yield from self._range(start + body, start + body + AFTER_TIMES, reverse)

    def _of_keys(
        self, lower: Key | None, upper: Key | None, from_ms: int | None, to_ms: int | None, reverse: bool
    ) -> Iterator[HeldRow]:
        first = b"" if lower is None else self._body(lower)
        last = None if upper is None else self._body(upper) + AFTER_TIMES
        for start in self._starts(from_ms, to_ms, reverse):
            end = _next_start(start) if last is None else start + last
            yield from self._range(start + first, end, reverse)

    def _starts(self, from_ms: int | None, to_ms: int | None, reverse: bool) -> Iterator[bytes]:
        """The starts in the store between the bounds, each found by one seek."""
        lower, upper = time_bytes(self._from(from_ms)), None if to_ms is None else time_bytes(to_ms + 1)
        while upper is None or lower < upper:
            row = self._view.first(self.spec.name, lower, upper, reverse=reverse)
            if row is None:
                return
            start = row[0][:TIME_BYTES]
            yield start
            if reverse:
                upper = start
            else:
                lower = _next_start(start)


class WindowStore(_WindowRows[Row]):
    """One row per key and window."""

    def _show(self, value: bytes) -> Row:
        return self._unpack(value).value


class TimestampedWindowStore(_WindowRows[ValueAndTimestamp]):
    """One row per key and window, shown with the timestamp that it was put with."""

    def _show(self, value: bytes) -> ValueAndTimestamp:
        return self._unpack(value)


def _next_start(start: bytes) -> bytes:
    return (int.from_bytes(start, "big") + 1).to_bytes(TIME_BYTES, "big")
