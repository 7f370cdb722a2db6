"""Stores of the user's own, and who remembers the offsets that their data stands for (KIP-892).

A store that manages its offsets puts them down with its data. For one that does not, a position file is kept beside
it, written after each of its commits, as Kafka Streams keeps ``.checkpoint``: after a crash it may be behind the
data, never ahead of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import polars as pl

from weir.state.stores.positions_file import TopicPartition, read_offsets, write_offsets


class StateStore(Protocol):
    """What a store of the user's own promises. Reading and writing are its own affair."""

    name: str

    def commit(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Make everything written so far durable, if possible together with ``offsets``: the next ones, by topic and
        partition."""
        ...

    def committed_offset(self, topic: str, partition: int) -> int | None:
        """The offset of the newest commit; None where none is known, or the store manages no offsets."""
        ...

    def manages_offsets(self) -> bool:
        """Whether ``committed_offset`` knows, even after the store was closed and opened again."""
        ...

    def approximate_num_uncommitted_bytes(self) -> int:
        """About how much the next commit makes durable; 0 for a store without transactions."""
        ...


class FollowingStore(StateStore, Protocol):
    """A store that takes over the rows of another."""

    def put_rows(self, rows: pl.DataFrame) -> None:
        """Take rows over: key columns, value columns, ``_ts``, and ``_deleted``, true where the key is gone.

        A key may come again; its last row stands.
        """
        ...


class OffsetKeeper:
    """One user's store with its offsets kept, by itself or in ``<name>.checkpoint`` in ``folder``."""

    def __init__(self, store: StateStore, folder: Path) -> None:
        """A file that is there already, from before the store managed its offsets, is taken over and removed.

        Raises:
            PositionsFileError: The file cannot be read.
        """
        self.store = store
        self._path = folder / f"{store.name}.checkpoint"
        self._kept: dict[TopicPartition, int] = read_offsets(self._path) if self._path.exists() else {}
        if store.manages_offsets() and self._path.exists():
            unknown: dict[str, dict[int, int]] = {}
            for (topic, partition), offset in self._kept.items():
                if store.committed_offset(topic, partition) is None:
                    unknown.setdefault(topic, {})[partition] = offset
            if unknown:
                store.commit(unknown)
            self._path.unlink()

    def commit(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Commit the store, then put the offsets down if it does not; those not named stay as they are."""
        self.store.commit(offsets)
        if not self.store.manages_offsets():
            self._kept |= {
                (topic, partition): offset
                for topic, of_topic in offsets.items()
                for partition, offset in of_topic.items()
            }
            write_offsets(self._path, self._kept)

    def committed_offset(self, topic: str, partition: int) -> int | None:
        """The offset of the newest commit; None before the first."""
        if self.store.manages_offsets():
            return self.store.committed_offset(topic, partition)
        return self._kept.get((topic, partition))
