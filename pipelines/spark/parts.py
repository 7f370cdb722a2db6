"""The parts of a driver: what it runs, where its tasks run, and who hears about it.

The live run, a backfill and the tests each supply these parts in their own way; ``weir.pipelines.spark.driver`` makes
a driver of them.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from weir.infra.control.rows import AssignmentRow, RequestRow
from weir.pipelines.application import Application
from weir.pipelines.assignment import Move
from weir.pipelines.publishing.state import Decision, SinkState
from weir.pipelines.spark.assignors import Assignors
from weir.pipelines.spark.errors import RunError
from weir.pipelines.spark.planner import Limits
from weir.pipelines.spark.profile import NOT_PROFILED, Profiling
from weir.pipelines.spark.progress import Progress
from weir.pipelines.spark.restore_jobs import Restored, RestoreRequest
from weir.pipelines.spark.slot_count import SlotCount
from weir.pipelines.spark.snapshot_jobs import Published, SnapshotRequest
from weir.pipelines.spark.spread import spread
from weir.pipelines.spark.standby_jobs import Followed, FollowRequest
from weir.pipelines.spark.task import Task
from weir.pipelines.spark.topic_logs import TopicLogs
from weir.pipelines.spark.worker import CopyRequest, SettleRequest
from weir.pipelines.tasks.epoch import TaskSettings
from weir.pipelines.tasks.plan import Receipt, Renewal, TaskPlan
from weir.pipelines.tasks.run_metrics import MetricsLevel
from weir.pipelines.tasks.tables import application_tables
from weir.state.changelog.restore import RestoreProgress
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.engine.quarantine import QuarantineLimits
from weir.state.storage.places import Place
from weir.state.types import TaskId, TopicPartition


class Source(TopicLogs, Protocol):
    """What a run reads, as its driver sees it; every method raises ``BrokerUnreachableError`` while brokers are away.

    Implemented by ``weir.pipelines.spark.brokers.Brokers`` and by the fixed ranges of a backfill.
    """

    def topics(self) -> Mapping[str, int]:
        """All topics there are, with their numbers of partitions."""
        ...

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where to begin with partitions that were never read."""
        ...

    def compacted(self, topics: Iterable[str]) -> set[str]:
        """Those of which the brokers keep only the newest record of each key."""
        ...


class Slots(Protocol):
    """Where epochs run; implemented by ``weir.pipelines.spark.slots.SlotPool``."""

    renewal: Callable[[TaskId], Renewal | None]
    """Says under which epoch a task writes that has been left."""
    is_patient: Callable[[], bool]
    """Says whether to wait for slots that may be left."""

    def begin(self, plans: Sequence[TaskPlan]) -> None:
        """Have plans carried out; the next ``run`` waits for their receipts, too."""
        ...

    @property
    def has_begun(self) -> bool:
        """Whether there are such plans."""
        ...

    def run(self, plans: Sequence[TaskPlan]) -> list[Receipt]:
        """The receipts that have come once nobody need or wants to wait for more."""
        ...

    def late(self) -> list[Receipt]:
        """The receipts that have come since, of plans that were left."""
        ...

    def finish_writing(self) -> list[Receipt]:
        """What ``late`` gives, once no task writes under an epoch that it has asked for."""
        ...

    def is_free(self, task: TaskId) -> bool:
        """Whether the slot of ``task`` has answered everything."""
        ...

    def forget(self, task: TaskId) -> None:
        """The receipt of ``task`` is not wanted any more, and it must not write."""
        ...

    @property
    def count(self) -> int:
        """How many slots there are to be, numbered from 0; those that end have greater numbers."""
        ...

    def executor_of(self, slot: int) -> str:
        """The id of the executor that runs it, or did when it was last heard of; tasks keep their stores only within
        one."""
        ...

    def executors(self) -> Sequence[str]:
        """The ids of those that are there now and will stay, as far as is known; by age."""
        ...

    def rack_of(self, executor: str) -> str | None:
        """The rack or zone of an executor; None as long as it is not known."""
        ...

    def go(self, slot: int, executor: str) -> None:
        """Have a slot that rests go to another executor, where its tasks have no stores."""
        ...

    def lost(self) -> Collection[int]:
        """The slots whose executor is gone, until their workers are elsewhere; none if no other slot is there. What
        these were given is given up."""
        ...

    def leaving(self) -> Collection[int]:
        """The slots whose executor ends as soon as it has none; none if there is no other executor."""
        ...

    def is_ready(self, slot: int) -> bool:
        """Whether its worker is there, and not at work for tasks alone that have left it."""
        ...

    def move(self, task: TaskId, slot: int, *, with_store: bool = False) -> None:
        """From now on ``task`` runs in ``slot``; its old slot closes what it has open for it.

        ``with_store`` returns once that is done, since the task goes on with the same store; it must have answered
        everything. Otherwise it gets another one, and what its old slot is still doing for it must be forgotten.
        """
        ...

    def scale(self, count: int) -> None:
        """Have ``count`` slots: the workers of more may have yet to start, and each that is too many ends by
        ``end_unused``.

        Raises:
            RunError: There can be no more; those that were there go on.
        """
        ...

    def end_unused(self, used: Collection[int]) -> bool:
        """End those that are too many, from the last one on, until one is ``used`` by a task or at work; whether any
        are left."""
        ...

    def settle(self, requests: Sequence[SettleRequest]) -> list[tuple[TaskId, bool]]: ...


