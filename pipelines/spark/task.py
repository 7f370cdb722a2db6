"""What a driver knows of each task: where it is, what its accepted epochs left, and its part of the next commit.

A task is told what has happened to it (an accepted receipt, a lost store, a restore, a snapshot, a commit) and keeps
its own fields consistent; deciding what to do about it belongs to ``weir.pipelines.spark.coordinator``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from weir.pipelines.spark.task_state import TRANSITIONS, IllegalTransitionError, TaskState
from weir.pipelines.tasks.attempts import Waiting
from weir.pipelines.tasks.dead_letters import Letter
from weir.pipelines.tasks.order import merge_clock, past_clock
from weir.pipelines.tasks.plan import Receipt
from weir.pipelines.topology.clocks import clocks_of
from weir.state.commit.record import Beginning, SnapshotRef, TaskCommit
from weir.state.engine.standby import Left
from weir.state.types import (
    CHANGELOG_FOLDER,
    BlobRef,
    FileEntry,
    LeaderEpochs,
    Positions,
    StateId,
    StoreSpec,
    TaskId,
    TopicPartition,
)

BEFORE_ALL_MS = -(1 << 62)
"""Earlier than any record."""
OPEN_WINDOWS = "open_windows"
"""A gauge that commits keep beside the totals."""


RUNGS = 8
"""How many beginnings of a store are noted for as long as its rows are kept."""


FIRST_ISOLATION_MS, LONGEST_ISOLATION_MS = 1_000, 60_000


OnTransition = Callable[[TaskId, TaskState, TaskState, str], None]


@dataclass(frozen=True)
class Standing:
    """How far a standby is."""

    state: StateId | None
    at_s: float
    """When its commit was the newest one, by the monotonic clock."""
    logged: int = 0
    """How many rows its task had written to its changelogs by then."""
    left: Left | None = None
    """The instance that it is still, which the task has left there: it becomes a standby as it first follows."""

    @property
    def is_left(self) -> bool:
        """Whether it is an instance still."""
        return self.left is not None


@dataclass
class Task:
    """What the driver knows of one task."""

    id: TaskId
    instance: str
    topics: tuple[str, ...]
    """The topics that it reads; of each, the partition with the task's number."""
    slot: int = 0
    """Where it runs."""
    executor: str = ""
    """The executor that this slot was last heard of from."""
    on_transition: OnTransition = lambda task, before, after, reason: None
    """Hears of each change of its state."""
    is_paused: bool = False
    """Whether somebody wants it to be paused: until it is restored, if it is not running."""
    reason: str = ""
    """Why it is not running, or why it was last restored."""
    progress: str = ""
    """The progress of its restore."""
    restored_per_cent: float | None = None
    """The same as a number, while it is known."""
    doubt: str = ""
    """The difference that a check has found in its store; empty if none, or once a restore has succeeded."""
    failed: str = ""
    """Why its last epoch has failed, if it is isolated since or tries again."""
    tries: int = 0
    """How often in a row it has failed."""
    isolated_until_ms: int = BEFORE_ALL_MS
    is_restored: bool = False
    """Whether a restore built its store and no epoch has succeeded on it since."""
    restored_on: str = ""
    """The executor that it was last restored on."""
    is_from_snapshot: bool = False
    """Whether its last restore began with a snapshot."""
    current: StateId | None = None
    committed: StateId | None = None
    positions: Positions = field(default_factory=dict)
    committed_positions: Positions = field(default_factory=dict)
    """The positions of the last commit."""
    leader_epochs: LeaderEpochs = field(default_factory=dict)
    """Of each topic partition, the epoch of the leader whose log was last seen to reach the position."""
    end_epochs: Mapping[str, int] = field(default_factory=dict)
    """By topic, the epoch of the leader that said last where its partition ends."""
    read_under: Mapping[str, int] = field(default_factory=dict)
    """``end_epochs`` as they were when it was given its newest plan: what it reads may be of those leaders' logs."""
    given_s: float = 0.0
    """When that was, by the monotonic clock."""
    clocks: Mapping[str, int] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    gauges: Mapping[str, int] = field(default_factory=dict)
    source_times_ms: dict[str, int] = field(default_factory=dict)
    next_punctuation_ms: int | None = None
    pace_ms: dict[str, float] = field(default_factory=dict)
    """By topic, how far an offset takes its merge time, by the newest epoch that says so."""
    pending: list[BlobRef] = field(default_factory=list)
    """Blobs for this task of which rows are left."""
    takes: int = 0
    """How many epochs have taken rows from other tasks."""
    waiting: Waiting | None = None
    """The record that it is to try again."""
    waits_until_ms: int = BEFORE_ALL_MS
    """Until when, by the wall clock, it takes no row because of that."""
    calling: str = ""
    """What keeps its epoch for long: the call of a function of the program, or a worker that is silent."""
    waits: str = ""
    """What rows that it may not take yet have been waiting for, if for long."""
    files: list[FileEntry] = field(default_factory=list)
    """Files of epochs accepted since the last commit."""
    consumed: list[BlobRef] = field(default_factory=list)
    """Blobs consumed since the last commit, deleted after the next one."""
    snapshot: SnapshotRef | None = None
    """The newest snapshot, which the next commit lists."""
    listed_snapshot: SnapshotRef | None = None
    """The snapshot that the last commit lists."""
    standbys: dict[str, Standing] = field(default_factory=dict)
    """Its standbys that a restore may take over, by executor."""
    standbys_before: frozenset[str] = frozenset()
    """The executors that have a standby of the generation before, which this one goes on with."""
    left: Left | None = None
    """The instance that it has left last, for another executor."""
    left_on: str = ""
    """The executor that has it."""
    distrusts: int = 0
    """How often its snapshot and standbys turned out to be no good."""
    busy_s: float = 0.0
    """What its accepted epochs have taken in its slot."""
    rows_since_snapshot: int = 0
    """Rows of accepted epochs in the task's changelogs that no snapshot holds."""
    logged: int = 0
    """Rows that its accepted epochs have written to its changelogs since the run began."""
    has_stores: bool = False
    without_log: tuple[str, ...] = ()
    """Its stores that have no changelog."""
    unlogged: tuple[str, ...] = ()
    """Its stores whose rows are not in their changelogs: also those that have yet to be written there."""
    idle_since_ms: dict[str, int] = field(default_factory=dict)
    """The time since which a topic has had no records while others of the task had some."""
    sought: tuple[str, ...] = ()
    """Topics whose producers must put keys where a repartition has put them (``TopologyChange.no_longer_divided``)."""
    beginnings: dict[str, Beginning] = field(default_factory=dict)
    """By store, of those that are computed again if they are lost, where their rows begin."""
    kept_ms: Mapping[str, int] = field(default_factory=dict)
    """By store, of those whose beginning moves on, how long their rows are kept."""
    rungs: dict[str, list[Beginning]] = field(default_factory=dict)
    """By store, later beginnings, each of which holds once all rows of before have expired."""
    letters: list[Letter] = field(default_factory=list)
    """Dead letters that it is still to process again."""
    replayed: list[Letter] = field(default_factory=list)
    """Those that it has processed since the last commit."""
    has_uncommitted: bool = False
    """Whether an epoch of it has done something since the last commit."""
    visited: bool = False
    """Whether this generation has run an epoch of it: the first epoch visits every task."""
    has_undo: bool = False
    """Whether its store can roll something back."""
    _state: TaskState = TaskState.CREATED

    @classmethod
    def of(
        cls,
        task_id: TaskId,
        topics: tuple[str, ...],
        committed: TaskCommit,
        stores: Sequence[StoreSpec] = (),
        on_transition: OnTransition = lambda task, before, after, reason: None,
    ) -> Task:
        """A task of a new generation, where the commit log has it."""
        without_log = tuple(store.name for store in stores if not store.is_logged)
        has_snapshot = not (without_log or committed.unlogged)
        return cls(
            id=task_id,
            instance=committed.instance,
            topics=topics,
            on_transition=on_transition,
            current=committed.state,
            committed=committed.state,
            positions={topic: dict(offsets) for topic, offsets in committed.positions.items()},
            committed_positions=committed.positions,
            leader_epochs={topic: dict(epochs) for topic, epochs in committed.leader_epochs.items()},
            clocks=committed.clocks,
            totals={name: count for name, count in committed.totals.items() if name != OPEN_WINDOWS},
            gauges={OPEN_WINDOWS: committed.totals.get(OPEN_WINDOWS, 0)},
            next_punctuation_ms=committed.next_punctuation_ms,
            snapshot=committed.snapshot if has_snapshot else None,
            listed_snapshot=committed.snapshot,
            busy_s=committed.busy_s,
            rows_since_snapshot=committed.rows_since_snapshot,
            has_stores=bool(stores),
            without_log=without_log,
            unlogged=committed.unlogged,
            beginnings=dict(committed.beginnings),
        )

    @property
    def is_ahead(self) -> bool:
        """Whether its store holds more than the last commit."""
        return self.current is not self.committed and self.current != self.committed

    @property
    def state(self) -> TaskState:
        """Where it is in its life."""
        return self._state

    def to(self, state: TaskState, reason: str) -> None:
        """Go to another state.

        Raises:
            IllegalTransitionError: It cannot follow the one that it is in.
        """
        if state not in TRANSITIONS[self._state]:
            raise IllegalTransitionError(str(self.id), self._state, state, reason)
        before, self._state = self._state, state
        self.on_transition(self.id, before, state, reason)

    @property
    def to_log(self) -> tuple[str, ...]:
        """The stores of which its next epoch writes all rows to their changelogs."""
        return tuple(name for name in self.unlogged if name not in self.without_log)

    @property
    def held(self) -> str:
        """That it will be paused, if it is not yet; empty otherwise."""
        return "will be paused once it is restored" if self.is_paused and self.state is not TaskState.PAUSED else ""

    @property
    def retrying(self) -> str:
        """Which record it tries again, and why; empty if none."""
        if self.waiting is None:
            return ""
        record, waiting = self.waiting.record, self.waiting
        return (
            f"tries {record.topic}-{record.partition} offset {record.offset} again, which has failed in "
            f"{record.operator} {waiting.tried} of {waiting.attempts} times: {record.reason}"
        )

    @property
    def owes_settling(self) -> bool:
        """Whether it still holds the undo log of a commit, not having heard of it."""
        return self.has_undo and not self.is_ahead and self.state is TaskState.RUNNING

    def waits_for_idle_topics(self, busy: Collection[str], now_ms: int, max_idle_ms: int) -> bool:
        """Whether a topic has been without records for less than ``max_idle_ms`` while others are ``busy``."""
        if not busy:
            if self.idle_since_ms:
                self.idle_since_ms = {}
            return False
        self.idle_since_ms = {
            topic: self.idle_since_ms.get(topic, now_ms) for topic in self.topics if topic not in busy
        }
        return any(now_ms - since_ms < max_idle_ms for since_ms in self.idle_since_ms.values())

    def opened(self) -> None:
        """A new generation has it go on with the state that it has."""
        self.to(
            TaskState.RUNNING, f"goes on at {self.committed}" if self.committed else "nothing of it is committed yet"
        )

    def lost(self, reason: str, *, is_corrupted: bool = False) -> None:
        """Its local state is given up or gone, or is not what it should be: it is back at the last commit."""
        if is_corrupted and self.state is not TaskState.CORRUPTED:
            self.to(TaskState.CORRUPTED, reason)
        elif self.state not in (TaskState.CREATED, TaskState.CORRUPTED):
            self.to(TaskState.SUSPENDED, reason)
        self.reason, self.current, self.has_undo = reason, self.committed, False
        self.waiting, self.waits_until_ms = None, BEFORE_ALL_MS

    def isolated(self, error: str, now_ms: int) -> None:
        """Its epoch has failed: it takes part in none for a second, then two, and so on up to a minute."""
        self.failed, self.tries = error, self.tries + 1
        wait_ms = min(LONGEST_ISOLATION_MS, FIRST_ISOLATION_MS << min(self.tries - 1, 16))
        self.isolated_until_ms = now_ms + wait_ms
        self.progress = f"has failed {self.tries} times, tries again each {wait_ms // 1000} s: {error}"
        if self.state is TaskState.RUNNING:  # else it was paused meanwhile, or restores
            self.to(TaskState.ISOLATED, error)

    def try_again(self, now_ms: int) -> None:
        """It takes part in epochs again if it has been isolated long enough."""
        if self.state is TaskState.ISOLATED and now_ms >= self.isolated_until_ms:
            self.to(TaskState.RUNNING, "tries again")

    def pause(self, reason: str) -> None:
        """It takes part in no epoch until it is resumed; if it restores, that goes on."""
        self.is_paused = True
        if self.state in (TaskState.RUNNING, TaskState.ISOLATED):
            self.to(TaskState.PAUSED, reason)

    def resume(self, reason: str) -> None:
        """It takes part again if it was paused."""
        self.is_paused = False
        if self.state is TaskState.PAUSED:
            self.to(TaskState.RUNNING, reason)

    def doubted(self, difference: str) -> None:
        """A check has found its store to differ: it restores from its changelog alone, since its snapshot may too."""
        self.lost(difference, is_corrupted=True)
        self.doubt = difference
        self.distrust_copies()

    def leave(self, executor: str) -> None:
        """It is to run elsewhere than on ``executor``, from the last commit on; its store there can become a standby
        once it has another one. One without stores leaves nothing."""
        if self.has_stores and self.committed is not None:
            self.left, self.left_on = Left(instance=self.instance, state=self.committed), executor

    def restoring(self, progress: str = "", per_cent: float | None = None) -> None:
        """Its restore has begun, or has made this progress."""
        if self.state is not TaskState.RESTORING:
            self.to(TaskState.RESTORING, self.reason)
        self.progress, self.restored_per_cent = progress, per_cent

    def not_restored(self, reason: str) -> None:
        """A restore has failed, and is tried again."""
        self.to(TaskState.CORRUPTED, reason)
        self.progress = reason

    def closed(self, reason: str) -> None:
        """Its generation has ended."""
        if self.state is not TaskState.SUSPENDED:
            self.to(TaskState.SUSPENDED, reason)
        self.to(TaskState.CLOSED, reason)

    def restored(
        self, instance: str, executor: str, *, source: str, from_snapshot: bool, is_snapshot_gone: bool
    ) -> None:
        """A new instance on an executor holds its committed state; the next epoch visits it."""
        self.to(TaskState.PAUSED if self.is_paused else TaskState.RUNNING, f"restored from its {source}")
        self.restored_on = executor
        if self.left is not None and self.left.state == self.committed:
            left = Standing(state=self.committed, at_s=time.monotonic(), logged=self.logged, left=self.left)
            self.standbys.setdefault(self.left_on, left)
        self.standbys.pop(executor, None)
        self.standbys_before = frozenset()  # they are of its instance of before
        self.instance, self.visited, self.is_restored = instance, False, True
        self.is_from_snapshot, self.progress, self.doubt = from_snapshot, "", ""
        if is_snapshot_gone and self.snapshot is not None:
            self.rows_since_snapshot += self.snapshot.rows
            self.snapshot = None

    def read_on_at(self, offsets: Mapping[TopicPartition, int], state: StateId) -> None:
        """It continues with the same state at other positions, which its store does not have: it is restored."""
        moved = {(topic, self.id.partition) for topic in self.topics} & offsets.keys()
        for topic, partition in moved:
            self.positions[topic][partition] = offsets[topic, partition]
            self.leader_epochs.get(topic, {}).pop(partition, None)
        if moved and self.current is not None:
            self.current = state
        gone = {topic for topic, _ in moved}
        self.beginnings = {name: each for name, each in self.beginnings.items() if each.topic not in gone}

    def standby_behind_s(self, executor: str) -> float:
        """By how many seconds its standby on an executor is behind the newest commit."""
        standing = self.standbys[executor]
        return 0.0 if standing.state == self.committed else round(time.monotonic() - standing.at_s, 1)

    def standby_lag(self, executor: str) -> int:
        """By how many rows of its changelogs its standby on an executor is behind at most."""
        standing = self.standbys[executor]
        return 0 if standing.state == self.committed else self.logged - standing.logged

    def has_no_standby(self, executor: str) -> None:
        """What was thought to be its standby on an executor cannot be used."""
        self.standbys.pop(executor, None)
        self.standbys_before -= {executor}

    def distrust_copies(self) -> None:
        """Its next restore reads the changelog alone, the next commit lists no snapshot, and standbys begin anew."""
        self.snapshot, self.standbys, self.left, self.distrusts = None, {}, None, self.distrusts + 1
        self.standbys_before = frozenset()

    def reached(self, topic: str, leader_epoch: int) -> None:
        """The log of this leader was seen to reach the position; another thread may write a commit meanwhile."""
        self.leader_epochs = {**self.leader_epochs, topic: {self.id.partition: leader_epoch}}

    def given_plan(self) -> None:
        """It has been given a plan, which reads up to the ends that were told last."""
        self.read_under, self.given_s = self.end_epochs, time.monotonic()

    def accept(self, receipt: Receipt, now_ms: int) -> bool:
        """Apply a ``DONE`` receipt; True when it changed anything worth a commit.

        A task's very first epoch always does: its commit records where the task began, whatever ``start`` says later.
        """
        positions = {
            topic: {**offsets, **receipt.positions.get(topic, {})} for topic, offsets in self.positions.items()
        }
        moved = (
            self.committed is None
            or positions != self.positions
            or receipt.clocks != self.clocks
            or bool(receipt.files or receipt.blobs or receipt.consumed or receipt.left)
        )
        self._note_pace(receipt)
        self._move_beginnings_on(receipt.clocks)
        self.current, self.positions, self.clocks = receipt.state, positions, receipt.clocks
        for topic, epoch in self.read_under.items():  # another may lead, and have been asked about the position before
            self.reached(topic, min(epoch, self.leader_epochs.get(topic, {}).get(self.id.partition, epoch)))
        self.gauges, self.next_punctuation_ms = receipt.gauges, receipt.next_punctuation_ms
        for name, time_ms in receipt.source_times_ms.items():
            self.source_times_ms[name] = max(time_ms, self.source_times_ms.get(name, BEFORE_ALL_MS))
        self.busy_s += receipt.seconds
        self.calling = ""
        if self.failed and receipt.bad_record is None:
            self.failed, self.tries, self.progress = "", 0, ""
        self._wait(receipt, now_ms)
        self.files += receipt.files
        self.unlogged = self.without_log
        logged = sum(file.rows for file in receipt.files if file.table.startswith(CHANGELOG_FOLDER))
        self.rows_since_snapshot, self.logged = self.rows_since_snapshot + logged, self.logged + logged
        self.consumed += receipt.consumed
        self.replayed, self.letters = self.replayed + self.letters[: receipt.replayed], self.letters[receipt.replayed :]
        self.takes += bool(receipt.consumed or receipt.left)
        gone, left = {blob.path for blob in receipt.consumed}, {blob.path: blob for blob in receipt.left}
        self.pending = [left.get(blob.path, blob) for blob in self.pending if blob.path not in gone]
        for name, count in receipt.counts.items():
            self.totals[name] = self.totals.get(name, 0) + count
        self.visited, self.is_restored, self.has_undo = True, False, receipt.gauges.get("uncommitted_records", 0) > 0
        self.has_uncommitted |= moved
        return moved

    def _wait(self, receipt: Receipt, now_ms: int) -> None:
        if now_ms < self.waits_until_ms or receipt.replayed:  # no row was offered
            return
        self.waiting = receipt.waiting
        if self.waiting is not None:
            self.waits_until_ms = now_ms + round(1000 * receipt.seconds) + self.waiting.wait_ms

    def merge_ms(self, topic: str, *, rows_wait: bool) -> int | None:
        """The merge time with which its next record of ``topic`` is compared; None where that is compared by its own
        time: nothing was read, or everything, and no rows wait that it could overtake."""
        return self.clocks.get(merge_clock(topic), self.clocks.get(past_clock(topic)) if rows_wait else None)

    def _note_pace(self, receipt: Receipt) -> None:
        for topic in self.topics:
            clock = merge_clock(topic)
            before, after = self.clocks.get(clock), receipt.clocks.get(clock)
            offset = receipt.positions.get(topic, {}).get(self.id.partition)
            read = 0 if offset is None else offset - self.positions[topic][self.id.partition]
            if before is not None and after is not None and read > 0:
                self.pace_ms[topic] = (after - before) / read

    def _move_beginnings_on(self, clocks: Mapping[str, int]) -> None:
        """Let stores begin where all rows of before have expired by ``clocks``, those after an epoch."""
        for name, kept_ms in self.kept_ms.items():
            if name not in self.beginnings or name not in self.clocks:
                continue
            topic, rungs = self.beginnings[name].topic, self.rungs.setdefault(name, [])
            if not rungs or self.clocks[name] >= rungs[-1].clocks[name] + kept_ms // RUNGS:
                offset = self.positions[topic][self.id.partition]
                rungs.append(Beginning(topic=topic, offset=offset, clocks=clocks_of([name], self.clocks)))
            while rungs and rungs[0].clocks[name] + kept_ms <= clocks[name]:
                self.beginnings[name] = rungs.pop(0)

    def to_commit(self) -> TaskCommit:
        """The task's part of the commit row."""
        return TaskCommit(
            state=self.current,
            instance=self.instance,
            positions=self.positions,
            leader_epochs=self.leader_epochs,
            clocks=self.clocks,
            totals={**self.totals, OPEN_WINDOWS: self.gauges.get(OPEN_WINDOWS, 0)},
            next_punctuation_ms=self.next_punctuation_ms,
            snapshot=self.snapshot,
            busy_s=round(self.busy_s, 3),
            rows_since_snapshot=self.rows_since_snapshot,
            unlogged=self.unlogged,
            beginnings=self.beginnings,
        )

    def published(self, snapshot: SnapshotRef, rows_before: int) -> None:
        """A snapshot was published; it was requested when ``rows_before`` rows were in no snapshot."""
        self.snapshot, self.rows_since_snapshot = snapshot, max(0, self.rows_since_snapshot - rows_before)

    def settled(self) -> SnapshotRef | None:
        """A commit covers everything up to ``current``; returns the snapshot that it no longer lists."""
        replaced = self.listed_snapshot if self.listed_snapshot != self.snapshot else None
        self.committed, self.listed_snapshot = self.current, self.snapshot
        self.committed_positions = {topic: dict(offsets) for topic, offsets in self.positions.items()}
        self.files, self.consumed, self.replayed, self.has_uncommitted = [], [], [], False
        return replaced
