"""A stopped application of Weir back to Kafka Streams: its committed stores as changelog topics, its positions as the
group's offsets.

What is written is the difference between what a store holds and what its changelog topic holds, and the offsets come
last, so a return that was cut off anywhere is finished by doing it again. Kafka Streams restores its stores from the
topics; the layout of their records belongs to ``formats``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from weir.pipelines.application import Application
from weir.pipelines.cluster import Groups
from weir.pipelines.migrate.changelog_topics import ChangelogReader, ChangelogTopics
from weir.pipelines.migrate.errors import MigrationError, NotMovedError
from weir.pipelines.migrate.formats import RECORDS, ChangelogFormat
from weir.pipelines.migrate.join_formats import LEFT
from weir.pipelines.migrate.kafka_streams_files import check_checkpoint, write_checkpoint
from weir.pipelines.migrate.serdes import StoreSerdes
from weir.pipelines.migrate.stores import format_of, keepers, still_open, subscription_format, suppression_format
from weir.pipelines.serdes.partitioner import murmur2
from weir.pipelines.topology import Node, SubTopology
from weir.pipelines.topology.foreign_key import ResponseJoinNode, SubscriptionJoinNode
from weir.pipelines.topology.nodes import AggregateNode, SuppressNode, TableNode
from weir.state.changelog.reading import TaskChangelog
from weir.state.commit.record import CommitRecord
from weir.state.storage.places import Place
from weir.state.stores.specs import GONE, SINCE
from weir.state.types import StoreSpec, TaskId, TopicPartition


class WritableCluster(Groups, Protocol):
    """A cluster in which topics can be created and offsets set; ``weir.infra.kafka.admin.KafkaAdmin`` is one."""

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> bool: ...

    def set_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None: ...


class RecordWriter(Protocol):
    """Appends records (as ``formats.RECORDS``); implemented by ``weir.infra.kafka.writer.RecordWriter``."""

    def write(
        self, topic: str, partition: int, records: pl.DataFrame, headers: Sequence[tuple[str, bytes]] = ()
    ) -> None: ...


@dataclass(frozen=True, kw_only=True)
class TopicWrite:
    """What a changelog topic lacks."""

    topic: str
    store: str
    count: int
    """Its partitions."""
    is_new: bool
    config: Mapping[str, str]
    headers: Sequence[tuple[str, bytes]]
    records: Mapping[int, pl.DataFrame]
    """By partition, as ``RECORDS``."""
    replaced: int
    """How many records of the topic say something else."""

    @property
    def rows(self) -> int:
        return sum(records.height for records in self.records.values())


@dataclass(frozen=True, kw_only=True)
class Return:
    """What a return would write; ``KafkaStreamsReturn.write`` does it."""

    topics: Sequence[TopicWrite]
    offsets: Mapping[TopicPartition, int]
    """Those that the group does not have yet."""
    checkpoints: Mapping[Path, Mapping[TopicPartition, int | None]]
    """By task folder, the positions of a file to be written; None where Kafka Streams has to restore from a topic."""
    left_out: Mapping[str, str]
    """By store, why Kafka Streams begins it empty."""
    notes: Sequence[str]

    @property
    def is_done(self) -> bool:
        return not (self.offsets or self.checkpoints or any(topic.is_new or topic.rows for topic in self.topics))


@dataclass(frozen=True, kw_only=True)
class KafkaStreamsReturn:
    """The Kafka Streams application ``id``, which has the topology of ``application``, and a commit of the latter."""

    id: str
    application: Application
    commit: CommitRecord
    app_folder: Place
    """The application's folder in the warehouse; its tables have everything up to the commit."""
    cluster: WritableCluster
    reader: Callable[[str, int], ChangelogReader]
    topic_counts: Mapping[str, int]
    """Partitions of the source topics."""
    state_dir: Path | None = None
    """Where to write ``.checkpoint`` files: Kafka Streams' state folder of the application."""
    serdes: Mapping[str, StoreSerdes] = field(default_factory=dict)
    changelogs: Mapping[str, str] = field(default_factory=dict)

    def plan(self, *, replace: bool = False) -> Return:
        """Compare what is there with what has to be, without changing anything.

        Raises:
            MigrationError: The group has members, rows are on their way between tasks, or, without ``replace``, topics
                or offsets of the application say something else.
        """
        if members := self.cluster.group_members(self.id):
            raise MigrationError(
                f"Kafka Streams application {self.id!r} has {members} members in its group; stop it, and wait for its "
                "session timeout (45 s) unless it leaves the group when it closes"
            )
        if self.commit.pending_blobs:
            raise MigrationError(
                f"{self.application.id!r} has rows on their way between its tasks, which no store holds; let it finish "
                f"them with `weir run MODULE:APP --until-caught-up`, then try again"
            )
        topics, left_out, notes = list[TopicWrite](), dict[str, str](), list[str]()
        counts = self.application.topology.partition_counts(self.topic_counts)
        backed: set[str] = set()
        for sub_topology in self.application.topology.sub_topologies:
            for node in sub_topology.nodes:
                for store, find in self._stores(sub_topology, node, counts):
                    topic = self._topic(store)
                    if topic in self.topic_counts:
                        backed.add(topic)
                        notes.append(f"store {store} is restored from its source topic {topic}")
                        continue
                    try:
                        format, rows = find()
                    except NotMovedError as error:
                        left_out[error.store] = error.reason
                        continue
                    topics.append(self._write(sub_topology, format, rows, counts[sub_topology.index]))
        offsets = {
            (topic, partition): offset
            for task in self.commit.tasks.values()
            for topic, by_partition in task.positions.items()
            for partition, offset in by_partition.items()
        }
        known = self.cluster.group_offsets(self.id)
        changed = {partition: offset for partition, offset in sorted(offsets.items()) if known.get(partition) != offset}
        if not replace:
            self._require_nothing_else(topics, changed, known)
        return Return(
            topics=topics,
            offsets=changed,
            checkpoints=self._checkpoints(counts, offsets, backed, left_out),
            left_out=left_out,
            notes=notes,
        )

    def write(self, found: Return, writer: RecordWriter, on_step: Callable[[str], None] = lambda step: None) -> None:
        """Carry out ``found``. Killed anywhere, it is finished by planning and writing again.

        ``on_step`` is called after each step: ``topics created``, ``records written`` (once a topic), ``checkpoints
        written``, ``offsets set``.
        """
        for topic in found.topics:
            if topic.is_new:
                self.cluster.create_topic(topic.topic, topic.count, topic.config)
        on_step("topics created")
        for topic in found.topics:
            for partition, records in topic.records.items():
                writer.write(topic.topic, partition, records, topic.headers)
            on_step("records written")
        for folder, positions in found.checkpoints.items():
            write_checkpoint(folder, positions)
        on_step("checkpoints written")
        if found.offsets:
            self.cluster.set_group_offsets(self.id, found.offsets)
        on_step("offsets set")

    def _topic(self, store: str) -> str:
        return self.changelogs.get(store, f"{self.id}-{self.application.topology.shown(store)}-changelog")

    def _stores(
        self, sub_topology: SubTopology, node: Node, counts: Mapping[int, int]
    ) -> Iterator[tuple[str, Callable[[], tuple[ChangelogFormat, dict[int, pl.DataFrame]]]]]:
        """The stores that Kafka Streams keeps for ``node``, each with what finds its format, and its rows by task."""
        if isinstance(node, SuppressNode) and (aggregation := node.fused_with) is not None:
            yield (
                node.store.name,
                lambda: (
                    suppression_format(node, self.serdes.get(node.store.name)),
                    self._held_back(sub_topology, aggregation, counts),
                ),
            )
        for store in node.stores:
            if isinstance(node, SubscriptionJoinNode):
                yield (
                    store.name,
                    lambda: (subscription_format(node, self.serdes), self._subscribed(sub_topology, node, counts)),
                )
            elif not isinstance(node, ResponseJoinNode):  # Kafka Streams does not remember which results stand
                yield (
                    store.name,
                    lambda store=store: (  # type: ignore[misc]
                        format_of(node, store, self.serdes.get(store.name)),
                        self._rows(sub_topology, store, counts),
                    ),
                )

    def _rows(self, sub_topology: SubTopology, store: StoreSpec, counts: Mapping[int, int]) -> dict[int, pl.DataFrame]:
        """The committed rows of a store by the partition of their task."""
        if any(store.name in task.unlogged for task in self.commit.tasks.values()):
            raise NotMovedError(store.name, "its rows are not in its changelog (logging=False)")
        found = {}
        for number in range(counts[sub_topology.index]):
            name = self.application.topology.task_name(TaskId(sub_topology.index, number))
            changelog = TaskChangelog.of(self.app_folder, store, name, through=self.commit.epoch)
            rows = changelog.newest_rows().filter(~pl.col("_deleted")).drop("_epoch", "_deleted")
            clocks = self.commit.tasks[name].clocks if name in self.commit.tasks else {}
            slices = sub_topology.slices_in(store.name, clocks)
            found[number] = rows if slices is None else slices.open_windows(store.name, rows, clocks)
        return found

    def _held_back(
        self, sub_topology: SubTopology, node: AggregateNode, counts: Mapping[int, int]
    ) -> dict[int, pl.DataFrame]:
        """The open windows of an aggregation as the buffer of the suppression after it."""
        found = {}
        for number, rows in self._rows(sub_topology, node.store, counts).items():
            name = self.application.topology.task_name(TaskId(sub_topology.index, number))
            task = self.commit.tasks.get(name)
            rows = still_open(node, node.store, rows, task.clocks if task else {})
            found[number] = node.fold.finish(rows).with_columns(
                pl.col("window_end").alias(SINCE), pl.lit(False).alias(GONE)
            )
        return found

    def _subscribed(
        self, sub_topology: SubTopology, node: SubscriptionJoinNode, counts: Mapping[int, int]
    ) -> dict[int, pl.DataFrame]:
        """The subscriptions, each with the left row that it is for."""
        left = node.send.parent
        assert isinstance(left, TableNode)
        of_left = next(each for each in self.application.topology.sub_topologies if left in each.nodes)
        rows = pl.concat(self._rows(of_left, left.store, counts).values()).drop("_ts")
        names = {name: node.key[name] if name in node.key else LEFT + name for name in rows.columns}
        rows = rows.rename(names)
        return {
            number: subscribed.join(rows, on=list(node.key.values()), how="inner", nulls_equal=True)
            for number, subscribed in self._rows(sub_topology, node.store, counts).items()
        }

    def _write(
        self, sub_topology: SubTopology, format: ChangelogFormat, rows: dict[int, pl.DataFrame], count: int
    ) -> TopicWrite:
        """Compare the rows of a store with its topic."""
        topic = self._topic(format.store.name)
        if sub_topology.keyed_edges:  # Kafka Streams partitions by the bytes of the key, Weir may do so by others
            every = pl.concat(rows.values())
            owners = pl.Series(murmur2(format.key.encode(every)) & 0x7FFFFFFF) % count
            rows = {number: every.filter(owners == number) for number in range(count)}
        found = self.cluster.partition_counts([topic]).get(topic)
        if found is not None and found != count:
            raise MigrationError(
                f"changelog topic {topic!r} has {found} partitions, but the application has {count} tasks for it; give "
                f"another application id, or another topic with --changelog {format.store.name}=TOPIC"
            )
        partitions = [(topic, number) for number in range(count)] if found is not None else []
        topics = ChangelogTopics(cluster=self.cluster, reader=self.reader)
        ends = topics.settled_ends(partitions) if partitions else {}
        changes, replaced = dict[int, pl.DataFrame](), 0
        for number in range(count):
            # The client writes the time 0 as now.
            wanted = format.encode(rows[number]).with_columns(pl.col("timestamp_ms").clip(lower_bound=1))
            held = (
                topics.newest(topic, number, ends[topic, number], keeps_versions=format.keeps_versions)
                if ends
                else RECORDS.to_frame()
            )
            changes[number], others = _difference(format, wanted, held, self._clock(sub_topology, format.store, count))
            replaced += others
        return TopicWrite(
            topic=topic,
            store=format.store.name,
            count=count,
            is_new=found is None,
            config=format.config,
            headers=format.headers,
            records={number: records for number, records in changes.items() if records.height},
            replaced=replaced,
        )

    def _clock(self, sub_topology: SubTopology, store: StoreSpec, count: int) -> int | None:
        """The greatest stream time of a store in any of its tasks."""
        names = (self.application.topology.task_name(TaskId(sub_topology.index, number)) for number in range(count))
        tasks = (self.commit.tasks[name] for name in names if name in self.commit.tasks)
        return max((task.clocks[store.name] for task in tasks if store.name in task.clocks), default=None)

    def _require_nothing_else(
        self,
        topics: Sequence[TopicWrite],
        changed: Mapping[TopicPartition, int],
        known: Mapping[TopicPartition, int],
    ) -> None:
        """Raise ``MigrationError`` if something that Kafka Streams left would be overwritten."""
        way_out = "nothing was changed: give another APPLICATION_ID, or overwrite it with --replace"
        for topic in topics:
            if topic.replaced:
                raise MigrationError(
                    f"changelog topic {topic.topic!r} holds {topic.replaced} records that store {topic.store!r} does "
                    f"not have; {way_out}"
                )
        for name, number in changed.keys() & known.keys():
            raise MigrationError(
                f"the group of {self.id!r} has offset {known[name, number]} of topic {name!r}, partition {number}, but "
                f"{self.application.id!r} has {changed[name, number]}; {way_out}"
            )

    def _checkpoints(
        self,
        counts: Mapping[int, int],
        offsets: Mapping[TopicPartition, int],
        backed: set[str],
        left_out: Mapping[str, str],
    ) -> dict[Path, Mapping[TopicPartition, int | None]]:
        """By task folder, the entries of its ``.checkpoint`` file, unless it has them already."""
        if self.state_dir is None:
            return {}
        found: dict[Path, Mapping[TopicPartition, int | None]] = {}
        for sub_topology in self.application.topology.sub_topologies:
            kept = [name for name, (node, _) in keepers(sub_topology).items() if not isinstance(node, ResponseJoinNode)]
            kept += [
                node.store.name for node in sub_topology.nodes if isinstance(node, SuppressNode) and node.fused_with
            ]
            for number in range(counts[sub_topology.index]):
                sources = ((source.topic, number) for source in sub_topology.sources if source.topic not in backed)
                entries: dict[TopicPartition, int | None] = {
                    partition: offsets[partition] for partition in sources if partition in offsets
                }
                entries |= {(self._topic(name), number): None for name in kept if name not in left_out}
                folder = self.state_dir / str(TaskId(sub_topology.index, number))
                if entries and not check_checkpoint(folder, entries):
                    found[folder] = entries
        return found


