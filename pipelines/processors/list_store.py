"""List stores of processors: values by key, in the order in which they were appended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import polars as pl

from weir.pipelines.processors.stores import DeclaredStore, Opened, types_of
from weir.pipelines.serdes.row_type import RowType
from weir.state.stores.lists import ListStore as StateListStore
from weir.state.stores.specs import list_spec
from weir.state.types import StoreSpec

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class ListStore(DeclaredStore):
    """A list of values per key. Appending costs as much as the value, however long the list is.

    Types are as in ``KeyValueStore``.
    """

    name: str
    key: Any
    value: Any

    def types(self) -> tuple[RowType, RowType]:
        return types_of(self.name, self.key, self.value)

    def spec(self) -> StoreSpec:
        key, value = self.types()
        return self.applied(list_spec(self.name, key.columns, value.columns))

    def opened(self, now_ms: Callable[[], int | None]) -> OpenListStore[Any, Any]:
        return OpenListStore(self.spec(), StateListStore, *self.types(), now_ms)


class OpenListStore(Opened[StateListStore], Generic[K, V]):
    """A list store in a processor's hands: it reads its own writes, which belong to the epoch."""

    def append(self, key: K, value: V) -> None:
        """Add a value at the end of the key's list.

        Raises:
            ValueError: The key is null.
            TypeError: The key or value does not fit the store's types.
        """
        self.extend(key, (value,))

    def extend(self, key: K, values: Iterable[V]) -> None:
        """Append several values, in order; errors as for ``append``, without effect."""
        rows = [self._row(value) for value in values]
        if None in rows:
            raise TypeError(f"store {self._spec.name!r} got None to append; a list holds values only")
        self._open.extend(self._of(key), rows, self._now_ms())

    def get(self, key: K) -> list[V]:
        """The list of ``key``; empty if there is none."""
        return [self._item(row) for row in self._open.get(self._of(key))]

    def count(self, key: K) -> int:
        """How long the list of ``key`` is; costs as much for a long one as for a short one."""
        return self._open.count(self._of(key))

    def delete(self, key: K) -> None:
        """Remove the list of ``key``; an absent one is harmless."""
        self._open.delete(self._of(key))

    def drain(self, key: K) -> list[V]:
        """Remove the list of ``key`` and return it."""
        return [self._item(row) for row in self._open.drain(self._of(key))]

    def all(self) -> Iterator[tuple[K, list[V]]]:
        """All lists, in key order."""
        return ((self._key_item(key), [self._item(row) for row in rows]) for key, rows in self._open.all())

    def all_rows(self) -> pl.DataFrame:
        """``all`` as columns, a row for each value: key columns, value columns, ``_ts`` (Int64, ms)."""
        return self._open.all_rows()

    def append_rows(self, rows: pl.DataFrame) -> None:
        """Append values, in order, each to the list of its key: key columns, value columns, ``_ts`` (Int64, ms)."""
        self._open.append_rows(rows)

    def get_rows(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The lists of ``keys``, one after the other: key columns, value columns, ``_ts`` (Int64, ms)."""
        return self._open.get_rows(keys)

    def delete_rows(self, keys: pl.DataFrame) -> None:
        """Remove the lists of ``keys`` (key columns); absent ones are harmless."""
        self._open.delete_rows(keys)
