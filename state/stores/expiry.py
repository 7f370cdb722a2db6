"""Which rows of a store expire when: an index by time beside the rows, so that expiring reads a single range.

The index of all stores of a task is the reserved store ``_expiries``. It maps a mark of the store, the time, and a hash
of the row's key to the key as the store holds it. It rolls back with the rows, but is not part of a changelog, since it
follows from the rows: a restore rebuilds it, or brings that of a snapshot up to date. Window stores need none: their
keys begin with the time.

Rows that stay until they expire may share an entry, a *list*: up to ``LIST_ROWS`` keys of one epoch with times within
``SPAN_MS``. Its own time is that of the first. Such a row may be gone before, since only a whole list is removed; it
must not come back at another time. A restore makes an entry for each row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import pairwise
from operator import itemgetter
from typing import cast

import msgspec
import numpy as np
import polars as pl

from weir.state.engine.contract import StateSession, StateView
from weir.state.engine.task_store import EXPIRIES
from weir.state.stores.codec import TIME_BYTES, time_bytes
from weir.state.stores.specs import GONE, SINCE, WRITTEN
from weir.state.types import StoreClock, StoreKind, StoreSpec

_MARK_BYTES = 8
_HASH_BYTES = 16
SPAN_MS = 1_000
"""The times of a list are less than this apart."""
LIST_ROWS = 32
"""As many keys of usual length as LMDB keeps beside other rows in a page."""
_LIST = b"\x00"
"""What the key of a list ends with: it is that much longer than another entry's."""
_LIST_BYTES = _MARK_BYTES + TIME_BYTES + _HASH_BYTES + len(_LIST)
_LISTS = msgspec.msgpack.Decoder(tuple[list[int], list[bytes]])
"""How much later than the entry says the time of each key is, in ms, and the keys."""

Keys = tuple[list[int], list[bytes]]
"""Times in ms, ascending, and the key of each."""


class ExpiryIndex:
    """One store's part of the index; writes need a session."""

    def __init__(self, spec: StoreSpec, view: StateView) -> None:
        self._store, self._view = spec.name, view

    def put(self, entries: Iterable[tuple[bytes, int]]) -> None:
        """Add keys, each with its time in ms."""
        mark = _mark(self._store)
        rows = {mark + time_bytes(time_ms) + _hash(key): key for key, time_ms in entries}
        cast(StateSession, self._view).put_many(EXPIRIES, list(rows), list(rows.values()))

    def put_lists(self, keys: Sequence[bytes], times_ms: np.ndarray) -> None:
        """Add keys with their times in ms, of which few, if any, are removed before."""
        order = np.argsort(times_ms, kind="stable")
        in_order, times_ms = [keys[row] for row in order.tolist()], times_ms[order]
        spans = times_ms // SPAN_MS
        place_in_span = np.arange(len(spans)) - np.searchsorted(spans, spans)
        begins = np.flatnonzero(place_in_span % LIST_ROWS == 0).tolist()
        parts = [slice(begin, end) for begin, end in pairwise([*begins, len(spans)])]
        self._put([(times_ms[part].tolist(), in_order[part]) for part in parts])

    def remove(self, entries: Iterable[tuple[bytes, int]]) -> None:
        """Remove keys, given with the times they were put with; absent ones, and those of lists, are harmless."""
        mark = _mark(self._store)
        cast(StateSession, self._view).delete_many(
            EXPIRIES, [mark + time_bytes(time_ms) + _hash(key) for key, time_ms in entries]
        )

    def oldest_ms(self, from_ms: int | None = None) -> int | None:
        """The earliest time, of those from ``from_ms`` if given; None if there is no entry."""
        return next((time_ms for _, time_ms in self.in_order(from_ms)), None)

    def take(self, through_ms: int) -> tuple[list[bytes], list[bytes]]:
        """Remove the keys with times up to ``through_ms``: those with an entry each, by time, and those of lists, in
        the order of the keys."""
        alone, listed, entries, left = list[bytes](), list[bytes](), list[bytes](), list[Keys]()
        mark = _mark(self._store)
        for entry, value in self._view.scan(EXPIRIES, mark, mark + time_bytes(through_ms + 1)):
            entries.append(entry)
            if len(entry) < _LIST_BYTES:
                alone.append(value)
                continue
            times_ms, keys = keys_of(entry, value)
            due = bisect_right(times_ms, through_ms)
            listed += keys[:due]
            if due < len(keys):
                left.append((times_ms[due:], keys[due:]))
        cast(StateSession, self._view).delete_many(EXPIRIES, entries)
        self._put(left)
        return alone, pl.Series(listed, dtype=pl.Binary).sort().to_list()

    def in_order(self, from_ms: int | None = None) -> Iterator[tuple[bytes, int]]:
        """Keys with their times, by time, read lazily."""
        waiting: list[tuple[int, bytes]] = []
        for entry, (times_ms, keys) in self._entries(from_ms, None):
            while waiting and waiting[0][0] < _time_of(entry):
                time_ms, key = heappop(waiting)
                yield key, time_ms
            for time_ms, key in zip(times_ms, keys, strict=True):
                if from_ms is None or time_ms >= from_ms:
                    heappush(waiting, (time_ms, key))
        yield from ((key, time_ms) for time_ms, key in sorted(waiting))

    def between(self, from_ms: int | None, through_ms: int) -> list[tuple[bytes, int]]:
        """Keys with their times, by time; both bounds are inclusive."""
        found = {
            key: time_ms
            for _, (times_ms, keys) in self._entries(from_ms, through_ms)
            for time_ms, key in zip(times_ms, keys, strict=True)
            if time_ms <= through_ms and (from_ms is None or time_ms >= from_ms)
        }
        return sorted(found.items(), key=itemgetter(1))

    def _entries(self, from_ms: int | None, through_ms: int | None) -> Iterator[tuple[bytes, Keys]]:
        """Entries that may have keys with times between these bounds, both inclusive, by their first one's time."""
        mark = _mark(self._store)
        lower = mark if from_ms is None else mark + time_bytes(from_ms - SPAN_MS)
        upper = mark + (b"\xff" * _LIST_BYTES if through_ms is None else time_bytes(through_ms + 1))
        for entry, value in self._view.scan(EXPIRIES, lower, upper):
            yield entry, keys_of(entry, value)

    def _put(self, lists: Sequence[Keys]) -> None:
        """Add lists, none of them empty."""
        mark, rows = _mark(self._store), dict[bytes, bytes]()
        for times_ms, keys in lists:
            packed = msgspec.msgpack.encode(([time_ms - times_ms[0] for time_ms in times_ms], keys))
            rows[mark + time_bytes(times_ms[0]) + _hash(packed) + _LIST] = packed
        cast(StateSession, self._view).put_many(EXPIRIES, list(rows), list(rows.values()))


