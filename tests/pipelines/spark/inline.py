"""The driver without Spark and without a broker: topics in memory, tasks run in this process.

Everything else is real: the operators, the local stores, the files, the Delta tables, the commit protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Event
from unittest.mock import patch

from tests.pipelines.spark.log_consumer import Row, log_reader
from weir.infra.control.rows import AssignmentRow, RequestRow
from weir.infra.kafka.admin import UnknownTopicError
from weir.infra.kafka.log_ends import LogEnd
from weir.infra.kafka.reader import PartitionReader
from weir.infra.spark import DRIVER
from weir.pipelines.application import Application
from weir.pipelines.spark import pace
from weir.pipelines.spark.assignors import Assignors
from weir.pipelines.spark.driver import Driver, started_driver
from weir.pipelines.spark.parts import NOTHING_TO_PUBLISH, Executors, Listeners, Publishing, RunSpec, Slots
from weir.pipelines.spark.planner import Limits
from weir.pipelines.spark.profile import NOT_PROFILED, Profiling
from weir.pipelines.spark.progress import Progress, RunSummary
from weir.pipelines.spark.restore_jobs import Restored, RestoreRequest, restore
from weir.pipelines.spark.snapshot_jobs import Published, SnapshotRequest, publish
from weir.pipelines.spark.standby_jobs import Followed, FollowRequest, bring
from weir.pipelines.spark.task import Task
from weir.pipelines.spark.worker import SettleRequest
from weir.pipelines.tasks.epoch import EpochRunner, TaskSettings
from weir.pipelines.tasks.plan import Receipt, Renewal, TaskPlan
from weir.pipelines.tasks.run_metrics import MetricsLevel
from weir.state.changelog.restore import RestoreProgress
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.engine.cache import TaskStoreCache
from weir.state.storage.contract import Folder
from weir.state.storage.places import folder_at
from weir.state.types import TaskId, TopicPartition


@dataclass
class Topics:
    """Topic partitions as lists of rows; the index is the offset."""

    rows: dict[TopicPartition, list[Row]] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict, kw_only=True)
    """None by default, as with old brokers."""
    leaders: dict[TopicPartition, list[int]] = field(default_factory=dict, kw_only=True)
    """Where the log of each leader epoch, 0 first, began; none by default, as with old brokers."""
    oldest: dict[TopicPartition, int] = field(default_factory=dict, kw_only=True)
    """The first offset that retention has kept."""
    with_headers: set[str] = field(default_factory=set, kw_only=True)
    """The topics that are read with headers."""
    with_compaction: set[str] = field(default_factory=set, kw_only=True)
    """The topics whose cleanup policy is compaction."""

    def topics(self) -> Mapping[str, int]:
        return self.partition_counts()

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        return {
            wanted: LogEnd(end, len(self.leaders[wanted]) - 1 if wanted in self.leaders else None)
            for wanted, end in self.end_offsets(partitions).items()
        }

    def truncations(self, positions: Mapping[TopicPartition, LogEnd]) -> Mapping[TopicPartition, int]:
        """As Kafka answers OffsetsForLeaderEpoch: an epoch's log ends where the next one begins, or where a later one
        begins before that."""
        ends = {
            wanted: min([*self.leaders[wanted][at.leader_epoch + 1 :], len(self.rows[wanted])])
            for wanted, at in positions.items()
        }
        return {wanted: end for wanted, end in ends.items() if end < positions[wanted].offset}

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._require(partitions)
        return {wanted: len(self.rows[wanted]) for wanted in partitions}

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._require(partitions)
        return {wanted: self.oldest.get(wanted, 0) for wanted in partitions}

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self.beginning_offsets(partitions)

    def compacted(self, topics: Iterable[str]) -> set[str]:
        return self.with_compaction.intersection(topics)

    def delete(self, topic: str) -> None:
        for partition in range(self.partition_counts()[topic]):
            del self.rows[topic, partition]
        self.ids.pop(topic, None)

    def _require(self, partitions: Sequence[TopicPartition]) -> None:
        for topic, partition in partitions:
            if (topic, partition) not in self.rows:
                raise UnknownTopicError(topic, "nowhere:1", partition if topic in self.partition_counts() else None)

    def partition_counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for topic, _ in self.rows:
            counts[topic] = counts.get(topic, 0) + 1
        return counts

    def reader(self, topic: str, partition: int) -> PartitionReader:
        return log_reader(
            topic,
            partition,
            lambda: self.rows.get((topic, partition)),
            lambda: self.oldest.get((topic, partition), 0),
            with_headers=topic in self.with_headers,
        )


@dataclass
class InlineSlots:
    """Runs plans in this process, one after another."""

    runner: EpochRunner
    renewal: Callable[[TaskId], Renewal | None] = lambda task: None
    begun: list[TaskPlan] = field(default_factory=list)
    count: int = 1

    @property
    def has_begun(self) -> bool:
        return bool(self.begun)

    def begin(self, plans: Sequence[TaskPlan]) -> None:
        self.begun += plans

    def late(self) -> list[Receipt]:
        return []

    def finish_writing(self) -> list[Receipt]:
        return []

    def is_free(self, task: TaskId) -> bool:
        return all(plan.task != task for plan in self.begun)

    def forget(self, task: TaskId) -> None:
        self.begun = [plan for plan in self.begun if plan.task != task]

    def move(self, task: TaskId, slot: int, *, with_store: bool = False) -> None:
        pass

    def scale(self, count: int) -> None:
        self.count = count

    def end_unused(self, used: Collection[int]) -> bool:
        return False

    def executor_of(self, slot: int) -> str:
        return DRIVER

    def executors(self) -> Sequence[str]:
        return [DRIVER]

    def rack_of(self, executor: str) -> str | None:
        return None

    def go(self, slot: int, executor: str) -> None:
        raise NotImplementedError

    def lost(self) -> Sequence[int]:
        return []

    def leaving(self) -> Sequence[int]:
        return []

    def is_ready(self, slot: int) -> bool:
        return True

    def run(self, plans: Sequence[TaskPlan]) -> list[Receipt]:
        begun, self.begun = self.begun, []
        self.runner._renewal = lambda plan: self.renewal(plan.task) if plan.asks else None
        receipts = [self.runner.run(plan) for plan in begun]
        self.runner._renewal = lambda plan: None
        return receipts + [self.runner.run(plan) for plan in plans]

    def settle(self, requests: Sequence[SettleRequest]) -> list[tuple[TaskId, bool]]:
        return [
            (
                request.task,
                self.runner.settle(
                    request.task,
                    request.instance,
                    generation=request.generation,
                    committed=request.committed,
                    close=request.close,
                ),
            )
            for request in requests
        ]


@dataclass
class InlineRestores:
    """Restores immediately when asked what has finished."""

    application: Application
    settings: TaskSettings
    reader: Callable[[str, int], PartitionReader]
    waiting: list[RestoreRequest] = field(default_factory=list)
    done: list[Restored] = field(default_factory=list)

    def keep_ready(self) -> None:
        pass

    def start(self, requests: Sequence[RestoreRequest], *, beside_epochs: bool) -> None:
        self.waiting += requests

    def finished(self) -> list[Restored]:
        found = [restore(self.application, self.settings, request, self.reader) for request in self.waiting]
        self.waiting.clear()
        self.done += found
        return found

    def progress(self) -> Mapping[TaskId, RestoreProgress]:
        return {}


@dataclass
class InlineSnapshots:
    """Publishes immediately when asked what has finished."""

    application: Application
    settings: TaskSettings
    waiting: list[SnapshotRequest] = field(default_factory=list)
    done: list[Published] = field(default_factory=list)

    @property
    def tasks(self) -> set[TaskId]:
        return {request.task for request in self.waiting}

    def start(self, request: SnapshotRequest) -> None:
        self.waiting.append(request)

    def finished(self) -> list[Published]:
        found = [publish(self.application, self.settings, request) for request in self.waiting]
        self.waiting.clear()
        self.done += found
        return found


@dataclass
class InlineStandbys:
    """Follows immediately when asked what has finished, in the folder of the task's own state."""

    application: Application
    settings: TaskSettings
    waiting: list[FollowRequest] = field(default_factory=list)
    done: list[Followed] = field(default_factory=list)

    @property
    def busy(self) -> set[str]:
        return {request.executor for request in self.waiting}

    def start(self, executor: str, requests: Sequence[FollowRequest]) -> None:
        self.waiting += requests

    def finished(self) -> list[Followed]:
        found = [bring(self.application, self.settings, request) for request in self.waiting]
        self.waiting.clear()
        self.done += found
        return found


