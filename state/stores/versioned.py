"""Versioned stores: each key's versions, with the time from which each is valid, readable as of any time.

A version is valid until the next one of its key begins. Keys are ordered by key, then that time, so that finding the
version as of a time takes one seek. A delete is a version too, one that marks the key as deleted. How long versions are
kept and how late a put may arrive is one setting, the history, as in Kafka Streams; the newest version of a key never
expires.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import polars as pl

from weir.state.engine.contract import StateView
from weir.state.stores.access import AFTER_TIMES, HeldRow, Key, Row, Store, StoreTime
from weir.state.stores.codec import TIME_BYTES, time_bytes
from weir.state.stores.expiry import ExpiryIndex
from weir.state.stores.specs import GONE
from weir.state.types import StoreSpec

NOT_PUT = -(1 << 63)
"""What ``put`` returns for a version that is too old to be kept."""
VALID_TO_UNDEFINED = -1
"""What ``put`` returns for a version that is the newest of its key."""


class _Version(NamedTuple):
    """A row as the store holds it, and whether it marks its key as deleted."""

    value: bytes
    is_gone: bool


class _Aged(NamedTuple):
    """Keys as the store holds them, with the times from which their versions' age counted so far and counts now."""

    before: list[tuple[bytes, int]]
    now: list[tuple[bytes, int]]


class VersionedRow(NamedTuple):
    """A row valid in ``[valid_from_ms, valid_to_ms)``; None means until a newer one is put."""

    value: Row
    valid_from_ms: int
    valid_to_ms: int | None


