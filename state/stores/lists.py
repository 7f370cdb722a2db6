"""List stores: values in the order in which they were appended, by key, one row per value.

The row's key is the list's key and the value's place, from 0, so appending writes the value alone, and a list is one
range. Values leave only together, so the last place tells how many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

import polars as pl

from weir.state.engine.contract import StateView
from weir.state.engine.task_store import MAX_KEY_BYTES
from weir.state.frames import has_null_row, picked
from weir.state.stores.access import HeldRow, Key, Row, Store, StoreTime
from weir.state.stores.codec import AFTER_FLAGS, PRESENT, TIME_BYTES, time_bytes
from weir.state.stores.long_keys import HASH_BYTES
from weir.state.stores.specs import PLACE
from weir.state.types import StoreSpec

_PLACE_BYTES = len(PRESENT) + TIME_BYTES


class ListStore(Store):
    """Lists by key, over a spec from ``list_spec``; keys are given without the place."""

    def __init__(self, spec: StoreSpec, view: StateView, time: StoreTime | None = None) -> None:
        super().__init__(spec, view, time)
        self._names = [name for name in spec.key if name != PLACE]
        self._counts: dict[bytes, int] = {}
        """The lengths of lists that were appended to."""

    def append(self, key: Key, row: Row, timestamp_ms: int | None = None) -> None:
        """Add a row at the end; costs as much as that row, however long the list is.

        Raises:
            ValueError: The key is null.
            TypeError: The key or row does not have the store's columns.
        """
        self.extend(key, [row], timestamp_ms)

    def extend(self, key: Key, rows: Iterable[Row], timestamp_ms: int | None = None) -> None:
        """Append several rows, in order; errors as for ``append``, without effect."""
        prefix = self._prefix(key)
        values = [self._pack(row, timestamp_ms) for row in rows]
        first = self._count(prefix)
        keys = [prefix + PRESENT + time_bytes(place) for place in range(first, first + len(values))]
        self.columns.write_bytes(self.columns.hold(keys), values)
        self._counts[prefix] = first + len(values)

    def get(self, key: Key) -> list[Row]:
        """The list of ``key``; empty if there is none."""
        return [self._unpack(value).value for _, value in self._of(self._prefix(key))]

    def count(self, key: Key) -> int:
        """How long the list of ``key`` is, found by one seek."""
        return self._count(self._prefix(key))

    def delete(self, key: Key) -> None:
        """Remove the list of ``key``; an absent one is harmless."""
        self._delete(self._prefix(key))

    def drain(self, key: Key) -> list[Row]:
        """Remove the list of ``key`` and return it."""
        found = self.get(key)
        self.delete(key)
        return found

    def all(self) -> Iterator[tuple[Key, list[Row]]]:
        """All lists, in key order."""
        for _, near in groupby(self._range(b"", None), key=_front):
            whole = sorted((self._whole(held), value) for held, value in near)
            for _, rows in groupby(whole, key=lambda row: row[0][:-_PLACE_BYTES]):
                found = list(rows)
                key, _ = self._key_of(found[0][0])
                parts = [key[name] for name in self._names]
                shown = parts[0] if len(parts) == 1 else dict(zip(self._names, parts, strict=True))
                yield shown, [self._unpack(value).value for _, value in found]

    def all_rows(self) -> pl.DataFrame:
        """All lists, one after the other in key order: key columns, value columns, ``_ts`` (Int64, ms)."""
        near = groupby(self._range(b"", None), key=_front)
        rows = [row for _, found in near for row in sorted(found, key=lambda row: self._whole(row[0]))]
        return self.frame_of(rows).drop(PLACE)

    def append_rows(self, rows: pl.DataFrame) -> None:
        """Append rows, in order, each to the list of its key: key columns, value columns, ``_ts`` (Int64, ms)."""
        keys = []
        for prefix in self._prefixes(rows):
            count = self._count(prefix)
            self._counts[prefix] = count + 1
            keys.append(prefix + PRESENT + time_bytes(count))
        self.columns.write(self.columns.hold(keys), rows)

    def get_rows(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The lists of ``keys``, one after the other: key columns, value columns, ``_ts`` (Int64, ms)."""
        return self.frame_of([row for prefix in self._prefixes(keys) for row in self._of(prefix)]).drop(PLACE)

    def delete_rows(self, keys: pl.DataFrame) -> None:
        """Remove the lists of ``keys``; absent ones are harmless."""
        for prefix in self._prefixes(keys):
            self._delete(prefix)

    def _delete(self, prefix: bytes) -> None:
        self.columns.delete([held for held, _ in self._of(prefix)])
        self._counts[prefix] = 0

    def _of(self, prefix: bytes) -> list[HeldRow]:
        return list(self._range(prefix, prefix + AFTER_FLAGS))

    def _count(self, prefix: bytes) -> int:
        if (count := self._counts.get(prefix)) is None:
            last = self._first(prefix, prefix + AFTER_FLAGS, reverse=True)
            count = self._counts[prefix] = 0 if last is None else _place_of(self._whole(last[0])) + 1
        return count

    def _prefix(self, key: Key) -> bytes:
        """What the keys of a list's rows begin with."""
        values = key if isinstance(key, Mapping | tuple) else (key,)
        named = dict(values) if isinstance(values, Mapping) else dict(zip(self._names, values, strict=False))
        if named.keys() != set(self._names) or len(values) != len(self._names):
            raise TypeError(
                f"a key of store {self.spec.name!r} has the columns {', '.join(self._names)}, but got {key!r}"
            )
        if all(part is None for part in named.values()):
            raise self._null_key()
        return self._body({**named, PLACE: 0})[:-_PLACE_BYTES]

    def _prefixes(self, keys: pl.DataFrame) -> list[bytes]:
        if has_null_row(picked(keys, self._names)):
            raise self._null_key()
        whole = self.columns.whole_keys(keys.with_columns_seq(pl.lit(0, pl.Int64).alias(PLACE)))
        return [key[:-_PLACE_BYTES] for key in whole]

    def _null_key(self) -> ValueError:
        names = " or ".join(self._names)
        return ValueError(f"store {self.spec.name!r} has no list for a null key; give a value for {names}")


def _front(row: HeldRow) -> bytes:
    """What the rows of one list have in common; shortened keys, which are ordered by hash, may share it with others."""
    held, _ = row
    return held[:-HASH_BYTES] if len(held) == MAX_KEY_BYTES else held[:-_PLACE_BYTES]


def _place_of(key: bytes) -> int:
    return int.from_bytes(key[-TIME_BYTES:], "big") - (1 << 63)
