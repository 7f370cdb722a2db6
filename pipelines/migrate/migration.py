"""A migration: where the tasks of an application begin and what their stores hold, as its first commit.

It is written by the commit protocol, so it exists completely or not at all, and once. Local stores are not written: a
task whose committed state has no folder restores from its changelog at the first start. Where positions and rows come
from is up to the other modules of this package.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import polars as pl

from weir.pipelines.application import Application
from weir.pipelines.migrate.errors import MigrationError
from weir.pipelines.tasks.tables import application_tables
from weir.state.changelog.rows import SEGMENT_EPOCHS, changelog_spec
from weir.state.changelog.upserts import refresh_at_rest
from weir.state.commit.files import write_file, write_files
from weir.state.commit.protocol import Committer, newest_commit
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.engine.instances import new_instance
from weir.state.storage.places import Place
from weir.state.types import FileEntry, Positions, StateId, StoreSpec, TableSpec, TaskId, TopicPartition

EPOCH = 1
"""The epoch of the first commit."""
_TIME = pl.Datetime("ms", "UTC")


@dataclass(frozen=True, kw_only=True)
class StoreRows:
    """What a task's store should hold."""

    task: TaskId
    store: StoreSpec
    rows: pl.DataFrame
    """Key columns, value columns, ``_ts`` (Int64, ms)."""


