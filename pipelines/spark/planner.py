"""Plans: which offsets each task reads in the next epoch (PROTOCOL 9 to 11). Pure functions of the driver's state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from weir.pipelines.tasks.plan import OffsetRange, Receipt, TaskPlan
from weir.state.changelog.rows import CHANGELOG_FOLDER
from weir.state.commit.record import SnapshotRef, TaskCommit
from weir.state.types import BlobRef, FileEntry, Positions, StateId, TaskId

TopicPartition = tuple[str, int]
BEFORE_ALL_MS = -(1 << 62)
"""Earlier than any record."""


class TaskState(StrEnum):
    """Whether a task takes part in epochs."""

    RUNNING = "running"
    RESTORING = "restoring"


@dataclass
class Task:
    """What the driver knows of one task."""

    id: TaskId
    instance: str
    topics: tuple[str, ...]
    """Topics it reads; of each the partition of its own number."""
    state: TaskState = TaskState.RUNNING
    reason: str = ""
    """Why it is not running, or why it was restored last."""
    progress: str = ""
    """How far its restore has come."""
    is_restored: bool = False
    """Whether a restore built its store and no epoch has gone well on it since."""
    is_from_snapshot: bool = False
    """Whether its last restore began with a snapshot."""
    current: StateId | None = None
    committed: StateId | None = None
    positions: Positions = field(default_factory=dict)
    clocks: Mapping[str, int] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    gauges: Mapping[str, int] = field(default_factory=dict)
    source_times_ms: dict[str, int] = field(default_factory=dict)
    next_punctuation_ms: int | None = None
    pending: list[BlobRef] = field(default_factory=list)
    """Blobs for this task that no accepted epoch has consumed."""
    files: list[FileEntry] = field(default_factory=list)
    """Of epochs accepted since the last commit."""
    consumed: list[BlobRef] = field(default_factory=list)
    """Blobs consumed since the last commit, deleted after the next one."""
    snapshot: SnapshotRef | None = None
    """The newest one, which the next commit lists."""
    listed_snapshot: SnapshotRef | None = None
    """The one that the last commit lists."""
    rows_since_snapshot: int = 0
    """Rows of accepted epochs in the task's changelogs that no snapshot holds."""
    quiet_since_ms: dict[str, int] = field(default_factory=dict)
    """Since when topics have had no records while others of the task had some."""
    visited: bool = False
    """Whether this generation has run an epoch of it: the first epoch visits every task."""
    has_undo: bool = False
    """Whether its store can roll something back."""

    @property
    def owes_settling(self) -> bool:
        """Whether it holds the undo log of a commit that it has not heard of."""
        return self.has_undo and self.committed == self.current and self.state is TaskState.RUNNING

    def waits_for_quiet_topics(self, busy: Collection[str], now_ms: int, max_idle_ms: int) -> bool:
        """Whether a topic has been without records for less than ``max_idle_ms`` while others are ``busy``."""
        self.quiet_since_ms = {
            topic: self.quiet_since_ms.get(topic, now_ms) for topic in self.topics if busy and topic not in busy
        }
        return any(now_ms - since_ms < max_idle_ms for since_ms in self.quiet_since_ms.values())

    def lost(self, reason: str) -> None:
        """Its local state is gone or in doubt: it stands where the last commit has it, and restores."""
        self.state, self.reason, self.current, self.has_undo = TaskState.RESTORING, reason, self.committed, False

    def restored(self, instance: str, *, from_snapshot: bool, is_snapshot_gone: bool) -> None:
        """A new instance holds its committed state; the next epoch visits it."""
        self.state, self.instance, self.visited, self.is_restored = TaskState.RUNNING, instance, False, True
        self.is_from_snapshot, self.progress = from_snapshot, ""
        if is_snapshot_gone and self.snapshot is not None:
            self.rows_since_snapshot += self.snapshot.rows
            self.snapshot = None

    def accept(self, receipt: Receipt) -> bool:
        """Take over what a ``DONE`` receipt says; True when it changed anything worth a commit.

        The first epoch of all is: its commit says where the task began, whatever ``start`` would say later.
        """
        positions = {
            topic: {**offsets, **receipt.positions.get(topic, {})} for topic, offsets in self.positions.items()
        }
        moved = (
            self.committed is None
            or positions != self.positions
            or receipt.clocks != self.clocks
            or bool(receipt.files or receipt.blobs or receipt.consumed)
        )
        self.current, self.positions, self.clocks = receipt.state, positions, receipt.clocks
        self.gauges, self.next_punctuation_ms = receipt.gauges, receipt.next_punctuation_ms
        for name, time_ms in receipt.source_times_ms.items():
            self.source_times_ms[name] = max(time_ms, self.source_times_ms.get(name, BEFORE_ALL_MS))
        self.files += receipt.files
        self.rows_since_snapshot += sum(file.rows for file in receipt.files if file.table.startswith(CHANGELOG_FOLDER))
        self.consumed += receipt.consumed
        gone = {blob.path for blob in receipt.consumed}
        self.pending = [blob for blob in self.pending if blob.path not in gone]
        for name, count in receipt.counts.items():
            self.totals[name] = self.totals.get(name, 0) + count
        self.visited, self.is_restored, self.has_undo = True, False, receipt.gauges.get("uncommitted_records", 0) > 0
        return moved

    def to_commit(self) -> TaskCommit:
        """Where the task stands, for the commit row."""
        return TaskCommit(
            state=self.current,
            instance=self.instance,
            positions=self.positions,
            clocks=self.clocks,
            totals={**self.totals, "open_windows": self.gauges.get("open_windows", 0)},
            next_punctuation_ms=self.next_punctuation_ms,
            snapshot=self.snapshot,
            rows_since_snapshot=self.rows_since_snapshot,
        )

    def published(self, snapshot: SnapshotRef, rows_before: int) -> None:
        """A snapshot was published, asked for when ``rows_before`` rows were in no snapshot."""
        self.snapshot, self.rows_since_snapshot = snapshot, max(0, self.rows_since_snapshot - rows_before)

    def settled(self) -> SnapshotRef | None:
        """A commit covers everything up to ``current``; returns the snapshot that it lists no more."""
        replaced = self.listed_snapshot if self.listed_snapshot != self.snapshot else None
        self.committed, self.listed_snapshot = self.current, self.snapshot
        self.files, self.consumed = [], []
        return replaced


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much one epoch may take."""

    max_records: int
    """Per task and epoch."""
    max_bytes: int
    """Of keys and values, per topic partition and epoch."""
    max_skew_ms: int | None
    """How far one partition may run ahead of another in event time while input is behind; None: any distance."""
    max_task_idle_ms: int | None = 0
    """How long a task waits for records of a topic that has none while its other topics have some; None not to wait
    for records either that are on the brokers and not read yet."""
    max_pending_bytes: int = 256 << 20
    """Per target: sources get no plan while this much waits for one task."""


def plan_task(
    task: Task,
    *,
    state: StateId,
    ends: Mapping[TopicPartition, int],
    limits: Limits,
    now_ms: int,
    until_time_ms: int | None,
    is_visit: bool = False,
    is_live: bool = False,
    is_all_read: bool = False,
    end_time_ms: int | None = None,
) -> TaskPlan | None:
    """The task's next epoch, or None when it has nothing to do; ``is_visit`` plans one all the same, and so does
    ``end_time_ms``, to which stream time moves when the input has ended.

    ``is_live``: whether a topic that has no more records is silent; ``is_all_read``: whether this epoch leaves no
    records of any topic, so that a task behind others is silent too.
    """
    ranges = []
    for topic in task.topics:
        partition = task.id.partition
        start = task.positions[topic][partition]
        available = ends.get((topic, partition), start)
        end = min(available, start + limits.max_records)
        if end > start:
            ranges.append(
                OffsetRange(
                    topic=topic,
                    partition=partition,
                    start=start,
                    end=end,
                    available=None if limits.max_task_idle_ms is None else available,
                )
            )
    if task.waits_for_quiet_topics({wanted.topic for wanted in ranges}, now_ms, limits.max_task_idle_ms or 0):
        ranges = []
    is_due = task.next_punctuation_ms is not None and task.next_punctuation_ms <= now_ms
    if not (ranges or task.pending or is_due or is_visit or not task.visited or end_time_ms is not None):
        return None
    return TaskPlan(
        task=task.id,
        instance=task.instance,
        state=state,
        expected=task.current,
        committed=task.committed,
        now_ms=now_ms,
        ranges=tuple(ranges),
        until_time_ms=until_time_ms,
        blobs=tuple(task.pending),
        max_bytes=limits.max_bytes,
        end_time_ms=end_time_ms,
        lets_idle=is_live and (is_all_read or (bool(task.topics) and total_lag([task], ends) == 0)),
    )


def aligned_until(tasks: Iterable[Task], ends: Mapping[TopicPartition, int], max_skew_ms: int | None) -> int | None:
    """The time no partition should pass in this epoch: that of the furthest behind with lag, plus the skew.

    While a partition with lag was never read, its time is unknown and each takes one record only. None without a
    limit, and when fewer than two partitions have lag.
    """
    if max_skew_ms is None:
        return None
    behind = [(task, topic) for task in tasks for topic in task.topics if partition_lag(task, topic, ends) > 0]
    if len(behind) < 2:
        return None
    times = [task.source_times_ms.get(f"{topic}-{task.id.partition}", BEFORE_ALL_MS) for task, topic in behind]
    return min(times) + max_skew_ms


def partition_lag(task: Task, topic: str, ends: Mapping[TopicPartition, int]) -> int:
    """Offsets between the task's position and the partition's end."""
    position = task.positions[topic][task.id.partition]
    return max(0, ends.get((topic, task.id.partition), position) - position)


def reads_all(tasks: Iterable[Task], ends: Mapping[TopicPartition, int], limits: Limits) -> bool:
    """Whether an epoch of ``tasks`` within ``limits`` reads all that their topics hold."""
    return all(
        task.state is TaskState.RUNNING and partition_lag(task, topic, ends) <= limits.max_records
        for task in tasks
        for topic in task.topics
    )


def total_lag(tasks: Iterable[Task], ends: Mapping[TopicPartition, int]) -> int:
    """Offsets that all tasks together have still to read."""
    return sum(partition_lag(task, topic, ends) for task in tasks for topic in task.topics)
