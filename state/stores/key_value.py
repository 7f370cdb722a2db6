"""Key-value stores: one row per key, ranges in key order, and rows that expire some time after their last write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import compress
from typing import Any, Generic, TypeVar

import numpy as np
import polars as pl

from weir.state.engine.contract import StateView
from weir.state.frames import in_order, picked, repeated, where, with_series
from weir.state.stores.access import HeldRow, Key, Row, Scan, Store, StoreTime, ValueAndTimestamp, successor
from weir.state.stores.codec import AFTER_FLAGS
from weir.state.stores.expiry import ExpiryIndex
from weir.state.stores.specs import TIME, WRITTEN
from weir.state.types import StoreClock, StoreSpec

V = TypeVar("V")
Entry = tuple[Key, V]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _KeyValueRows(Store, Generic[V]):
    """What both key-value stores share; they differ in how they show a row."""

    def __init__(self, spec: StoreSpec, view: StateView, time: StoreTime | None = None) -> None:
        super().__init__(spec, view, time)
        self._index = ExpiryIndex(spec, view)

    def get(self, key: Key) -> V | None:
        """The row of ``key``; None if there is none or it has expired."""
        _, value = self._live(key)
        return None if value is None else self._show(value)

    def put(self, key: Key, row: Row | None, timestamp_ms: int | None = None) -> None:
        """Set the row of ``key``; None deletes it. A row that has already expired is dropped and counted.

        Raises:
            ValueError: The key is null, or the store expires by stream time and no timestamp is given.
            TypeError: The key or row does not have the store's columns.
        """
        if row is None:
            self._delete(key)
            return
        body = self._body(key)
        if self.spec.retention_ms is None:
            self.columns.write_bytes([self._short(body)], [self._pack(row, timestamp_ms)])
            return
        held, old = self._get(body)
        bookkeeping: dict[str, Any] = {}
        if self.spec.expires_by is StoreClock.WALL_CLOCK:
            bookkeeping[WRITTEN] = _EPOCH + timedelta(milliseconds=self.time.now_ms)
        else:
            if timestamp_ms is None:
                raise ValueError(f"rows of store {self.spec.name!r} expire by stream time; put them with a timestamp")
            self._advance(timestamp_ms)
            oldest_ms = self._oldest_live_ms()
            if oldest_ms is not None and timestamp_ms < oldest_ms:
                self.expired_puts += 1
                return
        value = self._pack(row, timestamp_ms, **bookkeeping)
        if old is not None:
            self._index.remove([(held, self._time_of(old))])
        self._index.put([(held, self._time_of(value))])
        self.columns.write_bytes([held], [value])

    def put_if_absent(self, key: Key, row: Row | None, timestamp_ms: int | None = None) -> V | None:
        """Return the existing row, or else put ``row`` and return None."""
        found = self.get(key)
        if found is None:
            self.put(key, row, timestamp_ms)
        return found

    def put_all(self, entries: Iterable[tuple[Key, Row | None]], timestamp_ms: int | None = None) -> None:
        """Put rows in order, all with the same timestamp."""
        for key, row in entries:
            self.put(key, row, timestamp_ms)

    def delete(self, key: Key) -> V | None:
        """Delete the row of ``key`` and return it."""
        found = self.get(key)
        self._delete(key)
        return found

    def range(self, lower: Key | None = None, upper: Key | None = None) -> Scan[Entry[V]]:
        """Rows with keys from ``lower`` through ``upper``, both inclusive, in key order; None means no bound."""
        return self._between(lower, upper, False)

    def reverse_range(self, lower: Key | None = None, upper: Key | None = None) -> Scan[Entry[V]]:
        """Like ``range``, greatest key first."""
        return self._between(lower, upper, True)

    def all(self) -> Scan[Entry[V]]:
        """All rows, in key order."""
        return self._between(None, None, False)

    def reverse_all(self) -> Scan[Entry[V]]:
        """All rows, greatest key first."""
        return self._between(None, None, True)

    def prefix_scan(self, prefix: Key) -> Scan[Entry[V]]:
        """Rows whose key begins with ``prefix``: values of the first key columns, as a tuple if there are several.

        The last of them, if it is text, may be a prefix of its column's value; the others must match in full.
        """
        start = self._keys.prefix(prefix if isinstance(prefix, tuple) else (prefix,))
        return self._scan(self._range(start, successor(start)))

    def get_rows(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Rows aligned with ``keys``: key columns, value columns, ``_ts``, ``_found``; null where not found."""
        rows = self.columns.fetch(self.columns.encode(keys))
        oldest_ms = self._oldest_live_ms()
        if oldest_ms is not None:
            live = self._times(rows) >= oldest_ms
            rows = rows.with_columns_seq(pl.when(live).then(pl.col(name)).alias(name) for name in (*self._shown, "_ts"))
            rows = rows.with_columns_seq(pl.col("_found") & live.fill_null(False))
        return picked(keys, self.spec.key.names()).hstack(picked(rows, (*self._shown, "_ts", "_found")))

    def get_ranges(self, lower: pl.DataFrame, upper: pl.DataFrame) -> pl.DataFrame:
        """Rows with keys from each of ``lower`` up to, but not including, the one in the same row of ``upper``.

        Key columns, value columns, ``_ts``; includes expired rows that are not deleted yet.
        """
        bounds = zip(self.columns.whole_keys(lower), self.columns.whole_keys(upper), strict=True)
        return self.frame_of([row for first, end in bounds for row in self._range(first, end)])

    def get_prefixed(self, prefixes: pl.DataFrame) -> pl.DataFrame:
        """Rows whose first key columns (not all of them) equal those of a row of ``prefixes``.

        Key columns, value columns, ``_ts``, in key order for each prefix; includes expired rows that are not deleted
        yet.
        """
        starts = self.columns.prefixes(prefixes)
        return self.frame_of([row for start in starts for row in self._range(start, start + AFTER_FLAGS)])

    def put_rows(self, rows: pl.DataFrame) -> None:
        """Put rows in order; the last row of a key wins. Columns: key columns, value columns, ``_ts`` (Int64, ms).

        If there is a column ``_deleted``, rows where it is true delete their key; they advance stream time, too.
        """
        if "_deleted" not in rows.columns:
            rows = with_series(rows, repeated("_deleted", False, rows.height, np.bool_))
        if self.spec.retention_ms is not None:
            if self.spec.expires_by is StoreClock.WALL_CLOCK:
                rows = rows.with_columns_seq(pl.lit(self.time.now_ms).cast(TIME).alias(WRITTEN))
            else:
                rows = rows.filter(self._admit(rows.get_column("_ts")) | pl.col("_deleted"))
        if rows.height > 1:
            rows = rows.unique(self.spec.key.names(), keep="last", maintain_order=True)
        gone = rows.get_column("_deleted")
        if gone.any() or gone.null_count():
            self.delete_rows(rows.filter(gone))
            rows = rows.filter(~gone)
        keys, order = self.columns.encode_sorted(rows)
        rows = in_order(rows, order)
        if self.spec.retention_ms is not None:
            self._unindex(keys)
            self._index.put(zip(keys, self._times(rows).to_list(), strict=True))
        self.columns.write(keys, rows)

    def get_numbers(self, keys: pl.DataFrame) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Which of ``keys`` have a row, and value columns and ``_ts`` as numbers, times in ms, and 0 for null or no
        row. For stores without expiry whose values all have a fixed width."""
        values = self._view.get_many(self.spec.name, self.columns.encode(keys))
        found = np.fromiter((value is not None for value in values), np.bool_, len(values))
        return found, self.columns.rows.decode_numbers(values)

    def put_numbers(self, keys: pl.DataFrame, columns: Mapping[str, np.ndarray]) -> None:
        """``put_rows`` for distinct keys, and columns as of ``get_numbers``, none of them null."""
        self.columns.write_bytes(self.columns.encode(keys), self.columns.rows.encode_numbers(columns))

    def add_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """``put_rows`` for keys that the store has never had and that nobody deletes, if it expires by stream time.

        Returns the rows that are in time, in any order.
        """
        assert self.spec.retention_ms is not None, "nothing expires"
        rows = where(rows, self._admit(rows.get_column("_ts")))
        keys, order = self.columns.encode_sorted(rows)
        rows = in_order(rows, order)
        self._index.put_lists(keys, rows.get_column("_ts").to_numpy())
        self.columns.write(keys, rows)
        return rows

    def delete_rows(self, keys: pl.DataFrame) -> None:
        """Delete the rows of ``keys``; absent ones are harmless."""
        held = self.columns.encode(keys)
        if self.spec.retention_ms is not None:
            self._unindex(held)
        self.columns.delete(held)

    def expire(self) -> pl.DataFrame:
        """Delete the rows that have expired and return them, oldest first: key columns, value columns, ``_ts``.

        The deletes are part of the epoch, so its commit brings them to the changelog. To be called once per epoch.
        """
        rows, added = self._take_expired()
        rows += self._held_rows(added)
        expired = self.frame_of(rows)
        self.columns.delete([key for key, _ in rows])
        return expired

    def forget_expired(self) -> None:
        """Like ``expire``, for callers that do not need the rows."""
        rows, added = self._take_expired()
        self.columns.delete([key for key, _ in rows] + added)

    def _take_expired(self) -> tuple[list[HeldRow], list[bytes]]:
        """What has expired, and is no longer in the index: the rows that were put, and the keys of those that were
        added, of which some may be gone."""
        if (oldest_ms := self._oldest_live_ms()) is None:
            return [], []
        due, added = self._index.take(oldest_ms - 1)
        if not due:
            return [], added
        rows = self._held_rows(due)
        is_over = self._times(self.columns.rows.decode([value for _, value in rows])) < oldest_ms
        return list(compress(rows, is_over.to_list())), added

    def next_expiry_ms(self) -> int | None:
        """When, by the store's clock, the next row expires; None while none can."""
        if self.spec.retention_ms is None or (oldest_ms := self._index.oldest_ms()) is None:
            return None
        return oldest_ms + self.spec.retention_ms

    def _show(self, value: bytes) -> V:
        raise NotImplementedError

    def _entry(self, held: bytes, value: bytes) -> Entry[V]:
        return self._key_of(self._whole(held))[0], self._show(value)

    def _between(self, lower: Key | None, upper: Key | None, reverse: bool) -> Scan[Entry[V]]:
        first = b"" if lower is None else self._body(lower)
        end = None if upper is None else self._body(upper) + b"\x00"
        return self._scan(self._range(first, end, reverse))

    def _scan(self, rows: Iterator[HeldRow]) -> Scan[Entry[V]]:
        oldest_ms = self._oldest_live_ms()
        if oldest_ms is not None:
            rows = ((key, value) for key, value in rows if self._time_of(value) >= oldest_ms)
        return Scan(self, rows, self._entry)

    def _live(self, key: Key) -> tuple[bytes, bytes | None]:
        held, value = self._get(self._body(key))
        oldest_ms = self._oldest_live_ms()
        if value is not None and oldest_ms is not None and self._time_of(value) < oldest_ms:
            return held, None
        return held, value

    def _delete(self, key: Key) -> None:
        held, value = self._get(self._body(key))
        if value is not None:
            if self.spec.retention_ms is not None:
                self._index.remove([(held, self._time_of(value))])
            self.columns.delete([held])

    def _unindex(self, keys: list[bytes]) -> None:
        old = self._held_rows(keys)
        times = self._times(self.columns.rows.decode([value for _, value in old]))
        self._index.remove(zip([key for key, _ in old], times.to_list(), strict=True))

    def _time_of(self, value: bytes) -> int:
        """The time that the retention of a row counts from, in ms."""
        columns, ts = self._rows.decode(value)
        if self.spec.expires_by is StoreClock.WALL_CLOCK:
            written: datetime = columns[WRITTEN]
            return (written - _EPOCH) // timedelta(milliseconds=1)
        assert ts is not None  # put refuses others
        return ts

    def _times(self, rows: pl.DataFrame) -> pl.Series:
        if self.spec.expires_by is StoreClock.WALL_CLOCK:
            return rows.get_column(WRITTEN).dt.timestamp("ms")
        return rows.get_column("_ts")


class KeyValueStore(_KeyValueRows[Row]):
    """One row per key."""

    def _show(self, value: bytes) -> Row:
        return self._unpack(value).value


class TimestampedKeyValueStore(_KeyValueRows[ValueAndTimestamp]):
    """One row per key, shown with the timestamp that it was put with."""

    def _show(self, value: bytes) -> ValueAndTimestamp:
        return self._unpack(value)
