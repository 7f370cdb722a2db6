"""Stores that processors declare and open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

import polars as pl

from weir.pipelines.arguments import positive_ms
from weir.pipelines.serdes.plain import PlainRows
from weir.pipelines.serdes.row_type import RowType, row_type_of
from weir.state.engine.contract import StateSession
from weir.state.stores.access import StoreTime
from weir.state.stores.key_value import KeyValueStore as StateKeyValueStore
from weir.state.stores.specs import key_value_spec
from weir.state.types import StoreClock, StoreSpec

K = TypeVar("K")
V = TypeVar("V")


class OpenStore(Protocol):
    """A store that a processor has in its hands, over whichever epoch runs."""

    def enter(self, session: StateSession, time: StoreTime) -> None:
        """Work on this epoch until ``leave``."""
        ...

    def leave(self) -> None:
        """The epoch goes on without the processor; using the store then raises ``RuntimeError``."""
        ...


class StoreDeclaration(Protocol):
    """A store that a processor declares."""

    @property
    def name(self) -> str: ...

    def spec(self) -> StoreSpec:
        """What the task keeps; raises ``TopologyError`` for types that have no columns."""
        ...

    def opened(self, now_ms: Callable[[], int | None]) -> OpenStore:
        """The store for one instance of a processor; ``now_ms`` gives the event time of what it is doing."""
        ...


@dataclass(frozen=True)
class KeyValueStore:
    """One value per key.

    ``key`` and ``value`` are a scalar type or a frozen dataclass. With ``ttl`` an entry lives that long after its last
    write, by stream time or by the wall clock.
    """

    name: str
    key: Any
    value: Any
    ttl: timedelta | None = None
    ttl_clock: StoreClock = StoreClock.STREAM_TIME

    def spec(self) -> StoreSpec:
        key, value = self._types()
        ttl_ms = None if self.ttl is None else positive_ms(self.ttl, f"store {self.name!r}: ttl")
        return key_value_spec(self.name, key.columns, value.columns, ttl_ms=ttl_ms, expires_by=self.ttl_clock)

    def opened(self, now_ms: Callable[[], int | None]) -> OpenKeyValueStore[Any, Any]:
        return OpenKeyValueStore(self.spec(), *self._types(), now_ms)

    def _types(self) -> tuple[RowType, RowType]:
        return row_type_of(self.key, "key"), row_type_of(self.value, "value")


class OpenKeyValueStore(Generic[K, V]):
    """A key-value store in a processor's hands: it reads its own writes, which belong to the epoch.

    Ranges are inclusive at both ends and in key order: columns one after another, text by its UTF-8 bytes.
    """

    def __init__(self, spec: StoreSpec, key: RowType, value: RowType, now_ms: Callable[[], int | None]) -> None:
        self._spec, self._key, self._value, self._now_ms = spec, PlainRows(key), PlainRows(value), now_ms
        self._names = list(value.columns)
        self._store: StateKeyValueStore | None = None

    def enter(self, session: StateSession, time: StoreTime) -> None:
        self._store = StateKeyValueStore(self._spec, session, time)

    def leave(self) -> None:
        self._store = None

    def get(self, key: K) -> V | None:
        """The value of ``key``; None if there is none."""
        row = self._open.get(self._of(key))
        return None if row is None else self._item(row)

    def put(self, key: K, value: V | None) -> None:
        """Set the value of ``key``; None deletes it.

        Raises:
            ValueError: The key is null.
            TypeError: The key or value does not fit the store's types.
        """
        self._open.put(self._of(key), None if value is None else self._row(value), self._now_ms())

    def put_if_absent(self, key: K, value: V) -> V | None:
        """The existing value, or else put ``value`` and return None."""
        found = self.get(key)
        if found is None:
            self.put(key, value)
        return found

    def put_all(self, entries: Iterable[tuple[K, V | None]]) -> None:
        """Put several, in order."""
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: K) -> V | None:
        """Delete the value of ``key`` and return it."""
        row = self._open.delete(self._of(key))
        return None if row is None else self._item(row)

    def range(self, lower: K | None = None, upper: K | None = None) -> Iterator[tuple[K, V]]:
        """Entries with keys from ``lower`` through ``upper``; None means no bound."""
        return self._entries(self._open.range(*self._bounds(lower, upper)))

    def reverse_range(self, lower: K | None = None, upper: K | None = None) -> Iterator[tuple[K, V]]:
        """Like ``range``, greatest key first."""
        return self._entries(self._open.reverse_range(*self._bounds(lower, upper)))

    def prefix_scan(self, *prefix: Any) -> Iterator[tuple[K, V]]:
        """Entries whose first key columns have these values; the last of them, if text, may be a prefix itself."""
        return self._entries(self._open.prefix_scan(prefix))

    def all(self) -> Iterator[tuple[K, V]]:
        """All entries."""
        return self.range()

    def reverse_all(self) -> Iterator[tuple[K, V]]:
        """All entries, greatest key first."""
        return self.reverse_range()

    def approximate_num_entries(self) -> int:
        """How many entries there are, including expired ones that are not deleted yet."""
        return self._open.approximate_num_entries()

    def get_rows(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Rows aligned with ``keys``: key columns, value columns, ``_ts`` (Int64, ms), ``_found``."""
        return self._open.get_rows(keys)

    def put_rows(self, rows: pl.DataFrame) -> None:
        """Put rows in order: key columns, value columns and ``_ts`` (Int64, ms); where a column ``_deleted`` is true,
        delete the key."""
        self._open.put_rows(rows)

    def delete_rows(self, keys: pl.DataFrame) -> None:
        """Delete the rows of ``keys``; absent ones are harmless."""
        self._open.delete_rows(keys)

    @property
    def _open(self) -> StateKeyValueStore:
        if self._store is None:
            raise RuntimeError(f"store {self._spec.name!r} is not open; use it while Weir calls the processor")
        return self._store

    def _of(self, key: Any) -> tuple[Any, ...]:
        values = tuple(self._key.plain(key))
        return values if len(values) > 1 else values[0]

    def _row(self, value: Any) -> Any:
        return dict(zip(self._names, self._value.plain(value), strict=True))

    def _item(self, row: Any) -> Any:
        return self._value.item([row] if len(self._names) == 1 else [row[name] for name in self._names])

    def _bounds(self, lower: Any, upper: Any) -> tuple[Any, Any]:
        return (None if lower is None else self._of(lower)), (None if upper is None else self._of(upper))

    def _entries(self, found: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        for key, row in found:
            values = list(key.values()) if isinstance(key, dict) else [key]
            yield self._key.item(values), self._item(row)
