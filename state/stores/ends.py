"""Which sessions end when: the index of expiries of a session store, where one entry may have many sessions.

Sliding windows keep their bounds until they expire, and a record opens two of them, so their entries are *lists*: up to
``LIST_ROWS`` sessions of an epoch that end within ``SPAN_MS``. Sessions that others replace have an entry each, like
the rows of other stores (``expiry``). A session's end is in its key, so an entry may outlive its session: whoever takes
it finds nothing to delete.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import pairwise
from typing import cast

import msgspec
import numpy as np
import polars as pl

from weir.state.engine.contract import StateSession
from weir.state.engine.task_store import EXPIRIES
from weir.state.stores.codec import TIME_BYTES, time_bytes
from weir.state.stores.expiry import HASH_BYTES, MARK_BYTES, ExpiryIndex, mark_of, time_of

SPAN_MS = 1_000
"""The sessions of a list end less than this apart."""
LIST_ROWS = 32
"""As many keys of usual length as LMDB keeps beside other rows in a page."""
_LIST = b"\x00"
"""What the key of a list ends with: it is that much longer than another entry's."""
_LIST_BYTES = MARK_BYTES + TIME_BYTES + HASH_BYTES + len(_LIST)
_LISTS = msgspec.msgpack.Decoder(tuple[list[int], list[bytes]])
"""How much later than the entry says each session ends, in ms, and the sessions' keys."""

Sessions = tuple[list[int], list[bytes]]
"""When they end, in ms and ascending, and their keys."""


class EndIndex(ExpiryIndex):
    """One session store's part of the index."""

    def put_lists(self, keys: Sequence[bytes], ends_ms: np.ndarray) -> None:
        """Add sessions of which few are removed before they expire."""
        order = np.argsort(ends_ms, kind="stable")
        in_order, times_ms = [keys[row] for row in order.tolist()], ends_ms[order]
        spans = times_ms // SPAN_MS
        place_in_span = np.arange(len(spans)) - np.searchsorted(spans, spans)
        begins = np.flatnonzero(place_in_span % LIST_ROWS == 0).tolist()
        parts = [slice(begin, end) for begin, end in pairwise([*begins, len(spans)])]
        self._put([(times_ms[part].tolist(), in_order[part]) for part in parts])

    def take(self, through_ms: int) -> list[bytes]:
        """Remove and return the sessions that end by ``through_ms``, in the order of their keys."""
        taken, entries, left = list[bytes](), list[bytes](), list[Sessions]()
        mark = mark_of(self._store)
        for entry, value in self._view.scan(EXPIRIES, mark, mark + time_bytes(through_ms + 1)):
            entries.append(entry)
            if len(entry) < _LIST_BYTES:
                taken.append(value)
                continue
            times_ms, keys = _sessions(entry, value)
            due = bisect_right(times_ms, through_ms)
            taken += keys[:due]
            if due < len(keys):
                left.append((times_ms[due:], keys[due:]))
        cast(StateSession, self._view).delete_many(EXPIRIES, entries)
        self._put(left)
        return pl.Series(taken, dtype=pl.Binary).sort().to_list()

    def in_order(self, from_ms: int | None = None) -> Iterator[tuple[bytes, int]]:
        waiting: list[tuple[int, bytes]] = []
        for entry, (times_ms, keys) in self._entries(from_ms, None):
            while waiting and waiting[0][0] < time_of(entry):
                time_ms, key = heappop(waiting)
                yield key, time_ms
            for time_ms, key in zip(times_ms, keys, strict=True):
                if from_ms is None or time_ms >= from_ms:
                    heappush(waiting, (time_ms, key))
        yield from ((key, time_ms) for time_ms, key in sorted(waiting))

    def between(self, from_ms: int | None, through_ms: int) -> list[tuple[bytes, int]]:
        found = {
            key: time_ms
            for _, (times_ms, keys) in self._entries(from_ms, through_ms)
            for time_ms, key in zip(times_ms, keys, strict=True)
            if time_ms <= through_ms and (from_ms is None or time_ms >= from_ms)
        }
        return sorted(found.items(), key=lambda session: session[1])

    def _entries(self, from_ms: int | None, through_ms: int | None) -> Iterator[tuple[bytes, Sessions]]:
        """Entries that may have sessions which end between these bounds, both inclusive, by their first one's end."""
        mark = mark_of(self._store)
        lower = mark if from_ms is None else mark + time_bytes(from_ms - SPAN_MS)
        upper = mark + (b"\xff" * _LIST_BYTES if through_ms is None else time_bytes(through_ms + 1))
        for entry, value in self._view.scan(EXPIRIES, lower, upper):
            yield entry, _sessions(entry, value)

    def _put(self, lists: Sequence[Sessions]) -> None:
        """Add entries, none of them empty."""
        mark, rows = mark_of(self._store), dict[bytes, bytes]()
        for times_ms, keys in lists:
            packed = msgspec.msgpack.encode(([time_ms - times_ms[0] for time_ms in times_ms], keys))
            digest = blake2b(packed, digest_size=HASH_BYTES).digest()
            rows[mark + time_bytes(times_ms[0]) + digest + _LIST] = packed
        cast(StateSession, self._view).put_many(EXPIRIES, list(rows), list(rows.values()))


def _sessions(entry: bytes, value: bytes) -> Sessions:
    first_ms = time_of(entry)
    if len(entry) < _LIST_BYTES:
        return [first_ms], [value]
    delays_ms, keys = _LISTS.decode(value)
    return [first_ms + delay_ms for delay_ms in delays_ms], keys
