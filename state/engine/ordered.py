"""Rows in memory, by key, that can be read by range: an epoch's own writes, and stores kept in memory.

Reading by key is a dictionary lookup; the keys are sorted when a range is first read, and kept sorted while few are
added at a time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

V = TypeVar("V")

_FEW = 64
"""Up to this many new keys are inserted in place one by one; with more, all are sorted at the next range."""


class OrderedRows(Generic[V]):
    """Values by key. Change ``rows`` through the methods only."""

    def __init__(self, rows: dict[bytes, V] | None = None) -> None:
        self.rows: dict[bytes, V] = rows if rows is not None else {}
        self._order: list[bytes] | None = None
        self._is_in_order = False
        """Whether ``rows`` itself is in key order."""

    def __len__(self) -> int:
        return len(self.rows)

    def put_many(self, keys: Sequence[bytes], values: Sequence[V]) -> None:
        """Set values by key; the last value of a key wins."""
        if self._order is not None:
            new = {key for key in keys if key not in self.rows}
            if len(new) > _FEW:
                self._order = None
            else:
                for key in new:
                    insort(self._order, key)
        self.rows.update(zip(keys, values, strict=True))
        self._is_in_order = False

    def remove(self, key: bytes) -> None:
        """Remove a key; an absent one is harmless."""
        if key in self.rows:
            del self.rows[key]
            if self._order is not None:
                del self._order[bisect_left(self._order, key)]

    def between(self, lower: bytes, upper: bytes | None, reverse: bool) -> Iterator[tuple[bytes, V]]:
        """Rows with ``lower <= key < upper``, in key order or reversed. Write nothing until it is exhausted."""
        order, rows = self._sorted(), self.rows
        start = bisect_left(order, lower)
        stop = len(order) if upper is None else bisect_left(order, upper)
        for place in range(stop - 1, start - 1, -1) if reverse else range(start, stop):
            yield order[place], rows[order[place]]

    def copy(self) -> OrderedRows[V]:
        return OrderedRows(dict(self.rows))

    def in_order(self) -> dict[bytes, V]:
        """All rows in key order. Do not change the result; it is valid until the next write."""
        if not self._is_in_order:
            order = self._sorted()
            if order != list(self.rows):
                self.rows = dict(zip(order, map(self.rows.__getitem__, order), strict=True))
            self._is_in_order = True
        return self.rows

    def _sorted(self) -> list[bytes]:
        if self._order is None:
            self._order = sorted(self.rows)
        return self._order