class RestoreExecutor(Protocol):
    """Where restores run; implemented by ``weir.pipelines.spark.restore_jobs.RestoreJobs``."""

    def keep_ready(self) -> None:
        """Have them begin without delay; call it now and then."""
        ...

    def start(self, requests: Sequence[RestoreRequest], *, beside_epochs: bool) -> None: ...

    def finished(self) -> list[Restored]: ...

    def progress(self) -> Mapping[TaskId, RestoreProgress]: ...


class SnapshotExecutor(Protocol):
    """Where snapshots are made; implemented by ``weir.pipelines.spark.snapshot_jobs.SnapshotJobs``."""

    @property
    def tasks(self) -> set[TaskId]: ...

    def start(self, request: SnapshotRequest) -> None: ...

    def finished(self) -> list[Published]: ...


class StandbyExecutor(Protocol):
    """Where standbys follow; implemented by ``weir.pipelines.spark.standby_jobs.StandbyJobs``."""

    @property
    def busy(self) -> set[str]: ...

    def start(self, executor: str, requests: Sequence[FollowRequest]) -> None: ...

    def finished(self) -> list[Followed]: ...


class QueryExecutor(Protocol):
    """What answers queries where the stores are; implemented by ``weir.pipelines.spark.query_servers.QueryServers``."""

    def keep(self) -> None:
        """Have it there on every executor; call it now and then."""
        ...


class _ReadFromDisk:
    def keep(self) -> None:
        pass


READ_FROM_DISK: QueryExecutor = _ReadFromDisk()
"""On a single host, queries read the stores themselves."""


class CleanUp(Protocol):
    """What cleans up on executors; implemented by ``weir.pipelines.spark.cleanups.CleanUps``."""

    def begin_due(self, instances: Mapping[str, str], standbys: Mapping[str, Collection[str]], generation: int) -> None:
        """Begin, if it is time; call it right after a commit, while no task restores. ``instances`` are those that
        tasks have, by their stored names, ``standbys`` the names of those of which each executor keeps one."""
        ...


class _NothingToCleanUp:
    """On a single host the start puts aside what is not needed."""

    def begin_due(self, instances: Mapping[str, str], standbys: Mapping[str, Collection[str]], generation: int) -> None:
        pass