def _difference(
    format: ChangelogFormat, wanted: pl.DataFrame, held: pl.DataFrame, clock_ms: int | None
) -> tuple[pl.DataFrame, int]:
    """The records that make a topic partition hold what is ``wanted``, and how many of its records they replace.

    Raises:
        MigrationError: It holds versions that nothing can take back.
    """
    by = ["key", "timestamp_ms"] if format.keeps_versions else ["key"]
    met = wanted.join(
        held.select("key", "value", "timestamp_ms", pl.lit(True).alias("_held")),
        on=by,
        how="left",
        suffix="_held",
        maintain_order="left",
    )
    is_same = pl.col("_held").fill_null(False) & pl.col("value").eq_missing(pl.col("value_held"))
    if format.is_timed and not format.keeps_versions:
        is_same &= pl.col("timestamp_ms") == pl.col("timestamp_ms_held")
    put = met.filter(~is_same)
    others, replaced = held.join(wanted, on=by, how="anti"), int(put["_held"].fill_null(False).sum())
    if format.keeps_versions:
        history_ms = format.store.retention_ms or 0
        ends = _ends(wanted, others, held["timestamp_ms"].max(), clock_ms or 0, history_ms, format.store.name)
        # A restore drops versions that are older than the history by then.
        return pl.concat([ends, put.select(RECORDS.names())]).sort("timestamp_ms", maintain_order=True), replaced
    gone = [others]
    if format.keeps_places:
        gone.append(held.join(put, on=by, how="semi"))
    deletions = pl.concat(gone).select("key", pl.lit(None, pl.Binary()).alias("value"), "timestamp_ms")
    return pl.concat([deletions, put.select(RECORDS.names())]), replaced + others.height


