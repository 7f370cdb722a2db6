"""What a task's local store promises, whatever keeps it: reads, one epoch's buffered writes, settling, applying.

Operators see ``StateReader`` and ``StateSession`` only. The implementation on disk is ``weir.state.engine.task_store``,
that in memory ``weir.state.engine.memory``; typed rows over these bytes are ``weir.state.stores``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from weir.state.engine.meta import Uncommitted
from weir.state.types import IsolationLevel, StateId

if TYPE_CHECKING:
    from weir.state.engine.session import EpochSession


class StateReader(Protocol):
    """Reads of one consistent snapshot of all stores of a task. Keys are order-preserving bytes."""

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values aligned with ``keys`` (any order, repeats allowed); None where a key is absent."""
        ...

    def scan(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows with ``lower <= key < upper`` in key order (``None``: to the end)."""
        ...

    def first(
        self, store: str, lower: bytes = b"", upper: bytes | None = None, *, reverse: bool = False
    ) -> tuple[bytes, bytes] | None:
        """The first row that ``scan`` would give, by one seek; None where there is none."""
        ...

    def count(self, store: str) -> int:
        """Rows in the store."""
        ...


class StateSession(StateReader, Protocol):
    """One epoch's view: the snapshot the epoch began with, under the epoch's own writes.

    Writes stay in memory until ``TransactionalStore.apply`` puts them down in one transaction (PROTOCOL 6).
    """

    def put_many(self, store: str, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Later writes of a key win; repeats within a call too (the last stands)."""
        ...

    def delete_many(self, store: str, keys: Sequence[bytes]) -> None:
        """Deleting an absent key is harmless and leaves no change."""
        ...

    def before_images(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values that the epoch's snapshot holds, its own writes aside, aligned with ``keys``."""
        ...

    def changes(self, store: str) -> dict[bytes, bytes | None]:
        """Net effect of the epoch so far: newest value by key, None where deleted."""
        ...


class Settlement(StrEnum):
    """How a store stood against the plan (PROTOCOL 5)."""

    READY = "ready"
    """The store holds the expected state: nothing was undone."""
    ROLLED_BACK = "rolled_back"
    """Uncommitted epochs were undone; the store now holds the committed state."""
    NEEDS_RESTORE = "needs_restore"
    """The store holds neither: the driver decides on a restore."""


class TransactionalStore(Protocol):
    """The stores of one task: epochs are applied whole, then committed or rolled back by ``settle`` (PROTOCOL 5 to 7).

    ``weir.state.engine.task_store.TaskStore`` says what each method promises and raises.
    """

    task_id: str

    @property
    def current(self) -> StateId | None: ...

    @property
    def base(self) -> StateId | None: ...

    @property
    def uncommitted(self) -> Uncommitted: ...

    def settle(self, *, generation: int, expected: StateId | None, committed: StateId | None) -> Settlement: ...

    def session(self) -> AbstractContextManager[EpochSession]: ...

    def apply(
        self,
        session: EpochSession,
        *,
        state: StateId,
        expected: StateId | None,
        generation: int,
        plan_hash: str,
        make_receipt: Callable[[Uncommitted], bytes],
    ) -> bytes | None: ...

    def reader(self, isolation: IsolationLevel) -> AbstractContextManager[StateReader]: ...

    def close(self) -> None: ...