def keys_of(entry: bytes, value: bytes) -> Keys:
    """What an entry of the index says, given its key and value."""
    first_ms = _time_of(entry)
    if len(entry) < _LIST_BYTES:
        return [first_ms], [value]
    delays_ms, keys = _LISTS.decode(value)
    return [first_ms + delay_ms for delay_ms in delays_ms], keys


def index_rows(spec: StoreSpec, keys: Sequence[bytes], times_ms: pl.Series) -> dict[bytes, bytes]:
    """The rows of ``_expiries`` for keys as the store holds them, with the times that ``expiry_times`` gives."""
    if times_ms.null_count() == len(times_ms):
        return {}
    mark = _mark(spec.name)
    return {
        mark + time_bytes(time_ms) + _hash(key): key
        for key, time_ms in zip(keys, times_ms.to_list(), strict=True)
        if time_ms is not None
    }


def has_index(spec: StoreSpec) -> bool:
    """Whether rows of the store are in the index."""
    return SINCE in spec.value or (spec.retention_ms is not None and spec.kind is not StoreKind.WINDOW)


def expiry_times(spec: StoreSpec, rows: pl.DataFrame) -> pl.Series:
    """The time that each row's retention counts from, in ms; null if it never expires. Needs all of a store's rows."""
    if not has_index(spec):
        return pl.repeat(None, rows.height, dtype=pl.Int64(), eager=True)
    if SINCE in spec.value:
        return rows.get_column(SINCE).dt.timestamp("ms")
    if spec.kind is StoreKind.SESSION:
        return rows.get_column("window_end").dt.timestamp("ms")
    if spec.kind is StoreKind.VERSIONED:
        by = [name for name in spec.key if name != "valid_from"]
        replaced = (
            rows.with_row_index("_place")
            .sort(*by, "valid_from")
            .with_columns_seq(pl.col("valid_from").shift(-1).over(by).alias("_replaced"))
            .sort("_place")
        )
        own = pl.when(GONE).then(pl.col("valid_from"))
        return replaced.select_seq(pl.coalesce(own, "_replaced").dt.timestamp("ms")).to_series()
    if spec.expires_by is StoreClock.WALL_CLOCK:
        return rows.get_column(WRITTEN).dt.timestamp("ms")
    return rows.get_column("_ts")


def _hash(key: bytes) -> bytes:
    return blake2b(key, digest_size=_HASH_BYTES).digest()


def _time_of(entry: bytes) -> int:
    return int.from_bytes(entry[_MARK_BYTES : _MARK_BYTES + TIME_BYTES], "big") - (1 << 63)


@cache
def _mark(store: str) -> bytes:
    return blake2b(store.encode(), digest_size=_MARK_BYTES).digest()
