"""One epoch's view of a task's stores: a snapshot, under the epoch's own writes in memory (PROTOCOL 6).

Nothing here writes to disk; ``TaskStore.apply`` does, once the epoch's files are written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import lmdb

from state.engine.views import Row, overlaid, rows_between
from state.errors import TransactionClosedError, UnknownStoreError
from state.types import StateId


class EpochSession:
    """A ``StateSession`` over one LMDB read transaction.

    What was read stays in memory until the session ends: it is the before-image of what is written.
    """

    def __init__(self, txn: lmdb.Transaction[bytes], databases: Mapping[str, lmdb._Database],
                 end: Callable[[], None]) -> None:
        self._txn: lmdb.Transaction[bytes] | None = txn
        self._databases, self._end = databases, end
        self.state: StateId | None = None
        """The state id of the snapshot."""
        self._read: dict[str, dict[bytes, bytes | None]] = defaultdict(dict)
        self._written: dict[str, dict[bytes, bytes | None]] = defaultdict(dict)

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        before = self._before(store, keys)
        written = self._written.get(store)
        if written:
            return [written[key] if key in written else before[key] for key in keys]
        return [before[key] for key in keys]

    def scan(self, store: str, lower: bytes = b"", upper: bytes | None = None, *,
             reverse: bool = False) -> Iterator[Row]:
        """As ``StateReader.scan``; writes made while the scan runs do not show in it."""
        below = self._scan_snapshot(store, lower, upper, reverse)
        written = self._written.get(store)
        if not written:
            return below
        above = sorted(((key, value) for key, value in written.items()
                        if key >= lower and (upper is None or key < upper)), reverse=reverse)
        return overlaid(below, above, reverse)

    def count(self, store: str) -> int:
        rows = self._txn_open().stat(self._database(store))["entries"]
        written = self._written.get(store, {})
        before = self._before(store, list(written))
        return rows + sum((value is not None) - (before[key] is not None) for key, value in written.items())

    def put_many(self, store: str, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self._database(store)
        self._written[store].update(zip(keys, values, strict=True))

    def delete_many(self, store: str, keys: Sequence[bytes]) -> None:
        before, written = self._before(store, keys), self._written[store]
        for key in keys:
            if before[key] is None:
                written.pop(key, None)
            else:
                written[key] = None

    def changes(self, store: str) -> dict[bytes, bytes | None]:
        """Newest value by key, None where deleted, in key order."""
        self._database(store)
        written = self._written[store]
        self._written[store] = {key: written[key] for key in sorted(written)}  # sorting again is then cheap
        return dict(self._written[store])

    def changed_stores(self) -> list[str]:
        """The stores that the epoch wrote to, by name."""
        return sorted(store for store, written in self._written.items() if written)

    def before_images(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values that the snapshot holds, aligned with ``keys``."""
        before = self._before(store, keys)
        return [before[key] for key in keys]

    def close(self) -> None:
        """End the snapshot; the written values stay."""
        if self._txn is not None:
            self._txn = None
            self._end()

    def _before(self, store: str, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
        """Everything read of the store so far, ``keys`` included."""
        database, read = self._database(store), self._read[store]
        missing = sorted(key for key in keys if key not in read) if read else sorted(keys)
        if missing:
            with self._txn_open().cursor(database) as cursor:
                found = cursor.getmulti(missing)
            read.update(dict.fromkeys(missing))
            read.update(found)
        return read

    def _scan_snapshot(self, store: str, lower: bytes, upper: bytes | None, reverse: bool) -> Iterator[Row]:
        read = self._read[store]
        for key, value in rows_between(self._txn_open(), self._database(store), lower, upper, reverse):
            read[key] = value
            yield key, value

    def _database(self, store: str) -> lmdb._Database:
        try:
            return self._databases[store]
        except KeyError:
            raise UnknownStoreError(store, tuple(sorted(self._databases))) from None

    def _txn_open(self) -> lmdb.Transaction[bytes]:
        if self._txn is None:
            raise TransactionClosedError()
        return self._txn
