"""User-defined stores that follow another, and who remembers the offsets that their data corresponds to (KIP-892).

A store that manages its offsets saves them with its data. For one that does not, an offsets file is kept, written after
each of its commits, like Kafka Streams' ``.checkpoint``: after a crash it may be behind the data, but never ahead of
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import polars as pl

from weir.state.own_stores import StateStore
from weir.state.stores.positions_file import read_offsets, write_offsets


class FollowingStore(StateStore, Protocol):
    """A store that copies the rows of another. A class that inherits from it only needs a name and ``put_rows``."""

    name: str

    def put_rows(self, rows: pl.DataFrame) -> None:
        """Store rows: key columns, value columns, ``_ts``, and ``_deleted``, which is true if the key was deleted.

        A key may occur more than once; its last row wins.
        """
        ...


class OffsetKeeper:
    """A user-defined store and its offsets: kept by the store itself, else in ``<name>.checkpoint`` in ``folder``.

    A ``<name>.position`` that Kafka Streams left beside the store, with the last offset of each topic partition, is
    taken over too.
    """

    def __init__(self, store: FollowingStore, folder: Path) -> None:
        """A file left from before the store managed its offsets is handed to the store, and removed once the store has
        committed it; so is the ``.position`` file.

        Raises:
            PositionsFileError: A file cannot be read.
        """
        self.store = store
        self._path, left = folder / f"{store.name}.checkpoint", folder / f"{store.name}.position"
        found = read_offsets(self._path) if self._path.exists() else {}
        last = read_offsets(left) if left.exists() else {}
        self._kept = {partition: offset + 1 for partition, offset in last.items() if offset is not None}
        self._kept |= {partition: offset for partition, offset in found.items() if offset is not None}
        if store.manages_offsets():
            unknown: dict[str, dict[int, int]] = {}
            for (topic, partition), offset in self._kept.items():
                if store.committed_offset(topic, partition) is None:
                    unknown.setdefault(topic, {})[partition] = offset
            if unknown:
                store.commit(unknown)
            self._path.unlink(missing_ok=True)
        elif left.exists():
            write_offsets(self._path, self._kept)
        left.unlink(missing_ok=True)

    def commit(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Commit the store, then save the offsets if it does not; offsets not named here stay as they are."""
        self.store.commit(offsets)
        if not self.store.manages_offsets():
            self._kept |= {
                (topic, partition): offset
                for topic, of_topic in offsets.items()
                for partition, offset in of_topic.items()
            }
            write_offsets(self._path, self._kept)

    def committed_offset(self, topic: str, partition: int) -> int | None:
        """The offset at the newest commit; None before the first."""
        if self.store.manages_offsets():
            return self.store.committed_offset(topic, partition)
        return self._kept.get((topic, partition))