class Copies(Protocol):
    """What brings executors' copies of global tables on; implemented by
    ``weir.pipelines.spark.global_copies.GlobalCopies``."""

    @property
    def is_due(self) -> bool:
        """Whether slots may be asked now."""
        ...

    def bring_on(self, requests: Sequence[tuple[int, CopyRequest]]) -> None:
        """Ask each of these slots, of which none has a plan under way."""
        ...


class _NoCopies:
    """Copies come on with plans alone."""

    is_due = False

    def bring_on(self, requests: Sequence[tuple[int, CopyRequest]]) -> None:
        pass


class Control(Protocol):
    """The control database as the driver uses it: losing it never stops a run, so no method raises."""

    def requests(self) -> list[RequestRow]: ...

    def finish(self, request_id: int, result: str, *, failed: bool = False) -> None: ...

    def assigned(self, row: AssignmentRow) -> None:
        """Tasks have other places."""
        ...

    def goes_on(self) -> None:
        """The driver's own thread has got on, which a sensor would otherwise take for one that hangs."""
        ...

    def report(self, progress: Progress, tasks: Iterable[Task], ends: Mapping[TopicPartition, int]) -> None: ...


class Publishing(Protocol):
    """What publishes committed rows to sinks; implemented by ``weir.pipelines.spark.publishing.Publishers``."""

    @property
    def states(self) -> Sequence[SinkState]:
        """How the sinks are doing, as last heard."""
        ...

    def keep_alive(self) -> None:
        """Begin again what has been killed."""
        ...

    @property
    def tells(self) -> float:
        """How often it has been told how the sinks are doing; without end if nobody is going to tell more."""
        ...

    def decide(self, decision: Decision) -> str:
        """Tell a sink that waits for a person what to do, once it is known how it is doing; returns what it will do.

        Raises:
            RunError: The application has no such sink, or it does not wait for that.
        """
        ...


class _NothingToPublish:
    states: Sequence[SinkState] = ()
    tells = math.inf

    def keep_alive(self) -> None:
        pass

    def decide(self, decision: Decision) -> str:
        raise RunError("the application has no sinks outside the warehouse")


NOTHING_TO_PUBLISH: Publishing = _NothingToPublish()


