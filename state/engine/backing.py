"""Stores of the user's behind stores of a task: they hold committed values, the environment all keys (PROTOCOL 32).

Of a key that no commit covers yet, the environment holds the value too; of all others it only says that the value is
elsewhere. So undoing, counting and scanning need nothing of a user's store. When rows are handed over to it is decided
in ``weir.state.engine.task_store``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from weir.state.engine.contract import StateView
from weir.state.engine.ranges import Row
from weir.state.errors import OwnStoreError, TaskCorruptedError
from weir.state.own_code import failures
from weir.state.own_stores import KeyValueBytesStore, Supplier
from weir.state.types import CHANGELOG_FOLDER, StateId, StoreSpec

ELSEWHERE, HERE = b"\x00", b"\x01"
"""What the environment holds for a key: ``ELSEWHERE``, or ``HERE`` followed by the value."""
BATCH_ROWS = 10_000
"""Rows that are handed over at a time."""

_FOLDER = "own"
_PARTITION = 0
"""A changelog is a single log, however many tasks write to it."""
_SCANNED_ROWS = 256


def suppliers_of(specs: Iterable[StoreSpec]) -> dict[str, Supplier]:
    """By name, what opens the user's stores behind ``specs``."""
    return {spec.name: spec.supplier for spec in specs if spec.supplier is not None}


def open_store(instance: Path, name: str, supplier: Supplier) -> KeyValueBytesStore:
    """The user's store behind the store ``name`` of an instance."""
    folder = instance / _FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    return supplier(folder)


def opened_stores(instance: Path, suppliers: Mapping[str, Supplier]) -> dict[str, KeyValueBytesStore]:
    """All of them, by name."""
    return {name: open_store(instance, name, supplier) for name, supplier in suppliers.items()}