class VersionedStore(Store):
    """Rows by key and time."""

    def __init__(self, spec: StoreSpec, view: StateView, time: StoreTime | None = None) -> None:
        super().__init__(spec, view, time)
        self._index = ExpiryIndex(spec, view)

    def put(self, key: Key, row: Row | None, timestamp_ms: int) -> int:
        """Add a version of ``key`` that is valid from ``timestamp_ms``, replacing one that begins at that time; None
        marks the key as deleted.

        Returns the time until which it is valid, ``VALID_TO_UNDEFINED`` if it is the newest of its key, or ``NOT_PUT``
        if it is older than the history; such puts are counted.

        Raises:
            ValueError: The key is null.
            TypeError: The key or row does not have the store's columns.
        """
        body = self._body(key)
        nothing = dict.fromkeys(self._shown) if row is None else row
        if self._is_too_old(timestamp_ms):
            self.expired_puts += 1
            return NOT_PUT
        self._advance(timestamp_ms)
        return self._insert(
            body, timestamp_ms, _Version(self._pack(nothing, timestamp_ms, **{GONE: row is None}), row is None)
        )

    def get(self, key: Key, as_of_ms: int | None = None) -> VersionedRow | None:
        """The newest version, or the one valid at ``as_of_ms``; None if there is none or it is a deletion.

        For times before the history, only a version that is the newest of its key is found.
        """
        return self._get_as_of(self._body(key), as_of_ms)

    def delete(self, key: Key, timestamp_ms: int) -> VersionedRow | None:
        """Mark the key as deleted from ``timestamp_ms`` on, and return the version that was valid then.

        Returns None, too, if that time is older than the history.
        """
        body = self._body(key)
        found = None if self._is_too_old(timestamp_ms) else self._get_as_of(body, timestamp_ms)
        self.put(key, None, timestamp_ms)
        return found

    def versions(
        self, key: Key, from_ms: int | None = None, to_ms: int | None = None, *, oldest_first: bool = False
    ) -> Iterator[VersionedRow]:
        """Versions valid at some time from ``from_ms`` through ``to_ms``, both inclusive, newest first."""
        body, oldest_ms = self._body(key), self._oldest_live_ms()
        lower = body if from_ms is None else (self._at(body, from_ms) or (body,))[0]
        found, valid_to_ms = [], None
        for held, value in self._range(body, body + AFTER_TIMES, reverse=True):
            whole = self._whole(held)
            valid_from_ms = _time_of(whole)
            is_old = valid_to_ms is not None and oldest_ms is not None and valid_to_ms < oldest_ms
            if whole < lower or is_old:
                break
            if (to_ms is None or valid_from_ms <= to_ms) and not self._is_gone(value):
                found.append(VersionedRow(self._unpack(value).value, valid_from_ms, valid_to_ms))
            valid_to_ms = valid_from_ms
        return iter(reversed(found) if oldest_first else found)

    def get_rows(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Rows aligned with ``keys``: key columns, and ``as_of_ms`` (Int64) unless the newest are wanted.

        Key columns, value columns, ``_ts`` (Int64, ms), which is when the version began, and ``_found``.
        """
        as_of = keys["as_of_ms"].to_list() if "as_of_ms" in keys.columns else [None] * keys.height
        bodies = self._bodies(keys)
        values = [self._value_as_of(body, as_of_ms) for body, as_of_ms in zip(bodies, as_of, strict=True)]
        rows = self.columns.rows.decode(values).select_seq(*self._shown, "_ts")
        found = pl.Series("_found", [value is not None for value in values], dtype=pl.Boolean)
        return pl.concat([keys.select_seq(self._keys.columns.names()), rows.with_columns_seq(found)], how="horizontal")

    def versions_at(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The versions of ``keys`` valid at ``_as_of`` (Int64, ms), or the newest if there is no such column; includes
        deletions, and versions of any age.

        Aligned with ``keys``: value columns, ``_ts`` (Int64, ms), which is when the version began, and ``_gone``; null
        if the key had none.
        """
        as_of = keys["_as_of"].to_list() if "_as_of" in keys.columns else [None] * keys.height
        found = [self._at(body, as_of_ms) for body, as_of_ms in zip(self._bodies(keys), as_of, strict=True)]
        rows = self.columns.rows.decode([None if version is None else version[1] for version in found])
        return rows.select_seq(*self._shown, "_ts", GONE)

    def put_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Put versions in order: key columns, value columns, ``_ts`` (Int64, ms), ``_deleted``.

        Returns those that were put; those older than the history are dropped and counted.
        """
        rows = rows.filter(self._admit(rows["_ts"]))
        values = self.columns.rows.encode(rows.rename({"_deleted": GONE}))
        by_key: dict[bytes, dict[int, _Version]] = {}  # the last version of a key and time wins
        versions_in_order = map(_Version, values, rows["_deleted"].to_list())
        for body, time_ms, version in zip(self._bodies(rows), rows["_ts"].to_list(), versions_in_order, strict=True):
            by_key.setdefault(body, {})[time_ms] = version
        in_order: dict[bytes, tuple[HeldRow | None, list[tuple[int, _Version]]]] = {}
        for body, versions in by_key.items():
            newest = self._at(body, None)
            if newest is None or _time_of(newest[0]) <= min(versions):
                in_order[body] = newest, sorted(versions.items())
            else:
                for time_ms, version in versions.items():
                    self._insert(body, time_ms, version)
        self._append(in_order)
        return rows

    def all_versions(self, keys: pl.DataFrame) -> Iterator[Iterator[HeldRow]]:
        """For each of ``keys``, all its versions as the store holds them: of any age, and deletions too."""
        return (self._range(body, body + AFTER_TIMES) for body in dict.fromkeys(self._bodies(keys)))

    def expire(self) -> pl.DataFrame:
        """Delete versions that were replaced before the history, and return them. To be called once per epoch."""
        oldest_ms = self._oldest_live_ms()
        due = [] if oldest_ms is None else self._index.between(None, oldest_ms - 1)
        expired = self.frame_of(self._held_rows([key for key, _ in due]))
        self._index.remove(due)
        self.columns.delete([key for key, _ in due])
        return expired

    def _append(self, in_order: Mapping[bytes, tuple[HeldRow | None, list[tuple[int, _Version]]]]) -> None:
        """Put, in one go, versions that follow or replace the newest ones of their keys."""
        keys: list[bytes] = []
        versions: list[tuple[int, int | None, _Version]] = []
        aged = _Aged([], [])
        for body, (newest, new) in in_order.items():
            if newest is not None:
                self._end(newest, None, new[0][0], aged)
            keys += [body + time_bytes(time_ms) for time_ms, _ in new]
            ends = [*(time_ms for time_ms, _ in new[1:]), None]
            versions += [(time_ms, end_ms, version) for (time_ms, version), end_ms in zip(new, ends, strict=True)]
        self._write(keys, versions, aged)

    def _insert(self, body: bytes, time_ms: int, version: _Version) -> int:
        """Put a version that is in time."""
        after = self._after(body, time_ms)
        valid_to_ms = None if after is None else _time_of(after[0])
        oldest_ms = self._oldest_live_ms()
        if valid_to_ms is not None and oldest_ms is not None and valid_to_ms < oldest_ms:
            return valid_to_ms  # it would expire at once
        aged = _Aged([], [])
        before = self._at(body, time_ms)
        if before is not None:
            self._end(before, valid_to_ms, time_ms, aged)
        self._write([body + time_bytes(time_ms)], [(time_ms, valid_to_ms, version)], aged)
        return VALID_TO_UNDEFINED if valid_to_ms is None else valid_to_ms

    def _end(self, old: HeldRow, valid_to_ms: int | None, time_ms: int, aged: _Aged) -> None:
        """End, at ``time_ms``, a version that was valid until ``valid_to_ms``: another begins there or replaces it."""
        since_ms, version = _time_of(old[0]), _Version(old[1], self._is_gone(old[1]))
        before_ms = _due_ms(since_ms, valid_to_ms, version)
        due_ms = None if since_ms == time_ms else _due_ms(since_ms, time_ms, version)
        if before_ms != due_ms:
            (held,) = self.columns.hold([old[0]])
            aged.before.extend([] if before_ms is None else [(held, before_ms)])
            aged.now.extend([] if due_ms is None else [(held, due_ms)])

    def _write(self, keys: list[bytes], versions: list[tuple[int, int | None, _Version]], aged: _Aged) -> None:
        """Write versions, each with its start and end, and update when they and the ``aged`` ones expire."""
        held = self.columns.hold(keys)
        due = [
            (key, due_ms)
            for key, version in zip(held, versions, strict=True)
            if (due_ms := _due_ms(*version)) is not None
        ]
        self._index.remove(aged.before)
        self._index.put(aged.now + due)
        self.columns.write_bytes(held, [version.value for _, _, version in versions])

    def _admit(self, times_ms: pl.Series) -> pl.Series:
        """As in other stores, except that a row exactly as old as the history is in time."""
        stream_time = self._move(times_ms)
        if self.spec.retention_ms is None:
            return times_ms.is_not_null()
        in_time = times_ms >= stream_time - self.spec.retention_ms
        self.expired_puts += len(in_time) - int(in_time.sum())
        return in_time

    def _is_too_old(self, time_ms: int) -> bool:
        """Whether a put at this time is older than the history."""
        return (
            self.spec.retention_ms is not None
            and self.stream_time_ms is not None
            and time_ms < self.stream_time_ms - self.spec.retention_ms
        )

    def _get_as_of(self, body: bytes, as_of_ms: int | None) -> VersionedRow | None:
        found = self._at(body, as_of_ms)
        if found is None or self._is_gone(found[1]):
            return None
        valid_from_ms = _time_of(found[0])
        after = None if as_of_ms is None else self._after(body, valid_from_ms)
        if after is not None and as_of_ms is not None and self._is_too_old(as_of_ms):
            return None
        return VersionedRow(self._unpack(found[1]).value, valid_from_ms, None if after is None else _time_of(after[0]))

    def _value_as_of(self, body: bytes, as_of_ms: int | None) -> bytes | None:
        found = self._at(body, as_of_ms)
        if found is None or self._is_gone(found[1]):
            return None
        if as_of_ms is not None and self._is_too_old(as_of_ms) and self._after(body, _time_of(found[0])) is not None:
            return None
        return found[1]

    def _at(self, body: bytes, as_of_ms: int | None) -> HeldRow | None:
        """Whole key and value of the version valid at a time; None: the newest."""
        upper = body + (AFTER_TIMES if as_of_ms is None else time_bytes(as_of_ms + 1))
        return self._first_of(body, upper, reverse=True)

    def _after(self, body: bytes, time_ms: int) -> HeldRow | None:
        """Whole key and value of the first version that begins later."""
        return self._first_of(body + time_bytes(time_ms + 1), body + AFTER_TIMES, reverse=False)

    def _first_of(self, lower: bytes, upper: bytes, reverse: bool) -> HeldRow | None:
        row = self._first(lower, upper, reverse)
        return None if row is None else (self._whole(row[0]), row[1])

    def _is_gone(self, value: bytes) -> bool:
        return bool(self._rows.decode(value)[0][GONE])

    def _bodies(self, keys: pl.DataFrame) -> list[bytes]:
        wanted = keys.with_columns_seq(valid_from=pl.lit(0))
        return [key[:-TIME_BYTES] for key in self.columns.whole_keys(wanted)]


def _time_of(key: bytes) -> int:
    return int.from_bytes(key[-TIME_BYTES:], "big") - (1 << 63)


def _due_ms(since_ms: int, valid_to_ms: int | None, version: _Version) -> int | None:
    """The time from which a version's age counts: its own start if it marks a deletion, else its replacement's."""
    return since_ms if version.is_gone else valid_to_ms
