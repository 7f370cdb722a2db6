"""Which rows of a store expire when: an index by time beside the rows, so that expiring reads a single range.

The index of all stores of a task is the reserved store ``_expiries``. It maps a mark of the store, the time, and a hash
of the row's key to the key as the store holds it. It rolls back with the rows, but is not part of a changelog, since it
follows from the rows: a restore rebuilds it, or brings that of a snapshot up to date. Window stores need none: their
keys begin with the time. Entries of many sessions are in ``ends``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from typing import cast

import polars as pl

from weir.state.engine.contract import StateSession, StateView
from weir.state.engine.task_store import EXPIRIES
from weir.state.stores.codec import TIME_BYTES, time_bytes
from weir.state.stores.specs import GONE, SINCE, WRITTEN
from weir.state.types import StoreClock, StoreKind, StoreSpec

MARK_BYTES = 8
HASH_BYTES = 16


class ExpiryIndex:
    """One store's part of the index; writes need a session."""

    def __init__(self, spec: StoreSpec, view: StateView) -> None:
        self._store, self._view = spec.name, view

    def put(self, entries: Iterable[tuple[bytes, int]]) -> None:
        """Add keys, each with its time in ms."""
        mark = mark_of(self._store)
        rows = {mark + time_bytes(time_ms) + _hash(key): key for key, time_ms in entries}
        cast(StateSession, self._view).put_many(EXPIRIES, list(rows), list(rows.values()))

    def remove(self, entries: Iterable[tuple[bytes, int]]) -> None:
        """Remove keys, given with the times they were put with; absent ones are harmless."""
        mark = mark_of(self._store)
        cast(StateSession, self._view).delete_many(
            EXPIRIES, [mark + time_bytes(time_ms) + _hash(key) for key, time_ms in entries]
        )

    def oldest_ms(self, from_ms: int | None = None) -> int | None:
        """The earliest time, of those from ``from_ms`` if given; None if there is no entry."""
        mark = mark_of(self._store)
        lower = mark if from_ms is None else mark + time_bytes(from_ms)
        found = self._view.first(EXPIRIES, lower, mark + b"\xff" * (TIME_BYTES + HASH_BYTES))
        return None if found is None else time_of(found[0])

    def take(self, through_ms: int) -> list[bytes]:
        """Remove and return the keys with times up to ``through_ms``, by time."""
        mark = mark_of(self._store)
        entries = dict(self._view.scan(EXPIRIES, mark, mark + time_bytes(through_ms + 1)))
        cast(StateSession, self._view).delete_many(EXPIRIES, list(entries))
        return list(entries.values())

    def in_order(self, from_ms: int | None = None) -> Iterator[tuple[bytes, int]]:
        """Keys with their times, by time, read lazily."""
        mark = mark_of(self._store)
        lower = mark if from_ms is None else mark + time_bytes(from_ms)
        for entry, key in self._view.scan(EXPIRIES, lower, mark + b"\xff" * (TIME_BYTES + HASH_BYTES)):
            yield key, time_of(entry)

    def between(self, from_ms: int | None, through_ms: int) -> list[tuple[bytes, int]]:
        """Keys with their times, by time; both bounds are inclusive."""
        mark = mark_of(self._store)
        lower = mark if from_ms is None else mark + time_bytes(from_ms)
        return [
            (key, time_of(entry)) for entry, key in self._view.scan(EXPIRIES, lower, mark + time_bytes(through_ms + 1))
        ]


def index_rows(spec: StoreSpec, keys: Sequence[bytes], times_ms: pl.Series) -> dict[bytes, bytes]:
    """The rows of ``_expiries`` for keys as the store holds them, with the times that ``expiry_times`` gives."""
    if times_ms.null_count() == len(times_ms):
        return {}
    mark = mark_of(spec.name)
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
    return blake2b(key, digest_size=HASH_BYTES).digest()


def time_of(entry: bytes) -> int:
    return int.from_bytes(entry[MARK_BYTES : MARK_BYTES + TIME_BYTES], "big") - (1 << 63)


@cache
def mark_of(store: str) -> bytes:
    return blake2b(store.encode(), digest_size=MARK_BYTES).digest()