def _ends(
    wanted: pl.DataFrame, others: pl.DataFrame, newest_ms: Any, clock_ms: int, history_ms: int, store: str
) -> pl.DataFrame:
    """Deletions that end the versions of a topic that a store no longer has; ``newest_ms`` is the topic's stream time.

    A version that was followed by a deletion has expired together with it, so that only the topic still has it. Those
    that were followed by a version need no end: that version is there, or is older than the history. A deletion is
    dated so that a restore finds it within the history.
    """
    oldest_ms = clock_ms - history_ms
    live = others.filter(pl.col("value").is_not_null())
    if lost := live.filter(pl.col("timestamp_ms") >= oldest_ms).height:
        raise MigrationError(
            f"the changelog topic of store {store!r} holds {lost} versions that the store does not have, and a version "
            "cannot be taken back; nothing was changed: give another APPLICATION_ID"
        )
    newest = others.sort("timestamp_ms").unique("key", keep="last", maintain_order=True)
    newest = newest.with_columns(
        pl.max_horizontal(pl.col("timestamp_ms") + 1, pl.lit(newest_ms) - history_ms).alias("_end")
    )
    first = wanted.group_by("key").agg(pl.col("timestamp_ms").min().alias("_first"))
    ended = newest.join(first, on="key", how="left").filter(
        pl.col("value").is_not_null(),
        pl.col("_first").is_null() | ((pl.col("_first") >= oldest_ms) & (pl.col("_first") > pl.col("_end"))),
    )
    return ended.select("key", pl.lit(None, pl.Binary()).alias("value"), pl.col("_end").alias("timestamp_ms"))
