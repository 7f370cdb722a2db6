"""One epoch's view of a task's stores: a snapshot, under the epoch's own writes in memory (PROTOCOL 6).

Nothing here writes to a store; ``TaskStore.apply`` does, once the epoch's files are written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import compress

from weir.state.engine.contract import StateView
from weir.state.engine.images import FEW, Images
from weir.state.engine.ordered import OrderedRows
from weir.state.engine.ranges import Row
from weir.state.engine.views import overlaid
from weir.state.errors import TransactionClosedError
from weir.state.types import StateId

Savepoint = dict[str, OrderedRows[bytes | None]]


class EpochSession:
    """A ``StateSession`` over the snapshot of a store.

    What was read stays in memory until the session ends: it gives the before-images of what is written.
    """

    def __init__(self, snapshot: StateView, state: StateId | None, end: Callable[[], None]) -> None:
        self.state = state
        """The state id of the snapshot."""
        self._snapshot: StateView | None = snapshot
        self._end = end
        self._read: dict[str, Images] = defaultdict(Images)
        self._written: dict[str, OrderedRows[bytes | None]] = {}
        self._before: dict[str, list[bytes | None]] = {}
        """By store, what the keys of ``changes`` held before, if nothing was written since that was asked."""
        self._deleted: set[str] = set()
        """Stores of which keys were deleted that may have been absent: they count as changes until that is known."""

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        if store not in self._written:
            return self.before_images(store, keys)
        written = self._written[store].rows
        if len(keys) == 1 and keys[0] in written:  # what it was before is read once it is needed
            return [written[keys[0]]]
        before = self.before_images(store, keys)
        if written.keys().isdisjoint(keys):
            return before
        return [written.get(key, image) for key, image in zip(keys, before, strict=True)]

    def scan(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[Row]:
        """Like ``StateView.scan``; writes made while the scan runs do not show in it."""
        below = self._scan_snapshot(store, lower, upper, reverse)
        if store not in self._written:
            return below
        return overlaid(below, list(self._written[store].between(lower, upper, reverse)), reverse)

    def first(self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False) -> Row | None:
        rows = self._scan_snapshot(store, lower, upper, reverse)
        if store in self._written:
            rows = overlaid(rows, self._written[store].between(lower, upper, reverse), reverse)
        return next(rows, None)

    def count(self, store: str) -> int:
        rows = self._open().count(store)
        if store not in self._written:
            return rows
        before = self.images(store)
        return rows + before.count(None) - list(self.changes(store).values()).count(None)

    def put_many(self, store: str, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self._before.pop(store, None)
        self._of(store).put_many(keys, values)

    def delete_many(self, store: str, keys: Sequence[bytes]) -> None:
        if keys:
            self._before.pop(store, None)
            self._of(store).put_many(keys, [None] * len(keys))
            self._deleted.add(store)

    def changes(self, store: str) -> dict[bytes, bytes | None]:
        """Newest value by key, None where deleted, in key order."""
        if store in self._deleted:
            self.images(store)
        return self._of(store).in_order()

    def images(self, store: str) -> list[bytes | None]:
        """What the keys of ``changes`` hold in the snapshot, in their order."""
        if store not in self._before:
            written = self._of(store).in_order()
            before = self._read[store].once(list(written), lambda missing: self._open().get_many(store, missing))
            if store in self._deleted:
                is_change = [
                    value is not None or image is not None
                    for value, image in zip(written.values(), before, strict=True)
                ]
                if not all(is_change):
                    self._written[store] = OrderedRows(dict(compress(written.items(), is_change)))
                    before = list(compress(before, is_change))
                self._deleted.remove(store)
            self._before[store] = before
        return self._before[store]

    def changed_stores(self) -> list[str]:
        """The stores that the epoch wrote to, by name."""
        self._settle()
        return sorted(store for store, written in self._written.items() if len(written))

    def before_images(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the snapshot, aligned with ``keys``."""
        return self._read[store].of(keys, lambda missing: self._open().get_many(store, missing))

    def num_changed_keys(self) -> int:
        """How many keys the epoch has written or deleted so far."""
        self._settle()
        return sum(map(len, self._written.values()))

    def approximate_num_uncommitted_bytes(self) -> int:
        """Bytes of the keys and values that the epoch has written so far and not deleted again (KIP-892)."""
        self._settle()
        return sum(
            sum(map(len, written.rows)) + sum(map(len, filter(None, written.rows.values())))
            for written in self._written.values()
        )

    def savepoint(self) -> Savepoint:
        """What was written so far, for ``roll_back``."""
        return {store: written.copy() for store, written in self._written.items()}

    def roll_back(self, to: Savepoint) -> None:
        """Forget what was written since ``to`` was made; it can be used once."""
        self._written, self._before, self._deleted = to, {}, set(to)

    def close(self) -> None:
        """Release the snapshot; the written values stay."""
        if self._snapshot is not None:
            self._snapshot = None
            self._end()

    def _settle(self) -> None:
        """Forget deletions of keys that were absent."""
        for store in list(self._deleted):
            self.images(store)

    def _of(self, store: str) -> OrderedRows[bytes | None]:
        if store not in self._written:
            self._open().count(store)  # raises for an unknown store
            self._written[store] = OrderedRows()
        return self._written[store]

    def _scan_snapshot(self, store: str, lower: bytes, upper: bytes | None, reverse: bool) -> Iterator[Row]:
        keys: list[bytes] = []
        values: list[bytes] = []
        try:
            for key, value in self._open().scan(store, lower, upper, reverse=reverse):
                keys.append(key)
                values.append(value)
                yield key, value
        finally:
            if len(keys) > FEW:
                self._read[store].add_run(keys, values)
            elif keys:
                self._read[store].rows.update(zip(keys, values, strict=True))

    def _open(self) -> StateView:
        if self._snapshot is None:
            raise TransactionClosedError()
        return self._snapshot
