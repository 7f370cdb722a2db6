"""A stopped Kafka Streams application as a migration: its changelog topics as state, its group's offsets as positions.

The two agree in Kafka if the application was stopped cleanly, and always under ``exactly_once_v2``. The layout of keys
and values belongs to ``formats``, writing the result to ``migration``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import polars as pl

from weir.pipelines.application import Application
from weir.pipelines.cluster import Groups
from weir.pipelines.migrate.changelog_topics import ChangelogReader, ChangelogTopics
from weir.pipelines.migrate.errors import MigrationError, NotMovedError
from weir.pipelines.migrate.foreign_keys import standing_results, subscriptions
from weir.pipelines.migrate.formats import ChangelogFormat
from weir.pipelines.migrate.migration import Migration, StoreRows, source_positions
from weir.pipelines.migrate.outputs import output_rows
from weir.pipelines.migrate.serdes import StoreSerdes
from weir.pipelines.migrate.stores import DERIVED, format_of, keepers, still_open
from weir.pipelines.migrate.stream_joins import numbered
from weir.pipelines.operators.suppress import HELD_BYTES, held_bytes
from weir.pipelines.topology import Node, SubTopology
from weir.pipelines.topology.foreign_key import ResponseJoinNode, SubscriptionJoinNode
from weir.pipelines.topology.joins import StreamJoinNode
from weir.pipelines.topology.nodes import AggregateNode, SuppressNode
from weir.state.types import StoreClock, StoreSpec, TaskId, TopicPartition


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
        for edge in topology.edges:
            for topic in dict.fromkeys((edge.name, edge.node.names.topic)):  # named by the program or by Kafka Streams
                self._require_drained(f"{self.id}-{topic}", committed)
        counts = topology.partition_counts(self.topic_counts)
        taken = _Taken()
        for sub_topology in topology.sub_topologies:
            for node in sub_topology.nodes:
                if not isinstance(node, DERIVED):
                    self._take(sub_topology, node, positions, counts[sub_topology.index], taken)
        self._derive(counts, taken)
        outputs = [
            output
            for sub_topology in topology.sub_topologies
            for store in sub_topology.stores
            for (task, name), rows in taken.rows.items()
            if (task.sub_topology, name) == (sub_topology.index, store.name)
            for output in output_rows(sub_topology, store, rows)
        ]
        stores = [
            StoreRows(task=task, store=store, rows=still_open(node, store, rows, taken.clocks.get(task, {})))
            for sub_topology in topology.sub_topologies
            for name, (node, store) in keepers(sub_topology).items()
            for (task, held), rows in taken.rows.items()
            if (task.sub_topology, held) == (sub_topology.index, name)
        ]
        if self._committed() != committed:
            raise MigrationError(f"{source} was started while it was being read; stop it, then migrate it")
        return Migration(
            application=self.application,
            source=source,
            counts=counts,
            positions=positions,
            topic_ids=topic_ids,
            stores=stores,
            clocks=taken.clocks,
            outputs=outputs,
            read_through=taken.read_through,
            left_out=taken.left_out,
        )

    @property
    def _topics(self) -> ChangelogTopics:
        return ChangelogTopics(cluster=self.cluster, reader=self.reader)

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
        return self._topics.settled_ends(partitions)

    def _take(
        self,
        sub_topology: SubTopology,
        node: Node,
        positions: Mapping[TopicPartition, int],
        count: int,
        taken: _Taken,
    ) -> None:
        """Add the rows of the node's stores to ``taken``, each with the task that owns its key now, and the clocks."""
        by_task: dict[int, dict[str, pl.DataFrame]] = {number: {} for number in range(count)}
        for store in node.stores:
            try:
                format = format_of(node, store, self.serdes.get(store.name))
            except NotMovedError as error:
                taken.left_out[error.store] = error.reason
                continue
            ends = self._ends(store, positions, count)
            taken.read_through.update(ends)
            for number, rows in self._rows_by_task(sub_topology, format, ends, count).items():
                by_task[number][store.name] = rows
        for number, held in by_task.items():
            task = TaskId(sub_topology.index, number)
            clocks: dict[str, int] = {}
            if isinstance(node, StreamJoinNode):
                held, clocks = numbered(node, held)
            else:
                held = {name: rows.drop("_order") for name, rows in held.items()}
                if held:
                    clocks = _clocks(node, held[node.stores[0].name], taken.stream_time(task, node))
            if clocks:
                taken.clocks.setdefault(task, {}).update(clocks)
            taken.rows.update({(task, name): rows for name, rows in held.items()})

    def _derive(self, counts: Mapping[int, int], taken: _Taken) -> None:
        """Add the stores of joins by foreign key, which follow from those of the tables."""
        topology = self.application.topology
        for sub_topology in topology.sub_topologies:
            for node in sub_topology.nodes:
                try:
                    if isinstance(node, SubscriptionJoinNode):
                        found = list(subscriptions(topology, counts, node, taken.rows))
                    elif isinstance(node, ResponseJoinNode) and node.standing is not None:
                        found = list(standing_results(topology, counts, node, taken.rows))
                    else:
                        continue
                except NotMovedError as error:
                    taken.left_out[error.store] = error.reason
                    continue
                taken.rows.update({(each.task, each.store.name): each.rows for each in found})

    def _rows_by_task(
        self, sub_topology: SubTopology, format: ChangelogFormat, ends: Mapping[TopicPartition, int], count: int
    ) -> Mapping[int, pl.DataFrame]:
        """The store's rows by the partition of the task that owns their keys now, with ``_order``."""
        by_partition = {
            number: format.decode(
                self._topics.newest(topic, number, end, keeps_versions=format.keeps_versions),
                f"topic {topic!r}, partition {number}",
            )
            for (topic, number), end in sorted(ends.items())
        }
        if sub_topology.keyed_edges:  # Kafka Streams may have partitioned the keys by other bytes
            edge, rows = sub_topology.keyed_edges[0], pl.concat(by_partition.values())
            owners = edge.partition_of(rows.with_columns(_partition=pl.lit(0, pl.Int32())), count)
            by_partition = {number: rows.filter(owners == number) for number in range(count)}
        return by_partition

    def _require_drained(self, topic: str, committed: Mapping[TopicPartition, int]) -> None:
        """Raise ``MigrationError`` when a repartition topic has records that were not read yet: they would be lost."""
        count = self.cluster.partition_counts([topic]).get(topic, 0)
        partitions = [(topic, number) for number in range(count)]
        beginnings, ends = self.cluster.beginning_offsets(partitions), self._topics.settled_ends(partitions)
        for partition in partitions:
            start = max(committed.get(partition, 0), beginnings[partition])
            if any(raw.frame.height for raw in self._topics.read(*partition, ends[partition], start)):
                raise MigrationError(
                    f"Kafka Streams application {self.id!r} has records in its repartition topic "
                    f"{topic!r} that it has not read; start it without new input, let it catch up, "
                    "and stop it cleanly"
                )


