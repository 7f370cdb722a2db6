"""The global tables of a topology in one worker: loaded before its first epoch, then kept up to date.

They come from their topics alone: there is no changelog, and each run reads the topics from the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from weir.pipelines.on_error import ErrorHandling
from weir.pipelines.serdes.source import RawRecords
from weir.pipelines.tasks.global_table import GlobalTable, Read
from weir.pipelines.tasks.plan import OffsetRange
from weir.pipelines.topology import Topology
from weir.state.engine.contract import StateView


class GlobalTables:
    """All global tables, for the epochs of a worker or, in memory, for tests."""

    def __init__(self, topology: Topology, handling: ErrorHandling, state_folder: Path | None = None) -> None:
        """Workers with the same ``state_folder`` share their rows there; without one they are in memory."""
        self._state_folder = state_folder
        self._generation: int | None = None
        self._by_topic = {node.source.topic: GlobalTable(node, handling) for node in topology.global_tables}
        self.by_store: Mapping[str, StateView] = {
            node.store.name: self._by_topic[node.source.topic] for node in topology.global_tables
        }
        """What operators look rows up in."""

    def read_on(self, ranges: Sequence[OffsetRange], read: Read, now_ms: int, generation: int) -> None:
        """Have every record up to the end of each range, for a plan of a driver's ``generation``.

        Raises:
            BadInputError: A record cannot be read, and the application fails on it; else it is skipped.
            TimeoutError: The brokers return nothing for half a minute.
        """
        if self._state_folder is not None and self._generation != generation:
            for table in self._by_topic.values():
                table.share(self._state_folder, generation)
            self._generation = generation
        for topic in dict.fromkeys(wanted.topic for wanted in ranges):
            of_topic = [wanted for wanted in ranges if wanted.topic == topic]
            self._by_topic[topic].read_on(of_topic, read, now_ms)

    def take(self, raw: RawRecords, now_ms: int) -> None:
        """Put the records of one topic partition into the topic's table."""
        self._by_topic[raw.topic].take(raw, now_ms)

    def release(self, unused_s: float = 0.0) -> None:
        """Hold no snapshot of shared rows that no plan has wanted for so long: pages cannot be used again under one."""
        for table in self._by_topic.values():
            table.release(unused_s)
