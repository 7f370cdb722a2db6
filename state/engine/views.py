"""Reading rows: ranges of one database, the newest values, and the committed values under an undo log.

Buffered writes of an epoch are ``state.engine.session``; writing and undoing is ``state.engine.task_store``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import lmdb

from state.engine.meta import Meta
from state.errors import UnknownStoreError

ABSENT = b"\x00"
PRESENT = b"\x01"
"""An undo entry is ``ABSENT``, or ``PRESENT`` and the value before the first uncommitted write (PROTOCOL 17)."""

Row = tuple[bytes, bytes]


def undo_prefix(store_id: int) -> bytes:
    """What the undo keys of a store begin with."""
    return store_id.to_bytes(2, "big")


def rows_between(txn: lmdb.Transaction[bytes], database: lmdb._Database, lower: bytes, upper: bytes | None,
                 reverse: bool) -> Iterator[Row]:
    """Rows with ``lower <= key < upper``, in key order or against it."""
    with txn.cursor(database) as cursor:
        if not reverse:
            if cursor.set_range(lower) if lower else cursor.first():
                if upper is None:
                    yield from cursor.iternext()
                    return
                for row in cursor.iternext():
                    if row[0] >= upper:
                        return
                    yield row
            return
        found = cursor.prev() if upper is not None and cursor.set_range(upper) else cursor.last()
        if found:
            for row in cursor.iterprev():
                if row[0] < lower:
                    return
                yield row


def overlaid(below: Iterable[Row], above: Iterable[tuple[bytes, bytes | None]], reverse: bool) -> Iterator[Row]:
    """Merge two ordered sequences of rows: ``above`` wins, and its None hides a row ``below``."""
    under, over = iter(below), iter(above)
    row, cover = next(under, None), next(over, None)
    while row is not None or cover is not None:
        if cover is None or (row is not None and (row[0] > cover[0] if reverse else row[0] < cover[0])):
            yield row  # type: ignore[misc]
            row = next(under, None)
            continue
        if row is not None and row[0] == cover[0]:
            row = next(under, None)
        if cover[1] is not None:
            yield cover[0], cover[1]
        cover = next(over, None)


class NewestReader:
    """The newest applied values: READ_UNCOMMITTED."""

    def __init__(self, txn: lmdb.Transaction[bytes], databases: Mapping[str, lmdb._Database], meta: Meta) -> None:
        self._txn, self._databases, self._meta = txn, databases, meta

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._txn.cursor(self._database(store)) as cursor:
            found = cursor.getmulti(keys)
        if len(found) == len(keys):
            return [value for _, value in found]
        return list(map(dict(found).get, keys))

    def scan(self, store: str, lower: bytes = b"", upper: bytes | None = None, *,
             reverse: bool = False) -> Iterator[Row]:
        return rows_between(self._txn, self._database(store), lower, upper, reverse)

    def first(self, store: str, lower: bytes = b"", upper: bytes | None = None, *,
              reverse: bool = False) -> Row | None:
        return next(self.scan(store, lower, upper, reverse=reverse), None)

    def count(self, store: str) -> int:
        self._database(store)
        return self._meta.rows.get(store, 0)

    def _database(self, store: str) -> lmdb._Database:
        try:
            return self._databases[store]
        except KeyError:
            raise UnknownStoreError(store, tuple(sorted(self._databases))) from None


class CommittedReader(NewestReader):
    """The values of the last commit that the store knows of: the undo log first, then the newest values."""

    def __init__(self, txn: lmdb.Transaction[bytes], databases: Mapping[str, lmdb._Database], meta: Meta,
                 undo: lmdb._Database) -> None:
        super().__init__(txn, databases, meta)
        self._undo = undo

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        values = super().get_many(store, keys)
        prefix = undo_prefix(self._meta.stores[store])
        with self._txn.cursor(self._undo) as cursor:
            images = dict(cursor.getmulti([prefix + key for key in keys]))
        if images:
            for index, key in enumerate(keys):
                image = images.get(prefix + key)
                if image is not None:
                    values[index] = _before(image)
        return values

    def scan(self, store: str, lower: bytes = b"", upper: bytes | None = None, *,
             reverse: bool = False) -> Iterator[Row]:
        newest = super().scan(store, lower, upper, reverse=reverse)
        store_id = self._meta.stores[store]
        prefix = undo_prefix(store_id)
        end = undo_prefix(store_id + 1) if upper is None else prefix + upper
        images = rows_between(self._txn, self._undo, prefix + lower, end, reverse)
        return overlaid(newest, ((key[2:], _before(image)) for key, image in images), reverse)

    def count(self, store: str) -> int:
        self._database(store)
        return self._meta.committed_rows.get(store, 0)


def _before(image: bytes) -> bytes | None:
    return None if image == ABSENT else image[1:]