@dataclass(kw_only=True)
class _Taken:
    """What has been read so far."""

    rows: dict[tuple[TaskId, str], pl.DataFrame] = field(default_factory=dict)
    clocks: dict[TaskId, dict[str, int]] = field(default_factory=dict)
    read_through: dict[TopicPartition, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def stream_time(self, task: TaskId, node: Node) -> int | None:
        """The newest timestamp that the stores before ``node`` have; they come before it in the topology."""
        known = self.clocks.get(task, {})
        found: list[int] = []
        waiting = list(node.parents)
        while waiting:
            at = waiting.pop()
            for store in at.stores:
                rows = self.rows.get((task, store.name))
                if rows is not None and rows.height:
                    found.append(known.get(store.name, int(rows["_ts"].max())))  # type: ignore[arg-type]
            if not at.stores:
                waiting += at.parents
        return max(found, default=None)


def _clocks(node: Node, rows: pl.DataFrame, stream_time_ms: int | None) -> dict[str, int]:
    """The clocks of a node from the rows of its store: the greatest timestamp that it has seen, if it asks for one."""
    (store, *_) = node.stores
    newest = [int(rows["_ts"].max())] if rows.height else []  # type: ignore[arg-type]
    if isinstance(node, SuppressNode):
        newest += [] if stream_time_ms is None else [stream_time_ms]
        return {store.name: max(newest), HELD_BYTES + store.name: held_bytes(store, rows)} if newest else {}
    is_windowed = isinstance(node, AggregateNode) and node.windows is not None
    is_asked = is_windowed or (store.retention_ms is not None and store.expires_by is StoreClock.STREAM_TIME)
    return {store.name: max(newest)} if newest and is_asked else {}
