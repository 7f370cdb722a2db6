"""A stopped Kafka Streams application as a migration: its changelog topics as state, its group's offsets as positions.

The two agree in Kafka if the application was stopped cleanly, and always under ``exactly_once_v2``. The layout of keys
and values belongs to ``formats``, writing the result to ``migration``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import polars as pl

from weir.pipelines.application import Application
from weir.pipelines.cluster import Groups
from weir.pipelines.migrate.errors import MigrationError
from weir.pipelines.migrate.formats import StoreSerdes, decode_rows, default_serdes, window_size_ms
from weir.pipelines.migrate.migration import Migration, StoreRows, source_positions
from weir.pipelines.migrate.outputs import output_rows
from weir.pipelines.operators.windows import TimeWindows
from weir.pipelines.serdes.source import RAW_SCHEMA, FetchedRecords
from weir.pipelines.topology import SubTopology
from weir.pipelines.topology.nodes import AggregateNode
from weir.state.types import StoreSpec, TableSpec, TaskId, TopicPartition

BATCH_BYTES = 16 << 20
HELD_ROWS = 1_000_000
"""Rows of a changelog in memory before older ones of the same key are dropped."""
EMPTY_READS = 10
"""Reads without progress, one second each, after which the brokers are considered away."""
TRANSACTION_LIMIT_S = 30.0
"""How long a transaction may take to end: brokers abort that of a killed application after 10 to 20 s."""
TRANSACTION_LOOK_S = 0.1


class ChangelogReader(Protocol):
    """Reads a topic partition, committed records only; implemented by ``weir.infra.kafka.reader.PartitionReader``."""

    def read(self, start: int, end: int, *, max_bytes: int) -> FetchedRecords: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class KafkaStreamsApp:
    """A Kafka Streams application with the topology of ``application``, under its own ``application.id``."""

    id: str
    application: Application
    cluster: Groups
    reader: Callable[[str, int], ChangelogReader]
    topic_counts: Mapping[str, int]
    """Partitions of the source topics."""
    serdes: Mapping[str, StoreSerdes] = field(default_factory=dict)
    """Serdes by store, where the program does not suggest the right ones."""
    changelogs: Mapping[str, str] = field(default_factory=dict)
    """Topics by store, where their names are not ``<id>-<store>-changelog``."""

    def migration(self) -> Migration:
        """Read everything, without changing anything.

        Raises:
            MigrationError: The application runs, has unread rows in a repartition topic, or does not fit.
        """
        source, committed = f"Kafka Streams application {self.id!r}", self._committed()
        topic_ids = self.cluster.topic_ids(self.topic_counts)
        partitions = [(topic, number) for topic, count in self.topic_counts.items() for number in range(count)]
        positions = source_positions(
            self.application,
            self.topic_counts,
            committed,
            self.cluster.beginning_offsets(partitions),
            self.cluster.end_offsets(partitions),
            source,
        )
        topology = self.application.topology
        if any(edge.node.is_message for edge in topology.edges):
            raise MigrationError(
                f"{source} joins tables by foreign key, and what Kafka Streams keeps for that uses its "
                "own hashes; read everything again without a migration"
            )
        for edge in topology.edges:
            for topic in dict.fromkeys((edge.name, edge.node.names.topic)):  # named by the program or by Kafka Streams
                self._require_drained(f"{self.id}-{topic}", committed)
        counts = topology.partition_counts(self.topic_counts)
        stores: list[StoreRows] = []
        outputs: list[tuple[TableSpec, pl.DataFrame]] = []
        clocks: dict[TaskId, dict[str, int]] = {}
        read_through: dict[TopicPartition, int] = {}
        for sub_topology in topology.sub_topologies:
            for store in sub_topology.stores:
                ends = self._ends(store, positions, counts[sub_topology.index])
                read_through |= ends
                for task, rows in self._rows_by_task(sub_topology, store, ends, counts[sub_topology.index]):
                    outputs += output_rows(sub_topology, store, rows)
                    if (clock := _clock(sub_topology, store, rows)) is not None:
                        clocks.setdefault(task, {})[store.name] = clock
                        rows = _still_open(sub_topology, store, rows, clock)
                    stores.append(StoreRows(task=task, store=store, rows=rows))
        if self._committed() != committed:
            raise MigrationError(f"{source} was started while it was being read; stop it, then migrate it")
        return Migration(
            application=self.application,
            source=source,
            counts=counts,
            positions=positions,
            topic_ids=topic_ids,
            stores=stores,
            clocks=clocks,
            outputs=outputs,
            read_through=read_through,
        )

    def _committed(self) -> Mapping[TopicPartition, int]:
        """The group's offsets, which do not change while it has no members."""
        if members := self.cluster.group_members(self.id):
            raise MigrationError(
                f"Kafka Streams application {self.id!r} has {members} members in its group; stop it, "
                "and wait for its session timeout (45 s) unless it leaves the group when it closes"
            )
        return self.cluster.group_offsets(self.id)

    def _ends(
        self, store: StoreSpec, positions: Mapping[TopicPartition, int], count: int
    ) -> Mapping[TopicPartition, int]:
        """Where reading each partition of a store's changelog ends; for a source topic, at the group's position."""
        topic = self.changelogs.get(store.name, f"{self.id}-{store.name}-changelog")
        found = self.cluster.partition_counts([topic]).get(topic)
        if found is None:
            raise MigrationError(
                f"store {store.name!r} has no changelog topic {topic!r}; name it with --changelog "
                f"{store.name}=TOPIC, the source topic of a table that Kafka Streams restores from it"
            )
        if found != count:
            raise MigrationError(
                f"changelog topic {topic!r} has {found} partitions, but the application has {count} tasks "
                "for it; its keys would belong to other tasks, so read everything again without a migration"
            )
        partitions = [(topic, number) for number in range(count)]
        if topic in self.topic_counts:
            return {
                partition: min(end, positions.get(partition, 0))
                for partition, end in self.cluster.end_offsets(partitions).items()
            }
        return self._settled_ends(partitions)

    def _settled_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The ends of partitions that only the application writes, once its last transaction has ended in each.

        A broker answers a commit before it has marked all records that belong to it.
        """
        until = time.monotonic() + TRANSACTION_LIMIT_S
        while True:
            written = self.cluster.end_offsets(partitions, is_committed=False)
            ends = self.cluster.end_offsets(partitions)
            still_open = [partition for partition in partitions if ends[partition] < written[partition]]
            if not still_open:
                return ends
            if time.monotonic() > until:
                topic, number = still_open[0]
                raise MigrationError(
                    f"topic {topic!r}, partition {number} has had an open transaction for "
                    f"{TRANSACTION_LIMIT_S:.0f} s; stop what writes there, and try again"
                )
            time.sleep(TRANSACTION_LOOK_S)

    def _rows_by_task(
        self, sub_topology: SubTopology, store: StoreSpec, ends: Mapping[TopicPartition, int], count: int
    ) -> Iterable[tuple[TaskId, pl.DataFrame]]:
        """The store's rows, each with the task that owns its key now."""
        serdes = self.serdes.get(store.name) or default_serdes(sub_topology, store)
        size_ms = window_size_ms(sub_topology, store)
        by_partition = {
            number: decode_rows(
                store, size_ms, serdes, self._newest(topic, number, end), f"topic {topic!r}, partition {number}"
            )
            for (topic, number), end in sorted(ends.items())
        }
        if sub_topology.keyed_edges:  # Kafka Streams may have partitioned the keys by other bytes
            edge, rows = sub_topology.keyed_edges[0], pl.concat(by_partition.values())
            owners = edge.partition_of(rows, count)
            by_partition = {number: rows.filter(owners == number) for number in range(count)}
        return [(TaskId(sub_topology.index, number), rows) for number, rows in by_partition.items()]

    def _newest(self, topic: str, partition: int, end: int) -> pl.DataFrame:
        """The newest record of each key below ``end``, without deleted keys: as ``RAW_SCHEMA``."""
        held = RAW_SCHEMA.to_frame()
        parts: list[pl.DataFrame] = []
        for raw in self._read(topic, partition, end):
            parts.append(raw.frame)
            if sum(part.height for part in parts) > max(HELD_ROWS, held.height):
                held, parts = _newest_of([held, *parts]), []
        return _newest_of([held, *parts]).filter(pl.col("value").is_not_null() & pl.col("key").is_not_null())

    def _require_drained(self, topic: str, committed: Mapping[TopicPartition, int]) -> None:
        """Raise ``MigrationError`` when a repartition topic has records that were not read yet: they would be lost."""
        count = self.cluster.partition_counts([topic]).get(topic, 0)
        partitions = [(topic, number) for number in range(count)]
        beginnings, ends = self.cluster.beginning_offsets(partitions), self._settled_ends(partitions)
        for partition in partitions:
            start = max(committed.get(partition, 0), beginnings[partition])
            if any(raw.frame.height for raw in self._read(*partition, ends[partition], start)):
                raise MigrationError(
                    f"Kafka Streams application {self.id!r} has records in its repartition topic "
                    f"{topic!r} that it has not read; start it without new input, let it catch up, "
                    "and stop it cleanly"
                )

    def _read(self, topic: str, partition: int, end: int, start: int | None = None) -> Iterable[FetchedRecords]:
        """All committed records of ``[start, end)``, by default from the oldest one kept."""
        at = self.cluster.beginning_offsets([(topic, partition)])[topic, partition] if start is None else start
        reader, empty = self.reader(topic, partition), 0
        try:
            while at < end:
                raw = reader.read(at, end, max_bytes=BATCH_BYTES)
                empty = 0 if raw.next_offset > at else empty + 1
                if empty > EMPTY_READS:
                    raise MigrationError(
                        f"topic {topic!r}, partition {partition} gave nothing after offset {at} of "
                        f"{end}; check that the brokers are up, and try again"
                    )
                at = raw.next_offset
                yield raw
        finally:
            reader.close()


def _newest_of(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The newest row of each key, as a copy: one row of a read would keep the bytes of all its rows in memory."""
    newest = pl.concat(parts).unique("key", keep="last", maintain_order=True)
    return pl.DataFrame({name: newest[name].to_list() for name in newest.columns}, schema=RAW_SCHEMA)


def _clock(sub_topology: SubTopology, store: StoreSpec, rows: pl.DataFrame) -> int | None:
    """The stream time of a windowed aggregation: the greatest timestamp that it has aggregated."""
    is_windowed = any(
        isinstance(node, AggregateNode) and node.store is store and node.windows for node in sub_topology.nodes
    )
    return int(rows["_ts"].max()) if is_windowed and rows.height else None  # type: ignore[arg-type]


def _still_open(sub_topology: SubTopology, store: StoreSpec, rows: pl.DataFrame, clock: int) -> pl.DataFrame:
    """The rows of windows that can still change; Kafka Streams also keeps closed ones, which it has forwarded."""
    start = pl.col("window_start").dt.timestamp("ms")
    return rows.filter(
        *(
            start >= node.windows.closed_before(clock)
            for node in sub_topology.nodes
            if isinstance(node, AggregateNode) and node.store is store and isinstance(node.windows, TimeWindows)
        )
    )
