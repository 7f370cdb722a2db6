"""Reading rows: the newest values, or the committed values through the undo log, from this process or another.

An epoch's buffered writes belong to ``weir.state.engine.session``, writing and undoing to
``weir.state.engine.task_store``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import lmdb

from weir.state.engine.environment import FILE_MODE, MAX_DATABASES, begin
from weir.state.engine.meta import META_KEY, Meta, decode_meta
from weir.state.engine.ranges import Row, rows_between
from weir.state.engine.undo import ABSENT, undo_prefix
from weir.state.errors import TaskCorruptedError, UnknownStoreError
from weir.state.types import IsolationLevel


def overlaid(below: Iterable[Row], above: Iterable[tuple[bytes, bytes | None]], reverse: bool) -> Iterator[Row]:
    """Merge two ordered sequences of rows: ``above`` wins, and a None there hides the row ``below``."""
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


class NewestView:
    """The newest applied values: READ_UNCOMMITTED."""

    def __init__(self, txn: lmdb.Transaction[bytes], databases: Mapping[str, lmdb._Database], meta: Meta) -> None:
        self._txn, self._databases, self._meta = txn, databases, meta
        self.base = meta.base
        """The last commit that the store knows of."""

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        database = self._database(store)
        if len(keys) == 1:
            return [self._txn.get(keys[0], db=database)]
        with self._txn.cursor(database) as cursor:
            return list(map(cursor.get, keys, repeat(None)))

    def scan(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[Row]:
        return rows_between(self._txn, self._database(store), lower, upper, reverse)

    def first(self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False) -> Row | None:
        return next(self.scan(store, lower, upper, reverse=reverse), None)

    def count(self, store: str) -> int:
        self._database(store)
        return self._meta.rows.get(store, 0)

    def _database(self, store: str) -> lmdb._Database:
        try:
            return self._databases[store]
        except KeyError:
            raise UnknownStoreError(store, tuple(sorted(self._databases))) from None


class CommittedView(NewestView):
    """The values of the last commit that the store knows of: from the undo log, else the newest ones."""

    def __init__(
        self, txn: lmdb.Transaction[bytes], databases: Mapping[str, lmdb._Database], meta: Meta, undo: lmdb._Database
    ) -> None:
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

    def scan(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[Row]:
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


def view(
    txn: lmdb.Transaction[bytes],
    databases: Mapping[str, lmdb._Database],
    meta: Meta,
    undo_db: lmdb._Database,
    isolation: IsolationLevel,
) -> NewestView:
    if isolation is IsolationLevel.READ_COMMITTED:
        return CommittedView(txn, databases, meta, undo_db)
    return NewestView(txn, databases, meta)


@contextmanager
def open_reader(folder: Path, isolation: IsolationLevel) -> Iterator[NewestView]:
    """A snapshot of an instance that another process may be writing to; it never blocks the writer.

    Hold it for less than a second: an open snapshot keeps LMDB from reusing pages (PROTOCOL 18).

    Raises:
        TaskCorruptedError: The folder holds no readable instance.
    """
    with _opened(folder) as (txn, databases, meta, undo_db):
        yield view(txn, databases, meta, undo_db, isolation)


@contextmanager
def _opened(folder: Path) -> Iterator[tuple[lmdb.Transaction[bytes], dict[str, lmdb._Database], Meta, lmdb._Database]]:
    """A read transaction of an instance, its stores' databases, its meta record and its undo log."""

    def corrupted(reason: str) -> TaskCorruptedError:
        return TaskCorruptedError(folder.parent.name, str(folder), reason)

    try:
        environment = lmdb.open(str(folder), readonly=True, max_dbs=MAX_DATABASES, create=False, mode=FILE_MODE)
    except lmdb.Error as error:
        raise corrupted(f"LMDB: {error}") from error
    try:
        with begin(environment) as txn:
            meta_db = environment.open_db(b"_meta", txn=txn, create=False)
            meta = decode_meta(txn.get(META_KEY, db=meta_db))
            if meta is None:
                raise corrupted("the meta record is missing or damaged")
            undo_db = environment.open_db(b"_undo", txn=txn, create=False)
            databases = {store: environment.open_db(store.encode(), txn=txn, create=False) for store in meta.stores}
            yield txn, databases, meta, undo_db
    except lmdb.Error as error:
        raise corrupted(f"LMDB: {error}") from error
    finally:
        environment.close()


@dataclass(frozen=True, kw_only=True)
class StoreSize:
    """How much one store of one task holds."""

    rows: int
    """As of the last commit that the store knows of."""
    bytes: int
    """The pages of its rows, uncommitted ones included."""


def store_sizes(folder: Path) -> dict[str, StoreSize]:
    """The size of each store of an instance that another process may be writing to; reads no rows.

    Raises:
        TaskCorruptedError: The folder holds no readable instance.
    """
    with _opened(folder) as (txn, databases, meta, _):
        found = {}
        for store, database in databases.items():
            pages = txn.stat(database)
            used = pages["branch_pages"] + pages["leaf_pages"] + pages["overflow_pages"]
            found[store] = StoreSize(rows=meta.committed_rows.get(store, 0), bytes=used * pages["psize"])
        return found