@dataclass(frozen=True, kw_only=True)
class Migration:
    """What a migration would write; ``write`` does it."""

    application: Application
    source: str
    """Where it comes from, for people: ``consumer group 'shop'``."""
    counts: Mapping[int, int]
    """Tasks by sub-topology."""
    positions: Mapping[TopicPartition, int]
    """Next offsets to read of source topics; partitions without one begin where the application's ``start`` says."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """By topic, the id that ``positions`` belong to, as far as the brokers have ids."""
    stores: Sequence[StoreRows] = ()
    clocks: Mapping[TaskId, Mapping[str, int]] = field(default_factory=dict)
    """Stream time in ms by operator, for tasks with state."""
    outputs: Sequence[tuple[TableSpec, pl.DataFrame]] = ()
    """Rows of output tables: all their columns except ``_epoch``."""
    read_through: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The ends of the topics that ``stores`` were read from."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """By store that begins empty although the other system keeps something for it, the reason."""

    @cached_property
    def reason(self) -> str:
        """The reason of its commit: the same for the same migration, so that a second one recognizes the first."""
        content = [sorted(self.positions.items()), sorted(self.read_through.items())]
        digest = hashlib.blake2b(msgspec.json.encode(content), digest_size=6).hexdigest()
        return f"migration: {self.source} ({digest})"

    def is_written(self, warehouse: Place) -> bool:
        """Whether the application has exactly this migration.

        Raises:
            MigrationError: It has other commits, which are not overwritten.
        """
        newest = newest_commit(warehouse, self.application.id)
        if newest is not None and newest.reason != self.reason:
            raise MigrationError(
                f"application {self.application.id!r} has commits already (epoch {newest.epoch}: {newest.reason}), and "
                f"a migration overwrites nothing; give the program another id, or `weir reset {self.application.id}` "
                "first"
            )
        return newest is not None

    def write(self, warehouse: Place, on_step: Callable[[str], None] = lambda step: None) -> bool:
        """Make it the application's first commit; False if it already is. The application must not be running.

        ``on_step`` is called where a crash leaves something behind: ``files written``, and the committer's steps.

        Raises:
            MigrationError: The application has other commits.
            FencedError: A driver was started meanwhile; nothing was written.
        """
        if self.is_written(warehouse):
            return False
        topology = self.application.topology
        committer = Committer(
            warehouse,
            self.application.id,
            application_tables(topology),
            fingerprint=topology.fingerprint,
            on_step=on_step,
        )
        try:
            claim = committer.claim()
            if self.is_written(warehouse):  # by another process, before the claim
                return False
            state = StateId(claim.generation, EPOCH)
            files = self._files(warehouse / self.application.id)
            on_step("files written")
            committer.commit(
                CommitRecord(
                    kind="commit",
                    generation=state.generation,
                    epoch=state.epoch,
                    at_ms=time.time_ns() // 1_000_000,
                    fingerprint=topology.fingerprint,
                    topic_ids=self.topic_ids,
                    reason=self.reason,
                    topology=topology.committed_form,
                    tasks={topology.task_name(task): self._task_commit(task, state) for task in self.tasks()},
                    files=files,
                )
            )
        finally:
            committer.close()
        refresh_at_rest(warehouse / self.application.id, application_tables(topology), self.application.id)
        return True

    def tasks(self) -> list[TaskId]:
        """All tasks of the application, in order."""
        return [TaskId(index, partition) for index, count in sorted(self.counts.items()) for partition in range(count)]

    def positions_of(self, task: TaskId) -> Positions:
        """Where a task begins in the topics that the migration has positions for."""
        topics = (source.topic for source in self.application.topology.sub_topology(task.sub_topology).sources)
        return {
            topic: {task.partition: self.positions[topic, task.partition]}
            for topic in topics
            if (topic, task.partition) in self.positions
        }

    def _task_commit(self, task: TaskId, state: StateId) -> TaskCommit:
        """A task without rows begins with a new store of its own; one with rows restores them."""
        has_state = task in self.clocks or any(store.task == task and store.rows.height for store in self.stores)
        return TaskCommit(
            state=state if has_state else None,
            instance=new_instance(),
            positions=self.positions_of(task),
            clocks=self.clocks.get(task, {}),
        )

    def _files(self, app_folder: Place) -> tuple[FileEntry, ...]:
        epoch = pl.lit(EPOCH, pl.Int64())
        files = []
        for each in self.stores:
            if each.rows.height:
                rows = each.rows.with_columns(pl.col("_ts").cast(_TIME), _epoch=epoch, _deleted=pl.lit(False))
                partition = {
                    "task": self.application.topology.task_name(each.task),
                    "segment": str(EPOCH // SEGMENT_EPOCHS),
                }
                files.append(write_file(app_folder, changelog_spec(each.store), rows, partition))
        files += [
            file
            for table, rows in self.outputs
            if rows.height
            for file in write_files(app_folder, table, rows.with_columns(_epoch=epoch))
        ]
        return tuple(files)


def source_positions(
    application: Application,
    topic_counts: Mapping[str, int],
    found: Mapping[TopicPartition, int],
    beginnings: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    source: str,
) -> dict[TopicPartition, int]:
    """Those of the ``found`` offsets that belong to the application's topics, checked against what the topics hold.

    Raises:
        MigrationError: There are none, a partition does not exist, or the topic does not hold an offset.
    """
    topics = set(application.topology.topics())
    taken = {partition: offset for partition, offset in sorted(found.items()) if partition[0] in topics}
    if not taken:
        others = ", ".join(sorted({topic for topic, _ in found})) or "nothing"
        raise MigrationError(
            f"{source} has no offsets of the topics that {application.id!r} reads "
            f"({', '.join(sorted(topics))}); it has {others}: check the name"
        )
    for (topic, number), offset in taken.items():
        where = f"{source}: offset {offset} of topic {topic!r}, partition {number},"
        if number >= topic_counts[topic]:
            raise MigrationError(
                f"{where} is of a partition that does not exist: the topic has {topic_counts[topic]}; "
                "check that it is the same topic"
            )
        if offset > ends[topic, number]:
            raise MigrationError(
                f"{where} is beyond the topic's end at {ends[topic, number]}; check that it is "
                "the same topic and cluster"
            )
        if offset < beginnings[topic, number]:
            raise MigrationError(
                f"{where} is no longer in the topic, which begins at {beginnings[topic, number]}; its "
                "records are gone, so start the application without a migration"
            )
    return taken


def stores_of(application: Application) -> list[str]:
    """The names of all stores of an application."""
    return [store.name for sub_topology in application.topology.sub_topologies for store in sub_topology.stores]


def missing(positions: Iterable[TopicPartition], topic_counts: Mapping[str, int]) -> list[TopicPartition]:
    """The partitions of the application's topics that have no position."""
    known = set(positions)
    return [
        (topic, number)
        for topic, count in sorted(topic_counts.items())
        for number in range(count)
        if (topic, number) not in known
    ]
