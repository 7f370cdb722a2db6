"""What operators see of a task's local state, wherever it is kept: a view to read, and one epoch's session to write.

``weir.state.engine.task_store`` keeps the state on disk, ``weir.state.engine.memory`` in memory; the docstrings of
``TaskStore`` say what both promise. Typed rows over these bytes belong to ``weir.state.stores``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Protocol


class StateView(Protocol):
    """One consistent, read-only view of all stores of a task. Keys are order-preserving bytes."""

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
        """The first row of the same ``scan``, found by one seek; None if there is none."""
        ...

    def count(self, store: str) -> int:
        """Rows in the store."""
        ...


class StateSession(StateView, Protocol):
    """One epoch's view: the snapshot the epoch began with, under the epoch's own writes.

    Writes stay in memory until ``TaskStore.apply`` writes them in one transaction (PROTOCOL 6).
    """

    def put_many(self, store: str, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Later writes of a key win, within a call too."""
        ...

    def delete_many(self, store: str, keys: Sequence[bytes]) -> None:
        """Deleting an absent key is harmless and records no change."""
        ...

    def before_images(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the epoch's snapshot, without its own writes, aligned with ``keys``."""
        ...

    def changes(self, store: str) -> dict[bytes, bytes | None]:
        """Net effect of the epoch so far: newest value by key, None where deleted."""
        ...


class Settlement(StrEnum):
    """What settling a store for a plan found and did (PROTOCOL 5)."""

    READY = "ready"
    """The store holds the expected state: nothing was undone."""
    ROLLED_BACK = "rolled_back"
    """Uncommitted epochs were undone; the store now holds the committed state."""
    NEEDS_RESTORE = "needs_restore"
    """The store holds neither: the driver decides whether to restore."""
