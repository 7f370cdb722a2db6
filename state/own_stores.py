"""What a store written by a user promises (KIP-892), and what everything but reading and writing is by default.

``weir.state.engine.backing`` keeps rows of a task in one; ``weir.state.changelog.following`` lets one follow another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol


class StateStore(Protocol):
    """What every store of a user's promises; a class that inherits from it gets these defaults."""

    def commit(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Make everything written so far durable, if possible together with ``offsets``: the next offset to read, by
        topic and partition. Does nothing by default."""

    def committed_offset(self, topic: str, partition: int) -> int | None:
        """The offset at the newest commit; None if it is unknown, or if the store manages no offsets."""
        return None

    def manages_offsets(self) -> bool:
        """Whether ``committed_offset`` is kept even when the store is closed and reopened; False by default."""
        return False

    def approximate_num_uncommitted_bytes(self) -> int:
        """Roughly how many bytes the next commit makes durable; 0 for a store without transactions."""
        return 0


class KeyValueBytesStore(StateStore, ABC):
    """Keeps the committed rows of one store of one task, as bytes: Kafka Streams' ``KeyValueStore<Bytes, byte[]>``.

    Only ``get`` and ``put`` have to be written. Rows of an epoch come here once a commit covers them, so nothing is
    ever taken back. After a crash a commit's rows may come a second time. Weir keeps the keys itself: it asks only for
    keys that it has put and not deleted, and needs no ranges.

    One process writes at a time. Another one, for example ``weir query``, may have the same files open to read.
    """

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if there is none."""

    @abstractmethod
    def put(self, key: bytes, value: bytes | None) -> None:
        """Set the value of a key; None deletes it, and deleting an absent key is harmless."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values aligned with ``keys``. By default ``get`` for each."""
        return list(map(self.get, keys))

    def put_all(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Put rows, each key at most once. By default ``put`` for each."""
        for key, value in rows:
            self.put(key, value)

    def is_persistent(self) -> bool:
        """Whether the committed rows are still there when the process has ended without warning. If not, as by default,
        each process that opens the store fills it from the changelog first."""
        return False

    def close(self) -> None:
        """Release files and connections. Does nothing by default."""


Supplier = Callable[[Path], KeyValueBytesStore]
"""Opens a store in a folder that exists and is its own: one for each task, and another one after each restore."""