class Backing:
    """The user's stores behind the stores of one task instance, open in this process."""

    def __init__(self, task_id: str, stores: Mapping[str, KeyValueBytesStore]) -> None:
        self.stores = stores
        self._task_id = task_id
        self._filled: dict[str, int] = {}
        """The epoch through which this process has filled each store that is not persistent."""

    def behind(self, base: StateId | None) -> dict[str, int]:
        """The stores that lack committed rows, and the epoch above which they do (-1: all rows)."""
        if base is None:
            return {}
        reached = {name: self._reached(name, base) for name in self.stores}
        return {name: epoch for name, epoch in reached.items() if epoch < base.epoch}

    def hand_over(self, name: str, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Put committed rows; None deletes.

        Raises:
            OwnStoreError: The store failed.
        """
        try:
            self.stores[name].put_all(rows)
        except failures() as error:
            raise OwnStoreError(self._task_id, name, f"could not put rows: {type(error).__name__}: {error}") from error

    def commit(self, name: str, state: StateId) -> None:
        """Everything up to ``state`` has been handed over.

        Raises:
            OwnStoreError: The store failed, or manages its offsets but did not keep this one.
        """
        store, offset = self.stores[name], state.epoch + 1
        try:
            store.commit({changelog_of(name): {_PARTITION: offset}})
        except failures() as error:
            raise OwnStoreError(self._task_id, name, f"could not commit: {type(error).__name__}: {error}") from error
        self._filled[name] = state.epoch
        if (reached := self._reached(name, state)) < state.epoch:
            raise OwnStoreError(
                self._task_id, name, f"manages its offsets, but after commit({offset}) it is at {reached + 1}"
            )

    def approximate_num_uncommitted_bytes(self) -> int:
        """What the stores say that their next commits make durable.

        Raises:
            OwnStoreError: A store failed.
        """
        total = 0
        for name, store in self.stores.items():
            try:
                total += max(0, int(store.approximate_num_uncommitted_bytes()))
            except Exception as error:
                reason = f"could not say how much is uncommitted: {type(error).__name__}: {error}"
                raise OwnStoreError(self._task_id, name, reason) from error
        return total

    def exact(self, held: StateView, folder: Path) -> StateView:
        """``held`` with the values of the users' stores, for the process that hands them over.

        A row that a user's store has lost raises ``TaskCorruptedError`` when it is read.
        """

        def lost(store: str, key: bytes) -> TaskCorruptedError:
            return TaskCorruptedError(
                self._task_id, str(folder), f"the store of your own behind {store!r} has lost the row of key {key!r}"
            )

        return BackedView(held, self.stores, lost) if self.stores else held

    def close(self) -> None:
        for store in self.stores.values():
            store.close()

    def _reached(self, name: str, base: StateId) -> int:
        """The epoch through which a store has all committed rows."""
        store = self.stores[name]
        if not store.is_persistent():
            return self._filled.get(name, -1)
        if not store.manages_offsets():
            return base.epoch  # rows are handed over before the environment says so
        offset = store.committed_offset(changelog_of(name), _PARTITION)
        return -1 if offset is None else offset - 1


def held_here(written: Mapping[bytes, bytes | None]) -> dict[bytes, bytes | None]:
    """What the environment holds for values that no commit covers yet."""
    return {key: None if value is None else HERE + value for key, value in written.items()}


class BackedView:
    """A ``StateView`` with the values that user's stores hold."""

    def __init__(
        self,
        held: StateView,
        stores: Mapping[str, KeyValueBytesStore],
        lost: Callable[[str, bytes], Exception] | None = None,
    ) -> None:
        """``lost`` makes the error for a row that the user's store does not have, given store and key. Without it the
        row is left out: another process may have handed its deletion over since the view began."""
        self._held, self._stores, self._lost = held, stores, lost

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._values(store, keys, self._held.get_many(store, keys))

    def scan(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[Row]:
        rows = self._held.scan(store, lower, upper, reverse=reverse)
        return rows if store not in self._stores else self._resolved(store, rows, _SCANNED_ROWS)

    def first(self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False) -> Row | None:
        rows = self._held.scan(store, lower, upper, reverse=reverse)
        return next(self._resolved(store, rows, 1), None)

    def count(self, store: str) -> int:
        return self._held.count(store)

    def _resolved(self, store: str, rows: Iterator[Row], at_a_time: int) -> Iterator[Row]:
        while part := list(islice(rows, at_a_time)):
            keys = [key for key, _ in part]
            values = self._values(store, keys, [held for _, held in part])
            yield from ((key, value) for key, value in zip(keys, values, strict=True) if value is not None)

    def _values(self, store: str, keys: Sequence[bytes], held: Sequence[bytes | None]) -> list[bytes | None]:
        own = self._stores.get(store)
        if own is None:
            return list(held)
        away = [key for key, value in zip(keys, held, strict=True) if value == ELSEWHERE]
        fetched = dict(zip(away, own.get_many(away), strict=True)) if away else {}
        if self._lost is not None and None in fetched.values():
            raise self._lost(store, next(key for key, value in fetched.items() if value is None))
        return [
            None if value is None else fetched[key] if value == ELSEWHERE else value[1:]
            for key, value in zip(keys, held, strict=True)
        ]


@contextmanager
def reading_own(held: StateView, instance: Path, spec: StoreSpec) -> Iterator[StateView]:
    """``held``, a view of the instance from any process, with the values of the user's store behind ``spec``.

    Raises:
        OwnStoreError: The store is in the memory of the process that runs the task.
    """
    if spec.supplier is None:
        yield held
        return
    store = open_store(instance, spec.name, spec.supplier)
    try:
        if not store.is_persistent():
            raise OwnStoreError(
                instance.parent.name,
                spec.name,
                "is not persistent, so only the process that runs the task can read it; its rows are also in the "
                f'changelog: weir.read_table("WAREHOUSE/APP/{changelog_of(spec.name)}")',
            )
        yield BackedView(held, {spec.name: store})
    finally:
        store.close()


def changelog_of(name: str) -> str:
    """The topic of a store's offsets."""
    return f"{CHANGELOG_FOLDER}/{name}"
