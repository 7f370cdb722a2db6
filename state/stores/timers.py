"""Timers: one time per key, found by key and in the order of time, so that what is due is one range.

A row's only value column is its time; the index beside the rows is rebuilt from it when a task is restored.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl

from weir.state.engine.contract import StateView
from weir.state.frames import has_null_row, picked, with_series
from weir.state.stores.access import Key, Store
from weir.state.stores.expiry import ExpiryIndex
from weir.state.stores.specs import SINCE, TIME
from weir.state.types import StoreSpec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
NEVER_MS = 1 << 62
"""Later than any timer."""


def timer_spec(name: str, key: pl.Schema) -> StoreSpec:
    """The timers of keys with these columns."""
    return StoreSpec(name=name, key=key, value=pl.Schema({SINCE: TIME}))


class TimerStore(Store):
    """The timers of one clock; valid for one epoch."""

    def __init__(self, spec: StoreSpec, view: StateView) -> None:
        super().__init__(spec, view)
        self._index = ExpiryIndex(spec, view)
        self._bound_ms: int | None = None
        """No timer is earlier; None: not known. It saves searching for the first one, and among what is deleted."""

    def set(self, key: Key, at_ms: int) -> None:
        """Set or move the timer of ``key``."""
        held, old = self._get(self._body(key))
        value = self._rows.encode({SINCE: _EPOCH + at_ms * _MILLISECOND}, at_ms)
        if value == old:
            return
        if old is not None:
            self._index.remove([(held, self._time_of(old))])
        self._index.put([(held, at_ms)])
        self.columns.write_bytes([held], [value])
        self._lower(at_ms)

    def cancel(self, key: Key) -> None:
        """Forget the timer of ``key``; an absent one is harmless."""
        held, old = self._get(self._body(key))
        if old is not None:
            self._drop([(held, self._time_of(old))])

    def set_rows(self, keys: pl.DataFrame, at_ms: pl.Series) -> None:
        """Set or move the timers of ``keys`` (key columns) to ``at_ms`` (ms, no nulls), in order: a key's last row
        wins.

        Raises:
            ValueError: A key is null.
        """
        rows = with_series(keys, at_ms.cast(pl.Int64).alias("_ts"))
        if rows.height > 1:
            rows = rows.unique(self.spec.key.names(), keep="last", maintain_order=True)
        held = self._held(rows)
        values = self.columns.rows.encode(with_series(rows, rows.get_column("_ts").cast(TIME).alias(SINCE)))
        times = rows.get_column("_ts").to_list()
        found = zip(held, values, times, self._view.get_many(self.spec.name, held), strict=True)
        new = [each for each in found if each[1] != each[3]]
        self._index.remove((key, self._time_of(old)) for key, _, _, old in new if old is not None)
        self._index.put((key, time_ms) for key, _, time_ms, _ in new)
        self.columns.write_bytes([key for key, *_ in new], [value for _, value, *_ in new])
        self._lower(min((time_ms for _, _, time_ms, _ in new), default=NEVER_MS))

    def cancel_rows(self, keys: pl.DataFrame) -> None:
        """Forget the timers of ``keys`` (key columns); absent ones are harmless."""
        rows = self._held_rows(self._held(keys.unique(maintain_order=True) if keys.height > 1 else keys))
        self._drop([(held, self._time_of(value)) for held, value in rows])

    def next_ms(self) -> int | None:
        """When the first timer is due; None if there is none."""
        found = self._index.oldest_ms(self._bound_ms)
        self._bound_ms = NEVER_MS if found is None else found
        return found

    def is_due(self, time_ms: int) -> bool:
        """Whether there is a timer up to ``time_ms``; fast for times before the first."""
        if self._bound_ms is not None and time_ms < self._bound_ms:
            return False
        next_ms = self.next_ms()
        return next_ms is not None and next_ms <= time_ms

    def take(self, through_ms: int) -> list[tuple[Key, int]]:
        """Take out the timers up to ``through_ms``: keys and times, by time, then key."""
        due = self._due(through_ms)
        found = [(self._key_of(self._whole(held))[0], at_ms) for held, at_ms in due]
        self._drop(due)
        self._bound_ms = through_ms + 1 if self._bound_ms is None else max(self._bound_ms, through_ms + 1)
        return found

    def take_rows(self, through_ms: int) -> pl.DataFrame:
        """``take`` as key columns and ``_ts`` (Int64, ms)."""
        due = self._due(through_ms)
        times = pl.Series("_ts", [at_ms for _, at_ms in due], dtype=pl.Int64)
        found = self.columns.decode([held for held, _ in due]).with_columns_seq(times)
        self._drop(due)
        self._bound_ms = through_ms + 1 if self._bound_ms is None else max(self._bound_ms, through_ms + 1)
        return found

    def _due(self, through_ms: int) -> list[tuple[bytes, int]]:
        return sorted(self._index.between(self._bound_ms, through_ms), key=lambda entry: (entry[1], entry[0]))

    def _drop(self, timers: list[tuple[bytes, int]]) -> None:
        self._index.remove(timers)
        self.columns.delete([held for held, _ in timers])

    def _lower(self, at_ms: int) -> None:
        """A timer has been set to ``at_ms``."""
        if self._bound_ms is not None:
            self._bound_ms = min(self._bound_ms, at_ms)

    def _held(self, keys: pl.DataFrame) -> list[bytes]:
        if has_null_row(picked(keys, self.spec.key)):
            raise ValueError(f"store {self.spec.name!r} has no row for a null key; filter out the rows without a key")
        return self.columns.encode(keys)

    def _time_of(self, value: bytes) -> int:
        _, at_ms = self._rows.decode(value)
        assert at_ms is not None
        return at_ms
