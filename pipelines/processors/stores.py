"""Stores that processors declare and open: what all kinds share, and key-value stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

import polars as pl

from weir.pipelines.arguments import positive_ms
from weir.pipelines.errors import TopologyError
from weir.pipelines.serdes.plain import PlainRows
from weir.pipelines.serdes.row_type import RowType, row_type_of
from weir.pipelines.store_options import StoreOptions
from weir.state.engine.contract import StateSession
from weir.state.stores.access import Store, StoreTime
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

    def leave(self) -> int:
        """The epoch goes on without the processor: using the store now raises ``RuntimeError``. Returns how many puts
        were dropped since ``enter`` because they came after the store's retention."""
        ...


class StoreDeclaration(Protocol):
    """A store that a processor declares."""

    @property
    def name(self) -> str: ...

    def types(self) -> tuple[RowType, RowType]:
        """The types of keys and values; raises ``TopologyError`` for types that cannot be kept."""
        ...

    def spec(self) -> StoreSpec:
        """What the task keeps; raises ``TopologyError`` as ``types`` does."""
        ...

    def opened(self, now_ms: Callable[[], int | None]) -> OpenStore:
        """The store for one instance of a processor; ``now_ms`` gives the event time of what it is doing."""
        ...


@dataclass(frozen=True, kw_only=True)
class DeclaredStore(StoreOptions):
    """What the stores that processors declare share: types and times that cannot be kept are refused at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.spec()

    def spec(self) -> StoreSpec:
        """As ``StoreDeclaration.spec``."""
        raise NotImplementedError


@dataclass(frozen=True)
class KeyValueStore(DeclaredStore):
    """One value per key.

    ``key`` and ``value`` are a scalar type or a frozen dataclass. With ``ttl`` an entry lives that long after its last
    write, by stream time or by the wall clock. With ``logging=False, on_loss="empty"`` the store has no changelog, as
    any kind of store.
    """

    name: str
    key: Any
    value: Any
    ttl: timedelta | None = None
    ttl_clock: StoreClock = StoreClock.STREAM_TIME

    def types(self) -> tuple[RowType, RowType]:
        return types_of(self.name, self.key, self.value)

    def spec(self) -> StoreSpec:
        key, value = self.types()
        ttl_ms = None if self.ttl is None else positive_ms(self.ttl, f"store {self.name!r}: ttl")
        return self.applied(
            key_value_spec(self.name, key.columns, value.columns, ttl_ms=ttl_ms, expires_by=self.ttl_clock)
        )

    def opened(self, now_ms: Callable[[], int | None]) -> OpenKeyValueStore[Any, Any]:
        return OpenKeyValueStore(self.spec(), StateKeyValueStore, *self.types(), now_ms)


def types_of(store: str, key: Any, value: Any, *reserved: str) -> tuple[RowType, RowType]:
    """The types of a store's keys and values; a scalar is the column ``key`` or ``value``.

    Raises:
        TopologyError: A type has no columns, a key cannot be ordered, or a column's name is taken.
    """
    types = row_type_of(key, "key"), row_type_of(value, "value")
    for name, dtype in types[0].columns.items():
        if dtype.is_nested():
            raise TopologyError(
                f"store {store!r}: the key has {name!r}, a {dtype}; use single values, which have an order"
            )
    names = [name for each in types for name in each.columns]
    for name in names:
        if name.startswith("_") or name in reserved:
            raise TopologyError(f"store {store!r}: the column name {name!r} is reserved; rename the field")
        if names.count(name) > 1:
            raise TopologyError(
                f"store {store!r}: {name!r} is a column of the key and of the value; rename one of them"
            )
    return types


S = TypeVar("S", bound=Store)


class Opened(Generic[S]):
    """What all stores in a processor's hands share: keys and values as the program declares them."""

    def __init__(
        self, spec: StoreSpec, store: type[S], key: RowType, value: RowType, now_ms: Callable[[], int | None]
    ) -> None:
        self._spec, self._class, self._now_ms = spec, store, now_ms
        self._key, self._value = PlainRows(key), PlainRows(value)
        self._names = list(value.columns)
        self._store: S | None = None

    def enter(self, session: StateSession, time: StoreTime) -> None:
        self._store = self._class(self._spec, session, time)

    def leave(self) -> int:
        expired = 0 if self._store is None else self._store.expired_puts
        self._store = None
        return expired

    @property
    def _open(self) -> S:
        if self._store is None:
            raise RuntimeError(
                f"store {self._spec.name!r} is used while Weir does not call the processor; use it in init, process, "
                "on_timer, close or what you schedule, not in a thread of your own"
            )
        return self._store

    def _of(self, key: Any) -> Any:
        """A key as the store takes it."""
        try:
            values = tuple(self._key.plain(key))
        except TypeError as error:
            raise TypeError(
                f"store {self._spec.name!r} got the key {key!r}, which is of another type: {error}"
            ) from None
        return values if len(values) > 1 else values[0]

    def _bound(self, key: Any) -> Any:
        return None if key is None else self._of(key)

    def _row(self, value: Any) -> Any:
        """A value as the store takes it; None stays None."""
        if value is None:
            return None
        try:
            return dict(zip(self._names, self._value.plain(value), strict=True))
        except TypeError as error:
            raise TypeError(
                f"store {self._spec.name!r} got the value {value!r}, which is of another type: {error}"
            ) from None

    def _key_item(self, key: Any) -> Any:
        return self._key.item(list(key.values()) if isinstance(key, dict) else [key])

    def _item(self, row: Any) -> Any:
        return self._value.item([row] if len(self._names) == 1 else [row[name] for name in self._names])


class OpenKeyValueStore(Opened[StateKeyValueStore], Generic[K, V]):
    """A key-value store in a processor's hands: it reads its own writes, which belong to the epoch.

    Ranges are inclusive at both ends and in key order: columns one after another, text by its UTF-8 bytes.
    """

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
        self._open.put(self._of(key), self._row(value), self._now_ms())

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
        return self._entries(self._open.range(self._bound(lower), self._bound(upper)))

    def reverse_range(self, lower: K | None = None, upper: K | None = None) -> Iterator[tuple[K, V]]:
        """Like ``range``, greatest key first."""
        return self._entries(self._open.reverse_range(self._bound(lower), self._bound(upper)))

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

    def put_rows_if_absent(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Put those rows, as ``put_rows`` takes them, whose keys have none yet, of several of a key the first; returns
        the rows that were put."""
        new = rows.filter(~self.get_rows(rows).get_column("_found"))
        new = new.unique(list(self._spec.key), keep="first", maintain_order=True)
        self.put_rows(new)
        return new

    def delete_rows(self, keys: pl.DataFrame) -> None:
        """Delete the rows of ``keys``; absent ones are harmless."""
        self._open.delete_rows(keys)

    def range_rows(self, lower: K | None = None, upper: K | None = None) -> pl.DataFrame:
        """``range`` as columns: key columns, value columns and ``_ts`` (Int64, ms)."""
        return self._open.range(self._bound(lower), self._bound(upper)).frame()

    def prefix_scan_rows(self, *prefix: Any) -> pl.DataFrame:
        """``prefix_scan`` as columns, those of ``range_rows``."""
        return self._open.prefix_scan(prefix).frame()

    def all_rows(self) -> pl.DataFrame:
        """``all`` as columns, those of ``range_rows``."""
        return self.range_rows()

    def _entries(self, found: Iterable[tuple[Any, Any]]) -> Iterator[tuple[K, V]]:
        return ((self._key_item(key), self._item(row)) for key, row in found)