@dataclass(frozen=True, kw_only=True)
class Keeps:
    """What is kept of local state that is not needed."""

    unneeded_s: float
    """How long instances are kept that no assignment needs."""
    quarantine: QuarantineLimits


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where tasks begin."""

    slot_of: Mapping[TaskId, int]
    seconds: float
    """How long it took to find that out and to decide."""
    previous: Mapping[str, Collection[TaskId]] = field(default_factory=dict)
    """By executor, the tasks whose stores it had before; none on a single host, which has all."""
    standbys: Mapping[TaskId, Collection[str]] = field(default_factory=dict)
    """The executors that have a standby of a task from the newest generation, whose program may have been another."""
    moves: Sequence[Move] = ()
    """The tasks that are new to their executors."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What a run reads and where it writes."""

    application: Application
    source: Source
    source_counts: Mapping[str, int]
    """Partitions of each source topic."""
    warehouse: Place
    state_folder: Path
    """The folder with the state of the application's tasks."""
    limits: Limits
    slots: int = 1
    """How many there are as the run begins."""
    counts: SlotCount | None = None
    """How many there are to be as executors join and leave; None if they do not follow these."""
    wait_for_records: Callable[[Mapping[TopicPartition, int], float], bool] | None = None
    """Waits for records behind these offsets, as ``weir.infra.kafka.arrivals`` does; None if nobody can."""
    newest: CommitRecord | None = None
    """The newest commit before the run, whose tasks say what they have cost."""
    placement: Placement | None = None
    """Where each task begins, where executors have stores of some; None on a single host."""
    snapshot_rows: int = 0
    """How many rows a task's changelogs grow by before its next snapshot is due; 0 for never."""
    assignors: Assignors = field(default_factory=Assignors)
    """Decides which executor runs a task, and which keep standbys."""
    keeps: Keeps | None = None
    """What executors keep of local state that is not needed; None on a single host, where a start puts it aside."""
    accept_state_loss: bool = False
    """Whether to start although another topology or partition count leaves stores empty."""
    outbox_max_bytes: int | None = None
    """How much may wait for sinks before no more is read; None for no limit."""
    metrics_level: MetricsLevel = MetricsLevel.INFO
    is_profiled: bool = False
    accept_lost_records: bool = False
    """Whether to read on where topics can be read, if they no longer hold what the positions belong to."""

    @property
    def tasks(self) -> list[TaskId]:
        """Every task of the run."""
        counts = self.application.topology.partition_counts(self.source_counts)
        return [TaskId(index, partition) for index, count in counts.items() for partition in range(count)]

    @property
    def slot_of(self) -> Mapping[TaskId, int]:
        """The slot of each task."""
        return self.placed.slot_of

    @cached_property
    def placed(self) -> Placement:
        """Where each task begins."""
        if self.placement is not None:
            return self.placement
        began_s = time.perf_counter()
        slot_of = spread(self.tasks, self.slots, self.costs)
        return Placement(slot_of=slot_of, seconds=time.perf_counter() - began_s)

    @property
    def costs(self) -> Mapping[TaskId, float]:
        """How long each task has kept its slot busy so far, in seconds, of those that have a commit."""
        names = {self.application.topology.task_name(task): task for task in self.tasks}
        committed = {} if self.newest is None else self.newest.tasks
        return {task: committed[name].busy_s for name, task in names.items() if name in committed}

    @cached_property
    def priorities(self) -> Mapping[TaskId, int]:
        """Of each task that reads topics, the greatest of theirs."""
        of_sources = {
            sub_topology.index: max(source.priority for source in sub_topology.sources)
            for sub_topology in self.application.topology.sub_topologies
            if sub_topology.sources
        }
        return {task: of_sources[task.sub_topology] for task in self.tasks if task.sub_topology in of_sources}

    @property
    def task_settings(self) -> TaskSettings:
        """What every task of the run is told."""
        return TaskSettings(
            application_folder=str(self.warehouse / self.application.id),
            state_folder=str(self.state_folder),
            partition_counts=self.application.topology.partition_counts(self.source_counts),
            is_debug=self.metrics_level is MetricsLevel.DEBUG,
            is_profiled=self.is_profiled,
            reads_ahead=self.slots < len(os.sched_getaffinity(0)),
        )

    def committer(self, on_step: Callable[[str], None]) -> Committer:
        """The application's committer; whoever asks for it closes it."""
        topology = self.application.topology
        return Committer(
            self.warehouse,
            self.application.id,
            application_tables(topology),
            fingerprint=topology.fingerprint,
            on_step=on_step,
        )


@dataclass(frozen=True, kw_only=True)
class Executors:
    """Where the work of a run's tasks is done: in Spark, or in a test's own process."""

    slots: Slots
    restores: RestoreExecutor
    snapshots: SnapshotExecutor
    standbys: StandbyExecutor
    queries: QueryExecutor = READ_FROM_DISK
    clean_up: CleanUp = field(default_factory=_NothingToCleanUp)
    copies: Copies = field(default_factory=_NoCopies)


@dataclass(frozen=True, kw_only=True)
class Listeners:
    """Who sends requests to a run and hears how it is doing."""

    control: Control
    on_progress: Callable[[Progress], None] = lambda progress: None
    on_commit: Callable[[Mapping[TopicPartition, int]], None] = lambda positions: None
    """Gets the positions of each commit once it is durable; it must not hold the commit up."""
    publishing: Publishing = NOTHING_TO_PUBLISH
    profiling: Profiling = NOT_PROFILED
    wait_for_disk: Callable[[Exception], bool] = lambda error: False
    """Waits a moment with a start for which a disk has no room; False once the run is to end."""
    wait_for_brokers: Callable[[Exception], bool] = lambda error: False
    """The same with a start whose question no broker answers."""