@dataclass
class Desk:
    """Replaces the control database; ``asked`` are all requests, ``answers`` those that were answered."""

    asked: list[RequestRow] = field(default_factory=list)
    answers: dict[int, tuple[str, bool]] = field(default_factory=dict)
    assignments: list[AssignmentRow] = field(default_factory=list)

    def ask(self, kind: str, **arguments: str) -> int:
        number = len(self.asked) + len(self.answers) + 1
        self.asked.append(
            RequestRow(
                id=number,
                application="",
                kind=kind,
                arguments=arguments,
                requested_by="a test",
                reason="",
                requested_at_ms=0,
                state="pending",
                result="",
                finished_at_ms=None,
            )
        )
        return number

    def requests(self) -> list[RequestRow]:
        return [request for request in self.asked if request.id not in self.answers]

    def finish(self, request_id: int, result: str, *, failed: bool = False) -> None:
        self.answers[request_id] = (result, failed)

    def assigned(self, row: AssignmentRow) -> None:
        self.assignments.append(row)

    def goes_on(self) -> None:
        pass

    def report(self, progress: Progress, tasks: Iterable[Task], ends: Mapping[TopicPartition, int]) -> None:
        pass


@dataclass
class Place:
    """Where an application runs in a test: its topics and its folder."""

    application: Application
    topics: Topics
    folder: Path
    max_records: int = 50
    """Per epoch and task that reads, if all are behind."""
    snapshot_rows: int = 0
    assignors: Assignors = field(default_factory=Assignors)
    metrics_level: MetricsLevel = MetricsLevel.INFO
    desk: Desk = field(default_factory=Desk)
    publishing: Publishing = NOTHING_TO_PUBLISH
    profiling: Profiling = NOT_PROFILED
    wait_for_disk: Callable[[Exception], bool] = lambda error: False
    wait_for_brokers: Callable[[Exception], bool] = lambda error: False
    outbox_max_bytes: int | None = None
    bucket: str = ""
    """The URI of the bucket with the warehouse, if it is not in the folder."""

    @property
    def warehouse(self) -> Folder | Path:
        return folder_at(f"{self.bucket}/warehouse") if self.bucket else self.folder / "warehouse"

    @property
    def state_folder(self) -> Path:
        return self.folder / "state"

    @property
    def settings(self) -> TaskSettings:
        return self.spec().task_settings

    def spec(self, *, accept_state_loss: bool = False, accept_lost_records: bool = False) -> RunSpec:
        """What a run reads here and where it writes."""
        newest = self.commit_before()
        application = self.application.over(newest, self.topics.topics())
        counts = self.topics.partition_counts()
        tasks_of = application.topology.partition_counts(counts)
        readers = sum(tasks_of[each.index] for each in application.topology.sub_topologies if each.sources)
        return RunSpec(
            application=application,
            source=self.topics,
            source_counts=counts,
            warehouse=self.warehouse,
            state_folder=self.state_folder,
            limits=Limits.of(application, max_records=self.max_records * readers, max_bytes=readers << 20),
            snapshot_rows=self.snapshot_rows,
            assignors=self.assignors,
            outbox_max_bytes=self.outbox_max_bytes,
            metrics_level=self.metrics_level,
            is_profiled=self.profiling is not NOT_PROFILED,
            accept_state_loss=accept_state_loss,
            accept_lost_records=accept_lost_records,
            newest=newest,
        )

    def commit_before(self) -> CommitRecord | None:
        """The commit from which stores with made-up names take theirs."""
        return newest_commit(self.warehouse, self.application.id)

    def name_of(self, task: str) -> str:
        """The stored name of a task given as ``0_3``."""
        return self.application.topology.task_name(TaskId.parse(task))

    def state_of(self, task: str) -> Path:
        """The folder of a task's instances."""
        return self.state_folder / self.name_of(task)

    def runner(
        self,
        spec: RunSpec,
        on_step: Callable[[str], None],
        renewal: Callable[[TaskPlan], Renewal | None] = lambda plan: None,
    ) -> EpochRunner:
        """What runs the tasks of one slot."""
        handling = spec.application.error_handling
        return EpochRunner(
            spec.application.topology, spec.task_settings, cache(self.topics.reader), on_step, handling, renewal
        )

    def slots(self, spec: RunSpec, on_step: Callable[[str], None]) -> Slots:
        """Where epochs run."""
        return InlineSlots(self.runner(spec, on_step))

    def driver(
        self,
        on_step: Callable[[str], None] = lambda name: None,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        **accepts: bool,
    ) -> Driver:
        """A new generation, claimed; ``accepts`` as for ``spec``."""
        spec = self.spec(**accepts)
        self.restores = InlineRestores(spec.application, spec.task_settings, self.topics.reader)
        self.snapshots = InlineSnapshots(spec.application, spec.task_settings)
        self.standbys = InlineStandbys(spec.application, spec.task_settings)
        executors = Executors(
            slots=self.slots(spec, on_step),
            restores=self.restores,
            snapshots=self.snapshots,
            standbys=self.standbys,
        )
        listeners = Listeners(
            control=self.desk,
            on_progress=on_progress,
            publishing=self.publishing,
            profiling=self.profiling,
            wait_for_disk=self.wait_for_disk,
            wait_for_brokers=self.wait_for_brokers,
        )
        with patch.object(pace, "SHORTEST_S", pace.LONGEST_S):  # epochs end by their records, not by the machine's pace
            return started_driver(spec, spec.committer(on_step), executors, listeners)

    def run(self, on_step: Callable[[str], None] = lambda name: None, **accepts: bool) -> RunSummary:
        """A new generation, run until it has caught up; ``accepts`` as for ``spec``."""
        return self.driver(on_step, **accepts).run(Event(), until_caught_up=True)

    def die(self) -> None:
        """A run that reads everything and ends without closing its stores."""
        driver = self.driver()
        driver._finish = lambda reason, stop: None
        driver.run(Event(), until_caught_up=True)
        TaskStoreCache.close_all()
