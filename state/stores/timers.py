"""Timers: one time per key, found by key and in the order of time, so that what is due is one range.

A row's only value column is its time; the index beside the rows is rebuilt from it when a task is restored.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl

from weir.state.engine.contract import StateView
from weir.state.stores.access import Key, Store
from weir.state.stores.expiry import ExpiryIndex
from weir.state.stores.specs import SINCE, TIME
from weir.state.types import StoreSpec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def timer_spec(name: str, key: pl.Schema) -> StoreSpec:
    """The timers of keys with these columns."""
    return StoreSpec(name=name, key=key, value=pl.Schema({SINCE: TIME}))


class TimerStore(Store):
    """The timers of one clock; valid for one epoch."""

    def __init__(self, spec: StoreSpec, view: StateView) -> None:
        super().__init__(spec, view)
        self._index = ExpiryIndex(spec, view)
        self._next: int | None = None
        self._is_next_known = False

    def set(self, key: Key, at_ms: int) -> None:
        """Set or move the timer of ``key``."""
        held, old = self._get(self._body(key))
        value = self._rows.encode({SINCE: _EPOCH + at_ms * _MILLISECOND}, at_ms)
        if value == old:
            return
        if old is not None:
            self._index.remove([(held, self._time_of(old))])
            self._is_next_known = False
        self._index.put([(held, at_ms)])
        self.columns.write_bytes([held], [value])
        if self._next is None or at_ms < self._next:
            self._next = at_ms

    def cancel(self, key: Key) -> None:
        """Forget the timer of ``key``; an absent one is harmless."""
        held, old = self._get(self._body(key))
        if old is not None:
            self._index.remove([(held, self._time_of(old))])
            self.columns.delete([held])
            self._is_next_known = False

    def next_ms(self) -> int | None:
        """When the first timer is due; None if there is none."""
        if not self._is_next_known:
            self._next, self._is_next_known = self._index.oldest_ms(), True
        return self._next

    def take(self, through_ms: int) -> list[tuple[Key, int]]:
        """Take out the timers up to ``through_ms``: keys and times, by time, then key."""
        due = sorted(self._index.between(None, through_ms), key=lambda entry: (entry[1], entry[0]))
        self._index.remove(due)
        self.columns.delete([held for held, _ in due])
        self._is_next_known = False
        return [(self._key_of(self._whole(held))[0], at_ms) for held, at_ms in due]

    def _time_of(self, value: bytes) -> int:
        _, at_ms = self._rows.decode(value)
        assert at_ms is not None
        return at_ms
