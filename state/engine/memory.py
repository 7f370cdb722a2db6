"""A task's stores in memory, with the contract of those on disk: for tests of topologies, gone with the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from weir.state.engine.backing import ELSEWHERE, Backing, held_here
from weir.state.engine.contract import Settlement, StateView
from weir.state.engine.meta import Uncommitted
from weir.state.engine.ordered import OrderedRows
from weir.state.engine.ranges import Row
from weir.state.engine.session import EpochSession
from weir.state.engine.task_store import RESERVED_STORES, is_ahead
from weir.state.errors import FencedStoreError, UnknownStoreError
from weir.state.own_stores import KeyValueBytesStore
from weir.state.types import IsolationLevel, StateId

Rows = dict[str, OrderedRows[bytes]]


class MemoryStore:
    """Behaves like ``weir.state.engine.task_store.TaskStore``, whose docstrings say what each method promises."""

    def __init__(
        self, task_id: str, stores: Sequence[str], backing: Mapping[str, KeyValueBytesStore] | None = None
    ) -> None:
        """``backing`` has the users' stores behind some of ``stores``."""
        self.task_id = task_id
        self._backing = Backing(task_id, dict(backing or {}))
        self.current: StateId | None = None
        self.base: StateId | None = None
        self.generation = 0
        self.uncommitted = Uncommitted()
        self._rows: Rows = {store: OrderedRows() for store in (*RESERVED_STORES, *stores)}
        self._undo: dict[tuple[str, bytes], bytes | None] = {}
        self._receipt = ("", b"")
        self._open = 0
        """Sessions and readers that use ``_rows``: while there are any, changes are made to a copy."""

    def stored_receipt(self, plan_hash: str) -> bytes | None:
        return self._receipt[1] if plan_hash and self._receipt[0] == plan_hash else None

    def settle(
        self, *, generation: int, expected: StateId | None, committed: StateId | None, epoch: int | None = None
    ) -> Settlement:
        if self.generation > generation:
            raise FencedStoreError(self.task_id, generation, self.generation)
        self.generation = generation
        if self.current == expected:
            if expected == committed:
                if committed is not None and committed != self.base:
                    self._hand_over(committed)
                self.base, self.uncommitted, self._undo = committed, Uncommitted(), {}
            return Settlement.READY
        if expected != committed or self.base != committed or is_ahead(self.current, generation, epoch):
            return Settlement.NEEDS_RESTORE
        self._rows = self._committed_rows()
        self.current, self._receipt, self.uncommitted, self._undo = committed, ("", b""), Uncommitted(), {}
        return Settlement.ROLLED_BACK

    @contextmanager
    def session(self) -> Iterator[EpochSession]:
        def end() -> None:
            self._open -= 1

        self._open += 1
        session = EpochSession(self._exact(_MemoryView(self._rows)), self.current, end)
        try:
            yield session
        finally:
            session.close()

    def apply(
        self,
        session: EpochSession,
        *,
        state: StateId,
        expected: StateId | None,
        generation: int,
        plan_hash: str,
        make_receipt: Callable[[Uncommitted], bytes],
    ) -> bytes | None:
        changes = {store: session.changes(store) for store in session.changed_stores()}
        before = {store: list(map(self._rows[store].rows.get, written)) for store, written in changes.items()}
        session.close()
        if session.state != expected or self.current != expected or self.generation > generation:
            return None
        rows, undo, written_bytes = self._changeable(changes), dict(self._undo), 0
        for store, written in changes.items():
            if store in self._backing.stores:
                written = held_here(written)
            for key, image in zip(written, before[store], strict=True):
                undo.setdefault((store, key), image)
            _change(rows[store], written)
            written_bytes += sum(len(key) + len(value or b"") for key, value in written.items())
        uncommitted = Uncommitted(bytes=self.uncommitted.bytes + written_bytes, records=len(undo))
        receipt = make_receipt(uncommitted)
        self._rows, self._undo, self.uncommitted = rows, undo, uncommitted
        self.generation, self.current, self._receipt = generation, state, (plan_hash, receipt)
        return receipt

    @contextmanager
    def reader(self, isolation: IsolationLevel) -> Iterator[StateView]:
        rows = self._rows if isolation is IsolationLevel.READ_UNCOMMITTED else self._committed_rows()
        self._open += 1
        try:
            yield self._exact(_MemoryView(rows))
        finally:
            self._open -= 1

    def close(self) -> None:
        """Close the users' stores; there is nothing else to close."""
        self._backing.close()

    def _exact(self, view: StateView) -> StateView:
        return self._backing.exact(view, Path("memory"))

    def _hand_over(self, committed: StateId) -> None:
        """Give the users' stores what has been committed since ``base``."""
        for store in self._backing.stores:
            rows = self._rows[store].copy() if self._open else self._rows[store]
            keys = [key for name, key in self._undo if name == store]
            held = list(map(rows.rows.get, keys))
            values = [None if value is None else value[1:] for value in held]
            self._backing.hand_over(store, zip(keys, values, strict=True))
            self._backing.commit(store, committed)
            left = {key: ELSEWHERE for key, value in zip(keys, held, strict=True) if value is not None}
            _change(rows, left)
            self._rows = {**self._rows, store: rows}

    def _changeable(self, changes: Mapping[str, object]) -> Rows:
        """All rows; those of the stores to change are copied while anybody is reading them."""
        return {store: rows.copy() if self._open and store in changes else rows for store, rows in self._rows.items()}

    def _committed_rows(self) -> Rows:
        images: dict[str, dict[bytes, bytes | None]] = {}
        for (store, key), image in self._undo.items():
            images.setdefault(store, {})[key] = image
        rows = {store: of_store.copy() if store in images else of_store for store, of_store in self._rows.items()}
        for store, of_store in images.items():
            _change(rows[store], of_store)
        return rows


class _MemoryView:
    """A ``StateView`` of rows that do not change."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        rows = self._of(store).rows
        return [rows.get(key) for key in keys]

    def scan(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[Row]:
        return self._of(store).between(lower, upper, reverse)

    def first(self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False) -> Row | None:
        return next(self._of(store).between(lower, upper, reverse), None)

    def count(self, store: str) -> int:
        return len(self._of(store))

    def _of(self, store: str) -> OrderedRows[bytes]:
        try:
            return self._rows[store]
        except KeyError:
            raise UnknownStoreError(store, tuple(sorted(self._rows))) from None


def _change(rows: OrderedRows[bytes], values: Mapping[bytes, bytes | None]) -> None:
    """Write values; None deletes."""
    puts = {key: value for key, value in values.items() if value is not None}
    rows.put_many(list(puts), list(puts.values()))
    for key, value in values.items():
        if value is None:
            rows.remove(key)
