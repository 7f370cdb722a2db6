"""The driver's loop: answer requests, run epochs, commit when due, report, stop cleanly.

A commit is due when its interval has passed, when uncommitted bytes reach the limit, when someone requests it, and on
stop (KIP-892). Epochs and commits themselves belong to ``weir.pipelines.spark.coordinator``; which tasks restore, to
``restores``; when snapshots are published, to ``snapshots``.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Annotated, TypeVar

import msgspec

from weir.infra.control.rows import RequestRow
from weir.infra.kafka.admin import BrokerUnreachableError, KafkaAdminError, UnknownTopicError
from weir.pipelines.publishing.state import Decision, sink_readings
from weir.pipelines.spark.admission import require_commit_log
from weir.pipelines.spark.assigning import Assigning
from weir.pipelines.spark.beat import LOOK_S, Beat
from weir.pipelines.spark.coordinator import Coordinator, EpochResult
from weir.pipelines.spark.errors import (
    BadRecordError,
    ExpectationViolatedError,
    MatchedTopicGoneError,
    OffsetsLostError,
    RunError,
    StateInDoubtError,
    TaskFailedError,
    UnconfirmedReadsError,
)
from weir.pipelines.spark.pace import Pace, Share
from weir.pipelines.spark.parts import Executors, Listeners, RunSpec
from weir.pipelines.spark.planner import total_lag
from weir.pipelines.spark.progress import NEW_TOPICS, ROLLED_BACK, Progress, RunSummary
from weir.pipelines.spark.replays import begin_replay
from weir.pipelines.spark.restores import Restores
from weir.pipelines.spark.scaling import Scaling
from weir.pipelines.spark.signs import Sign
from weir.pipelines.spark.slot_count import SlotCount
from weir.pipelines.spark.snapshots import Snapshots
from weir.pipelines.spark.standbys import Standbys
from weir.pipelines.spark.task import BEFORE_ALL_MS, Task
from weir.pipelines.spark.task_readings import slot_readings, task_readings
from weir.pipelines.spark.task_state import TaskState
from weir.pipelines.spark.topic_watch import TopicWatch
from weir.pipelines.tasks.global_table import shared_folder
from weir.pipelines.tasks.plan import ReceiptStatus
from weir.state.commit.protocol import Committer
from weir.state.engine.doubts import clear_doubt, doubt_of, instances_in_doubt
from weir.state.engine.environment import FREE_DISK_RESERVE_BYTES
from weir.state.engine.instances import instance_folder, instances
from weir.state.engine.quarantine import quarantine
from weir.state.engine.shared_rows import shared_tables
from weir.state.errors import SwapRefusedError
from weir.state.full_disk import DISK_FULL_WAIT_S, disk_full, is_disk_full, require_room
from weir.state.storage.object_store import away, is_away
from weir.state.storage.places import disks
from weir.state.types import TaskId, TopicPartition

log = logging.getLogger("weir.driver")

Answer = TypeVar("Answer")
IDLE_WAIT_S = 0.02
ENDS_MAX_AGE_S = 0.2
"""How old the ends of the topics may be while records wait; otherwise they are asked for at each look for records."""
REQUESTS_EVERY_S = LOOK_S
"""How often a run that waits for records looks for requests: with a short commit interval it wakes up for both at once.
"""
TOPICS_EVERY_S = 5.0
"""How often brokers are asked for topics and partitions that were not there when the run began, and whether those that
were are still the same; and how often a run that commits nothing looks whether a newer driver has taken over."""
EVEN_EVERY_S = 5.0
"""How often it is looked whether some slots have much more to do than others."""
JOIN_LIMIT_S = 30.0
"""How long the slots of a lost executor wait for one that joins, before they go to those that are there."""
SINK_TELLS = 2
"""How often it must be told how the sinks are doing before a request for one is answered: the first that comes may have
been written before what the request is about."""
QUIET_REQUESTS_EVERY_S = 0.5
"""The same while the run is told of records."""
REPORT_EVERY_S = 0.5
REPORT_SHARE = 0.05
"""The share of the time that goes into reports at most, unless they are further apart than ``QUIET_REPORT_EVERY_S``:
with many tasks a report takes long."""
QUIET_REPORT_EVERY_S = 15.0
"""While nothing waits and nothing changes; heartbeats and readings come without reports."""
HURRY_S = 1.0
"""How long an epoch may still take once somebody has asked for something, if what it waits for may be left."""
CLOSING_S = 5.0
"""How long the closing of processors may take at a stop; a run that ends by itself waits for it."""
LATE_SHARE = 0.2
"""How late a commit may be for an epoch that is about to end, as a share of the interval: it would have to wait for the
next one."""
LEAST_SHARE = 0.25
"""The share of the commit interval that an epoch may take at least, however late it began."""
BROKER_WAIT_S = 1.0


def started_driver(spec: RunSpec, committer: Committer, executors: Executors, listeners: Listeners) -> Driver:
    """The driver of a new generation, which it has claimed. While a disk is full, it waits and claims again.

    Raises what ``require_commit_log`` and ``Coordinator.start`` raise, and:
        DiskFullError: ``Listeners.wait_for_disk`` waits no longer.
    """
    folder = spec.warehouse / spec.application.id
    what = f"application {spec.application.id!r}"
    while True:
        try:
            for disk in disks(folder):
                require_room(disk, what, FREE_DISK_RESERVE_BYTES)  # else claims would pile up
            return _started(spec, committer, executors, listeners)
        except Exception as error:
            if is_away(error) and listeners.wait_for_brokers(away(str(folder), error)):
                continue
            if not is_disk_full(error):
                raise
            full = disk_full(error, what, [*disks(folder), spec.state_folder])
            if not listeners.wait_for_disk(full):
                raise full from error


def _started(spec: RunSpec, committer: Committer, executors: Executors, listeners: Listeners) -> Driver:
    require_commit_log(spec.application, spec.warehouse / spec.application.id, spec.state_folder)
    before = list(instances(spec.state_folder))  # an instance that a newer driver makes is not among them
    coordinator = Coordinator(
        spec.application, spec.warehouse, committer, executors.slots, listeners.on_commit, spec.metrics_level
    )
    coordinator.wait_for_disk, coordinator.wait_for_brokers = listeners.wait_for_disk, listeners.wait_for_brokers
    coordinator.start(spec.source_counts, spec.source, accept_state_loss=spec.accept_state_loss)
    name_of = spec.application.topology.task_name
    named = {
        instance_folder(spec.state_folder / name_of(task.id), task.instance) for task in coordinator.tasks.values()
    }
    coordinator.check_claim()
    for folder in before:
        if folder not in named:  # another program's, or one of a restore that died
            quarantine(folder, "no task of the newest commit uses it", coordinator.generation)
    kept = {shared_folder(spec.state_folder, table.store.name) for table in spec.application.topology.global_tables}
    for folder in shared_tables(spec.state_folder):
        if folder not in kept:  # another program's
            shutil.rmtree(folder, ignore_errors=True)
    for folder in instances_in_doubt(spec.state_folder):
        if folder not in named:  # restored, by a driver that died before it could remove the mark
            clear_doubt(folder)
    for task in coordinator.tasks.values():
        task.slot = spec.slot_of[task.id]
        if coordinator.continues is not None:
            task.standbys_before = frozenset(spec.placed.standbys.get(task.id, ()))

    def difference_of(task: Task) -> str | None:
        doubt = doubt_of(instance_folder(spec.state_folder / name_of(task.id), task.instance))
        return None if doubt is None else doubt.difference

    coordinator.difference_of = difference_of
    return Driver(coordinator, spec, executors, listeners)


@dataclass
class _Clock:
    """When things last happened, by the monotonic clock."""

    commit: float = field(default_factory=time.monotonic)
    report: float = 0.0
    reports_apart: float = REPORT_EVERY_S
    ends: float = 0.0
    topics: float = field(default_factory=time.monotonic)
    evened: float = field(default_factory=time.monotonic)
    lost: float | None = None
    """Since when slots are without an executor."""
    first_input: float | None = None
    next_input: float | None = None
    """The first input since the last commit."""
    last_commit_end: float = 0.0
    epoch: float = 0.0
    """The beginning of the newest epoch."""
    begun: float | None = None
    """The same of one that has begun before a commit."""
    asked: float | None = None
    """The first request, or the stop, of those that are not answered yet."""


class OtherInterval(msgspec.Struct, frozen=True):
    """Commits that somebody wants to be further apart for a while."""

    interval_ms: Annotated[int, msgspec.Meta(gt=0)]
    for_s: Annotated[int, msgspec.Meta(ge=0)]


class Driver:
    """Runs one generation of an application until it is told to stop or has caught up."""

    def __init__(self, coordinator: Coordinator, spec: RunSpec, executors: Executors, listeners: Listeners) -> None:
        self._coordinator, self._limits = coordinator, spec.limits
        self._topics, self._accept_lost_records = (
            TopicWatch(coordinator, spec.source, spec.source_counts),
            spec.accept_lost_records,
        )
        self._control, self._on_progress = listeners.control, listeners.on_progress
        self._publishing, self._outbox_max_bytes = listeners.publishing, spec.outbox_max_bytes
        self._profiling = coordinator.profiling = listeners.profiling
        self._restores = Restores(
            coordinator,
            executors.restores,
            self._commit,
            state_folder=spec.state_folder,
            takes_snapshots=spec.snapshot_rows > 0,
        )
        self._snapshots = Snapshots(coordinator, executors.snapshots, spec.snapshot_rows)
        self._assigning = Assigning(coordinator, spec.assignors, spec.costs)
        kept_s = math.inf if spec.keeps is None else spec.keeps.unneeded_s
        self._standbys = Standbys(coordinator, executors.standbys, self._assigning, kept_s)
        self._queries = executors.queries
        self._clean_up, self._copies = executors.clean_up, executors.copies
        application = coordinator.application
        self._interval_s = application.commit_interval.total_seconds()
        self._pace = Pace(
            self._interval_s,
            lambda task: coordinator.tasks[task].slot,
            max_records=spec.limits.max_records,
            max_bytes=spec.limits.max_bytes,
        )
        self._priorities = spec.priorities
        self._wait_for_records = spec.wait_for_records
        self._other_interval_until_s = math.inf
        """Until when commits are as far apart as somebody has asked for, by the monotonic clock."""
        self._scaling = Scaling(coordinator.slots, coordinator.whereabouts, spec.counts)
        self._beat = Beat(self._interval_s, is_told=spec.wait_for_records is not None)
        self._clock = _Clock()
        self._ends: dict[TopicPartition, int] = {}
        self._is_paused = self._is_live = self._is_stopping = False
        self._message = self._held = ""
        """Why the run waits; the second is about its sinks."""
        self._reported: tuple[object, ...] = ()
        """What the newest report said, as ``_to_report`` has it."""
        self._stop_request: RequestRow | None = None
        self._requests: list[RequestRow] = []
        """Requests that are not answered yet."""
        self._for_sinks: list[tuple[float, RequestRow]] = []
        """Those that wait until it has been told so many times how the sinks are doing."""
        self._closing_s: float | None = None
        """How long to wait for processors that are being closed; None while none are."""
        self._stop = Event()
        """Tells the run to end."""
        self._asking = ThreadPoolExecutor(1, "topics")
        """Asks the brokers whether the topics still have what was read, while a commit is prepared."""
        self._placement = spec.placed
        coordinator.assignments.on_assigned = listeners.control.assigned
        coordinator.wait_for_disk = self._wait_for_disk
        coordinator.slots.is_patient = self._is_patient

    def run(self, stop: Event, *, until_caught_up: bool = False, end_time_ms: int | None = None) -> RunSummary:
        """Loop until ``stop`` is set, or until everything that the topics held at the start has been read.

        A run that goes on after that ends for the reason ``NEW_TOPICS`` when there are more topic partitions to read,
        and any for the reason ``ROLLED_BACK`` if what was done since the last commit must not be committed.

        ``end_time_ms`` is for input that ends at that time: stream time advances to it, which closes windows.

        Raises:
            BadRecordError, ExpectationViolatedError, TaskFailedError, RestoreFailedError: A task cannot continue;
                earlier epochs are committed.
            OffsetsLostError, MatchedTopicGoneError, GlobalTopicReplacedError, UnknownTopicError: A topic is no longer
                the one that was read, or no longer has what is to be read next.
            FencedError: A newer driver has taken over; nothing more was written.
        """
        try:
            return self._run(stop, until_caught_up=until_caught_up, end_time_ms=end_time_ms)
        except (StateInDoubtError, UnconfirmedReadsError) as error:
            log.warning("%s", error)
            return self._summary("stopped" if self._is_over() else ROLLED_BACK)
        except (RunError, UnknownTopicError) as error:
            self._commit_before(error)
            self._coordinator.closed("the run has failed")
            self._report("stopping", now=True)  # positions and lag as of the failure
            raise

    def _run(self, stop: Event, *, until_caught_up: bool, end_time_ms: int | None) -> RunSummary:
        self._is_live, self._stop = not until_caught_up, stop
        placement = self._placement
        self._coordinator.assignments.began(placement.seconds, placement.previous, placement.moves)
        self._ask(stop, partial(self._topics.begin, accept_lost_records=self._accept_lost_records))
        self._refresh_ends(stop)
        self._ask(stop, self._restores.require_whole_topics)
        self._restores.begin_those_of_the_start()
        while not (stop.is_set() or self._stop_request):
            self._answer_requests()
            if not until_caught_up and self._is_time_to_look():
                self._refresh_ends(stop)
            if time.monotonic() - self._clock.topics > TOPICS_EVERY_S:
                self._clock.topics = time.monotonic()
                self._coordinator.look_at_claim()
                if not until_caught_up:
                    self._ask(stop, self._topics.require_readable)
                    if grown := self._ask(stop, self._topics.grown):
                        log.info("%s: the run goes on with another generation", grown)
                        return self._finish(NEW_TOPICS, stop)
            self._restores.take_up()
            self._snapshots.take_up()
            self._standbys.take_up()
            self._queries.keep()
            self._scaling.go_on()
            if time.monotonic() - self._clock.evened > EVEN_EVERY_S:
                self._even_slots()
            self._held = self._held_by_sinks()
            is_held = self._is_paused or self._restores.hold_epochs or bool(self._held)
            result = self._take_up() if is_held else self._run_epoch()
            if result is not None:
                self._react(result, stop)
            self._commit_if_due(wants_commit=result is not None and result.wants_commit)
            self._report(self._state(result))
            if until_caught_up and not self._is_paused and self._has_caught_up(result):
                is_ended = end_time_ms is None or self._end_input(end_time_ms, stop)
                return self._finish("caught_up" if is_ended else "stopped", stop)
            if result is None or not result.records_in or (self._is_live and not self._has_more()):
                if until_caught_up and result is not None and self._is_behind():
                    # Records that came later are not read; those that the brokers have lost cannot be waited for.
                    ends = self._ask(stop, self._topics.ends) or self._ends
                    self._ends = {place: min(end, ends[place]) for place, end in self._ends.items()}
                self._idle(stop)
        return self._finish("stopped", stop)

    @property
    def generation(self) -> int:
        """The generation that was claimed."""
        return self._coordinator.generation

    @property
    def slot_count(self) -> SlotCount | None:
        """How many slots the next generation is to have."""
        return self._scaling.count

    @property
    def last_commit_end_s(self) -> float:
        """When the last commit ended, by the monotonic clock."""
        return self._clock.last_commit_end

    def _is_time_to_look(self) -> bool:
        """Whether the ends of the topics are to be asked for again."""
        now_s = time.monotonic()
        if self._has_more():
            return now_s - self._clock.ends > ENDS_MAX_AGE_S
        return now_s >= self._beat.next_look_s(has_uncommitted=self._coordinator.has_uncommitted)

    def _has_more(self) -> bool:
        """Whether it is known that records wait, from topics or from other tasks."""
        return self._is_behind() or any(task.pending or task.letters for task in self._coordinator.tasks.values())

    def _state(self, result: EpochResult | None) -> str:
        if self._is_paused:
            return "paused"
        if self._held or (result is None and self._restores.waits):
            return "waiting"
        if result is None and self._coordinator.under_way:
            return "working"
        has_retries = any(task.waiting is not None for task in self._coordinator.tasks.values())
        return "waiting" if result is None and has_retries else "running"

    def while_waiting(self, signs: Sequence[Sign]) -> None:
        """Report that the run goes on, while workers take long; name the calls that they are in, and who is silent."""
        tasks = {str(task.id): task for task in self._coordinator.tasks.values()}
        for sign in signs:
            task = tasks.get(sign.task)
            if task is None or not (sign.call or sign.silent_s):
                continue
            calling = (
                f"has been in one call of {sign.call} for {sign.call_s:.0f} s"
                if sign.call
                else f"has given no sign of life for {sign.silent_s:.0f} s"
            )
            if not task.calling:
                log.warning("task %s %s", task.id, calling)
            task.calling = calling
        self._report("working", now=True)

    def _is_patient(self) -> bool:
        """Whether to wait for what may be left: until a commit is late, or somebody has asked for something; longer
        while processors are closed, since what they forward belongs to the last commit."""
        now_s = time.monotonic()
        self._take_requests()
        is_asked = bool(self._requests or self._stop_request or self._stop.is_set())
        if self._closing_s is not None:
            return now_s < self._clock.epoch + (CLOSING_S if is_asked else self._closing_s)
        if not is_asked:
            self._clock.asked = None
            due_s = self._beat.due_s + LATE_SHARE * self._interval_s
            return now_s < max(due_s, self._clock.epoch + LEAST_SHARE * self._interval_s)
        self._clock.asked = self._clock.asked or now_s
        return now_s < max(self._clock.asked, self._clock.epoch) + HURRY_S

    def _take_up(self) -> EpochResult | None:
        """What has come of plans that were left before."""
        result = self._coordinator.take_up()
        self._clock.begun = None  # what had begun was not waited for by an epoch
        if result is not None:
            self._pace.took(0.0, result.took, is_whole=False)
        return result

    def _wait_for_disk(self, error: Exception) -> bool:
        """Wait a moment with a commit for which the disk has no room, or the object store no answer; False once the run
        is to end."""
        message = f"a commit waits{'' if is_away(error) else ' for space'}: {error}"
        if message != self._message:
            log.warning(message)
        self._message = message
        self._report("waiting", now=True)
        return not self._stop.wait(DISK_FULL_WAIT_S)

    def _held_by_sinks(self) -> str:
        """Why nothing is read, if too much waits for sinks; empty otherwise."""
        waiting_bytes = sum(sink.waiting_bytes for sink in self._publishing.states)
        if self._outbox_max_bytes is None or waiting_bytes <= self._outbox_max_bytes:
            return ""
        return f"{waiting_bytes:,} bytes wait for sinks; reading goes on when they have caught up"

    def _end_input(self, end_time_ms: int, stop: Event) -> bool:
        """Run epochs without records in which the stream time of every task advances to the end.

        A task that could not take part does so in the next one, which changes nothing for the rest. False when told
        to stop first.
        """
        coordinator = self._coordinator
        while not stop.is_set():
            self._restores.take_up()
            result = coordinator.run_epoch(
                self._ends, self._limits, time.time_ns() // 1_000_000, end_time_ms=end_time_ms
            )
            if result is not None:
                self._react(result, stop)
            if coordinator.has_ended:
                return True
            if result is None:
                stop.wait(IDLE_WAIT_S)
        return False

    def _run_epoch(self) -> EpochResult | None:
        started = self._clock.epoch = self._clock.begun or time.monotonic()
        self._clock.begun = None
        is_late = bool(self._coordinator.under_way)
        result = self._coordinator.run_epoch(
            self._ends, self._limits, time.time_ns() // 1_000_000, self._is_live, shares=self._shares()
        )
        is_whole = not (is_late or self._coordinator.under_way)
        self._profiling.epoch(started, time.monotonic())
        self._pace.took(time.monotonic() - started, result.took if result else {}, is_whole=is_whole)
        if result is not None and result.records_in:
            self._beat.took(time.monotonic() - started, has_left_some=self._is_behind())
            self._clock.first_input = self._clock.first_input or started
            self._clock.next_input = self._clock.next_input or started
        return result

    def _react(self, result: EpochResult, stop: Event) -> None:
        application = self._coordinator.application.id
        if result.to_restore:
            self._restores.begin(result.to_restore)
            self._report("running", now=True)
        isolates = self._is_live and self._coordinator.application.on_task_error == "isolate"
        for task, record in result.bad_records.items():
            is_violation = record.expectation is not None
            bad = (ExpectationViolatedError if is_violation else BadRecordError)(application, record)
            if not isolates:
                self._commit("bad record")
                raise bad
            self._isolate(task, str(bad))
        for receipt in result.failures:
            if receipt.status is ReceiptStatus.FAILED and isolates:
                self._isolate(receipt.task, receipt.error)
                continue
            if receipt.status is ReceiptStatus.FAILED:
                with suppress(KafkaAdminError):  # the brokers may be away, and the reason another
                    self._topics.require_readable()
                self._commit("failure")
                raise TaskFailedError(application, str(receipt.task), receipt.error)
            is_full = receipt.status is ReceiptStatus.DISK_FULL
            self._message = f"{receipt.error}; waiting for {'space' if is_full else 'an answer'}"
            log.warning(self._message)
            self._report("waiting", now=True)
            stop.wait(DISK_FULL_WAIT_S)

    def _isolate(self, task: TaskId, error: str) -> None:
        """Have the others go on without a task that fails."""
        first = (error.splitlines() or ["no reason given"])[0]
        self._coordinator.tasks[task].isolated(first, time.time_ns() // 1_000_000)
        log.warning("task %s is isolated: %s", task, error)
        self._report("running", now=True)

    def _commit_if_due(self, *, wants_commit: bool = False) -> None:
        coordinator = self._coordinator
        if time.monotonic() >= self._other_interval_until_s:
            self._other_interval_until_s = math.inf
            self._set_interval(coordinator.application.commit_interval.total_seconds())
        if not coordinator.has_uncommitted:
            return
        if self._beat.is_commit_due(self._pace.seconds if self._is_behind() else 0.0):
            self._commit("interval", begins=True)
        elif (limit := coordinator.reached_limit) or wants_commit:
            self._commit(limit or "early", begins=True)

    def _begin_epoch(self) -> None:
        """Let the next epoch begin before a commit that waits for a network: its tasks read and compute meanwhile."""
        coordinator = self._coordinator
        is_held = self._is_paused or self._restores.hold_epochs or self._held_by_sinks()
        is_ending = self._stop_request or self._is_stopping or self._stop.is_set()
        if disks(coordinator.folder) or is_held or is_ending:
            return
        if self._is_behind():
            started, now_ms = time.monotonic(), time.time_ns() // 1_000_000
            coordinator.run_epoch(self._ends, self._limits, now_ms, self._is_live, shares=self._shares(), begins=True)
            self._clock.begun = started if coordinator.slots.has_begun else None

    def _is_over(self) -> bool:
        """Whether the run has been told to end."""
        return self._is_stopping or self._stop.is_set() or self._stop_request is not None

    def _commit_before(self, error: RunError | UnknownTopicError) -> None:
        """If topics have changed, commit what was complete before, unless it may have come from what is there now, or
        from a task that is in doubt since."""
        if not isinstance(error, OffsetsLostError | MatchedTopicGoneError | UnknownTopicError):
            return
        lost = error.lost if isinstance(error, OffsetsLostError) else ()
        self._coordinator.finish_writing()
        if self._coordinator.has_uncommitted and not self._topics.has_read_since_commit(lost):
            try:
                self._commit("lost records", apart_from={each.topic for each in lost})
            except StateInDoubtError as doubt:  # the next start restores the task
                log.warning("task %s is in doubt: %s; what was read is not committed", doubt.task, doubt.difference)
            except UnconfirmedReadsError as unconfirmed:
                log.warning("%s", unconfirmed)

    def _commit(self, reason: str, apart_from: Collection[str] = (), *, begins: bool = False) -> None:
        """Commit; of topics ``apart_from`` which it is known that they are the same, or that nothing was read. With
        ``begins`` the next epoch may begin before."""
        started = time.monotonic()
        self._coordinator.finish_writing()
        if begins:
            self._begin_epoch()
        self._coordinator.commit(reason, confirm=self._asked_to_confirm(apart_from))
        self._message = ""
        self._profiling.committed(time.monotonic() - started)
        self._coordinator.metrics.commit(
            time.monotonic() - started,
            time.time_ns() // 1_000_000,
            started - self._clock.commit if self._was_busy(self._clock.commit) else None,
        )
        self._beat.committed(started)
        self._clock.commit, self._clock.last_commit_end = started, time.monotonic()
        self._clock.next_input = None
        log.info(
            "commit of epoch %s (%s): %.0f ms, lag %s",
            self._coordinator.committed_epoch,
            reason,
            self._coordinator.metrics.commits.last,
            self._lag(),
        )
        self._snapshots.begin_due()
        self._standbys.begin_due()
        if (instances := self._coordinator.settled_instances) is not None:
            self._clean_up.begin_due(instances, self._standbys.kept(), self._coordinator.generation)

    def _asked_to_confirm(self, apart_from: Collection[str] = ()) -> Callable[[], None]:
        """Ask the brokers what ``TopicWatch.confirm`` asks; what is returned waits for the answer, and raises what that
        raises, or ``UnconfirmedReadsError`` once the run is to end while they are away."""
        first = self._asking.submit(self._topics.confirm, apart_from)

        def answered() -> None:
            asked = first
            while True:
                try:
                    return asked.result()
                except BrokerUnreachableError as error:
                    self._wait_away(error)
                    self._take_stop()
                    if self._is_over() or self._stop.wait(BROKER_WAIT_S):
                        raise UnconfirmedReadsError(str(error)) from error
                asked = self._asking.submit(self._topics.confirm, apart_from)

        return answered

    def _wait_away(self, error: BrokerUnreachableError) -> None:
        """Report that the run waits for the brokers."""
        if str(error) != self._message:
            log.warning("%s; trying again until stopped", error)
        self._message = str(error)
        self._report("waiting", now=True)

    def _was_busy(self, since_s: float) -> bool:
        """Whether records were there to be read soon after the commit of ``since_s``."""
        first_s = self._clock.next_input
        return self._coordinator.commits > 1 and first_s is not None and first_s - since_s < self._interval_s

    def _take_requests(self) -> bool:
        """Whether there are requests to answer."""
        tells, known = self._publishing.tells, {request.id for request in self._requests}
        known |= {request.id for _, request in self._for_sinks}
        asked = [request for request in self._control.requests() if request.id not in known]
        self._requests += [request for request in asked if request.kind != "sink"]
        self._for_sinks += [(tells + SINK_TELLS, request) for request in asked if request.kind == "sink"]
        self._requests += [request for wanted, request in self._for_sinks if wanted <= tells]
        self._for_sinks = [waiting for waiting in self._for_sinks if waiting[0] > tells]
        return bool(self._requests)

    def _take_stop(self) -> None:
        """Answer requests to stop, and leave all others."""
        self._take_requests()
        for request in [each for each in self._requests if each.kind == "stop"]:
            self._requests.remove(request)
            self._control.finish(request.id, self._answer(request))

    def _answer_requests(self) -> None:
        self._take_requests()
        while self._requests:
            request = self._requests.pop(0)
            log.info("request %s from %s: %s %s", request.id, request.requested_by, request.kind, request.reason)
            try:
                self._control.finish(request.id, self._answer(request))
            except (RunError, SwapRefusedError) as error:
                self._control.finish(request.id, str(error), failed=True)

    def _answer(self, request: RequestRow) -> str:
        coordinator = self._coordinator
        match request.kind:
            case "commit":
                if not coordinator.has_uncommitted:
                    return f"nothing uncommitted; epoch {coordinator.committed_epoch} is the newest"
                self._commit(f"request by {request.requested_by}")
                return f"committed epoch {coordinator.committed_epoch}"
            case "pause":
                what = self._pause(request.arguments.get("tasks", ""), f"request by {request.requested_by}")
                if coordinator.has_uncommitted:
                    self._commit("pause")
                return f"paused {what}after epoch {coordinator.committed_epoch}"
            case "resume":
                return self._resume(request.arguments.get("tasks", ""), f"request by {request.requested_by}")
            case "stop":
                self._stop_request = request
                drains = "; first, no row may wait between tasks" if request.arguments.get("drain") else ""
                return f"stopping after epoch {coordinator.epoch}{drains}"
            case "restore":
                answer = self._restores.answer(request)
                self._report("running", now=True)
                return answer
            case "swap":
                coordinator.finish_writing()
                self._asked_to_confirm()()
                return coordinator.swap(request.arguments.get("backfill", ""))
            case "sink":
                return self._publishing.decide(msgspec.convert(request.arguments, Decision))
            case "replay":
                ids = msgspec.json.decode(request.arguments.get("ids", "[]"), type=list[str])
                return msgspec.json.encode(begin_replay(coordinator, ids)).decode()
            case "pace":
                return self._change_interval(request)
            case "slots":
                answer = self._scaling.ask(request.arguments.get("slots", ""))
                self._report("running", now=True)
                return answer
            case "snapshot":
                return f"publishing snapshots of {self._snapshots.begin_all()} of {len(coordinator.tasks)} tasks"
            case _:
                raise RunError(f"cannot answer a request of the kind {request.kind!r}")

    def _pause(self, wanted: str, asked_by: str) -> str:
        """Everything, or the tasks that are ``wanted``; which ones, to begin a sentence."""
        if not wanted:
            self._is_paused = True
            return ""
        tasks = self._coordinator.named(wanted)
        for task in tasks:
            task.pause(asked_by)
        self._report("running", now=True)
        return f"{', '.join(str(task.id) for task in tasks)} "

    def _resume(self, wanted: str, asked_by: str) -> str:
        tasks = self._coordinator.named(wanted) if wanted else list(self._coordinator.tasks.values())
        for task in tasks:
            task.resume(asked_by)
        self._is_paused = self._is_paused and bool(wanted)
        self._report("running", now=True)
        return f"running: {', '.join(str(task.id) for task in tasks)}" if wanted else "running"

    def _change_interval(self, request: RequestRow) -> str:
        try:
            wanted = msgspec.convert(request.arguments, OtherInterval, strict=False)
        except msgspec.ValidationError as error:
            raise RunError(f"cannot commit at another interval: {error}") from None
        self._other_interval_until_s = time.monotonic() + wanted.for_s
        self._set_interval(wanted.interval_ms / 1000)
        own_s = self._coordinator.application.commit_interval.total_seconds()
        return f"commits every {wanted.interval_ms / 1000:g} s instead of every {own_s:g} s, for {wanted.for_s:,} s"

    def _even_slots(self) -> None:
        """Have slots and tasks leave executors that leave, and go to those that have joined; and tasks leave slots that
        have much more to do than others; those that are at work now will do so later."""
        leaving, stay = self._coordinator.whereabouts.leaving()
        if leaving:
            self._restores.move(leaving, dict.fromkeys(leaving, "its executor is decommissioned"))
        try:
            self._follow_executors()
            self._scaling.fill()
            moved, left = self._coordinator.whereabouts.even_slots(self._ends)
        except RunError as error:  # whoever waits for its plans finds out what is wrong with it
            moved, left = [], []
            log.warning("%s", error)
        if moved:
            log.info("moved to slots that have less to do: %s", ", ".join(map(str, moved)))
        self._follow_assignment()
        if not (left or stay):
            self._clock.evened = time.monotonic()

    def _follow_assignment(self) -> None:
        """Have stores brought to the executors that are to have them, and tasks go where theirs are."""
        self._assigning.look(self._ends)
        self._standbys.begin_due()
        slots, reasons = self._assigning.moves()
        if slots:
            self._restores.move(slots, reasons)

    def _follow_executors(self) -> None:
        now_s = time.monotonic()
        self._clock.lost = (self._clock.lost or now_s) if self._coordinator.slots.lost() else None
        is_late = self._clock.lost is not None and now_s > self._clock.lost + JOIN_LIMIT_S
        self._scaling.follow_executors(is_late=is_late)
        if gone := self._coordinator.whereabouts.follow_executors(is_late=is_late):
            self._scaling.slots_went()
            told = ", ".join(f"slot {slot} to executor {executor}" for slot, executor in gone.items())
            log.info("slots go to other executors: %s", told)

    def _set_interval(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._beat.change(interval_s)
        self._pace.change(interval_s)

    def _refresh_ends(self, stop: Event) -> None:
        self._beat.looked()
        self._ends = self._ask(stop, self._topics.ends) or self._ends
        self._clock.ends = time.monotonic()

    def _ask(self, stop: Event, question: Callable[[], Answer]) -> Answer | None:
        """The brokers' answer; None when told to stop. While they are away, report that and answer requests."""
        while not (stop.is_set() or self._stop_request):
            try:
                answer = question()
                self._message = ""
                return answer
            except BrokerUnreachableError as error:
                self._answer_requests()
                self._restores.take_up()
                if (result := self._take_up()) is not None:
                    self._react(result, stop)
                self._wait_away(error)
                stop.wait(BROKER_WAIT_S)
        return None

    def _has_caught_up(self, result: EpochResult | None) -> bool:
        coordinator = self._coordinator
        if coordinator.under_way or any(
            # that a store is lost shows when its task is visited
            task.state is not TaskState.RUNNING or task.pending or task.letters or not task.visited
            for task in coordinator.tasks.values()
        ):
            return False
        return not self._is_behind() and (result is None or not result.records_in)

    def _idle(self, stop: Event) -> None:
        """There is nothing to read: have copies of global tables follow their topics, and let tasks drop undo logs that
        are committed, or wait a moment."""
        if self._is_live and not (self._is_paused or self._held) and self._copies.is_due:
            self._copies.bring_on(self._coordinator.copies_behind(self._ends))
        if self._coordinator.needs_settling and not self._coordinator.has_uncommitted:
            self._coordinator.settle()
        else:
            began_s = time.monotonic()
            while (wait_s := self._next_s(began_s + IDLE_WAIT_S) - time.monotonic()) > 0:
                if self._waited(wait_s, stop) or self._take_requests():
                    return

    def _waited(self, seconds: float, stop: Event) -> bool:
        """Wait so long at most, and only until requests are due; whether there is something to do earlier."""
        if self._wait_for_records is None or not (self._is_live and self._beat.is_quiet):
            return stop.wait(min(seconds, REQUESTS_EVERY_S))
        if self._wait_for_records(self._ends, min(seconds, QUIET_REQUESTS_EVERY_S)):
            self._beat.heard()
            return True
        return stop.is_set()

    def _next_s(self, soonest_s: float) -> float:
        """When there may be something to do again: to look for records, or, not before ``soonest_s``, anything else."""
        if not self._is_live:  # it does not look for records
            return soonest_s
        coordinator = self._coordinator
        look_s = (
            self._clock.ends + ENDS_MAX_AGE_S
            if self._has_more()
            else self._beat.next_look_s(has_uncommitted=coordinator.has_uncommitted)
        )
        tasks = coordinator.tasks.values()
        if coordinator.under_way or any(task.state is TaskState.RESTORING for task in tasks):
            return min(look_s, soonest_s)
        due = [task.next_punctuation_ms for task in tasks if task.next_punctuation_ms]
        due_ms = min([*due, *(task.waits_until_ms for task in tasks if task.waiting is not None)], default=math.inf)
        return min(look_s, max(soonest_s, time.monotonic() + due_ms / 1000 - time.time()))

    def _finish(self, reason: str, stop: Event) -> RunSummary:
        """Commit what there is, let the tasks hear of it, and close their stores cleanly."""
        coordinator = self._coordinator
        coordinator.finish_begun()
        for task in coordinator.tasks.values():
            task.resume("the run ends")  # to be closed with the others
        request, self._stop_request = self._stop_request, None
        self._is_stopping = reason == "stopped"
        if request is not None and request.arguments.get("drain"):
            self._drain(stop)
        self._report("stopping", now=True)
        if (result := self._take_up()) is not None:
            self._react(result, stop)
        self._clock.epoch = time.monotonic()
        self._closing_s = CLOSING_S if reason == "stopped" else math.inf
        coordinator.close_processors(self._ends, self._limits, time.time_ns() // 1_000_000)
        self._closing_s = None
        if coordinator.has_uncommitted or any(task.current != task.committed for task in coordinator.tasks.values()):
            self._commit(reason.replace("stopped", "stop"))
            self._take_up()
        for task_id in coordinator.under_way:
            log.warning(
                "task %s %s: the run ends without it, and the next one begins that part again",
                task_id,
                coordinator.tasks[task_id].calling or "has not answered",
            )
        coordinator.settle(close=True)
        self._snapshots.finish()
        if coordinator.has_uncommitted:
            coordinator.commit("snapshot")
        return self._summary(reason)

    def _summary(self, reason: str) -> RunSummary:
        """Report that the generation has ended, and how."""
        coordinator, first = self._coordinator, self._clock.first_input
        coordinator.closed(f"the run ends: {reason}")
        self._report("starting" if reason in (NEW_TOPICS, ROLLED_BACK) else reason, now=True)
        return RunSummary(
            application=coordinator.application.id,
            generation=coordinator.generation,
            epoch=coordinator.epoch,
            commits=coordinator.commits,
            records_in=self._pace.records_in,
            reason=reason,
            totals=coordinator.totals(),
            seconds=max(0.0, self._clock.last_commit_end - first) if first is not None else 0.0,
        )

    def _drain(self, stop: Event) -> None:
        """Read until no row waits between tasks: up to the newest time of those that wait now, and nothing later.

        What is still unread then comes after all that was taken, so the results are those of a run that reads on. A
        signal or another request to stop ends it; what waits is then committed.
        """
        coordinator = self._coordinator
        self._refresh_ends(stop)
        waiting = [blob.last[0] for task in coordinator.tasks.values() for blob in task.pending if blob.last]
        upto_ms = max(waiting, default=BEFORE_ALL_MS)
        for task in coordinator.tasks.values():
            for topic in task.topics:
                if (merge_ms := task.merge_ms(topic, rows_wait=True)) is not None and merge_ms > upto_ms:
                    self._ends[topic, task.id.partition] = task.positions[topic][task.id.partition]
        while not (stop.is_set() or self._stop_request) and any(task.pending for task in coordinator.tasks.values()):
            self._answer_requests()
            self._restores.take_up()
            result = coordinator.run_epoch(
                self._ends, self._limits, time.time_ns() // 1_000_000, upto_ms=upto_ms, shares=self._shares()
            )
            self._report("draining")
            if result is None:
                stop.wait(IDLE_WAIT_S)
                continue
            self._react(result, stop)
            self._commit_if_due(wants_commit=result.wants_commit)
            for topic, partition in result.stopped_early:
                (task,) = (
                    task
                    for task in coordinator.tasks.values()
                    if topic in task.topics and task.id.partition == partition
                )
                self._ends[topic, partition] = task.positions[topic][partition]

    def _shares(self) -> Mapping[TaskId, Share]:
        lags = {task.id: total_lag([task], self._ends) for task in self._coordinator.tasks.values()}
        return self._pace.shares(lags, self._priorities)

    def _is_behind(self) -> bool:
        """Whether it is known that records wait."""
        return any(total_lag([task], self._ends) for task in self._coordinator.tasks.values())

    def _lag(self) -> int:
        return total_lag(self._coordinator.tasks.values(), self._ends)

    def _is_as_reported(self, state: str) -> bool:
        tasks = self._coordinator.tasks.values()
        is_restoring = any(task.state is TaskState.RESTORING for task in tasks)
        is_behind = self._has_more() or self._coordinator.has_uncommitted  # sensors watch how long, and how it grows
        return not (is_restoring or is_behind) and self._reported == self._to_report(state)

    def _to_report(self, state: str) -> tuple[object, ...]:
        """What changes while something happens."""
        coordinator = self._coordinator
        executor_of = coordinator.slots.executor_of
        tasks = [
            (task.state, task.reason, task.retrying, task.calling, executor_of(task.slot), *task.standbys)
            for task in coordinator.tasks.values()
        ]
        return (
            state,
            self._message or self._restores.waits or self._held,
            coordinator.epoch,
            coordinator.committed_epoch,
            self._pace.records_in,
            self._lag(),
            self._publishing.states,
            tasks,
        )

    def _report(self, state: str, *, now: bool = False) -> None:
        self._coordinator.transitions.tell()
        self._coordinator.assignments.tell()
        since_s = time.monotonic() - self._clock.report
        is_soon = since_s < self._clock.reports_apart
        if not now and (is_soon or (since_s < QUIET_REPORT_EVERY_S and self._is_as_reported(state))):
            return
        self._reported = self._to_report(state)
        self._clock.report = time.monotonic()
        self._publishing.keep_alive()
        coordinator = self._coordinator
        for task in coordinator.tasks.values():
            task.executor = coordinator.slots.executor_of(task.slot)
        self._restores.tell_progress()
        commits, sinks = coordinator.metrics.commits, self._publishing.states
        progress = Progress(
            application=coordinator.application.id,
            generation=coordinator.generation,
            epoch=coordinator.epoch,
            committed_epoch=coordinator.committed_epoch,
            records_in=self._pace.records_in,
            lag=self._lag(),
            records_per_s=self._pace.records_per_s,
            commit_ms=commits.last,
            commits_per_s=commits.count_rate,
            commit_ms_avg=commits.average,
            commit_ms_max=commits.maximum,
            state=state,
            message=self._message or self._restores.waits or self._held,
            readings=[
                *coordinator.metrics.readings(),
                *task_readings(coordinator.tasks.values(), self._ends),
                *slot_readings(coordinator.slots.count),
                *sink_readings(sinks, time.time()),
            ],
            sinks=sinks,
        )
        self._control.report(progress, coordinator.tasks.values(), self._ends)
        self._on_progress(progress)
        wanted_s = (time.monotonic() - self._clock.report) / REPORT_SHARE
        self._clock.reports_apart = min(max(REPORT_EVERY_S, wanted_s), QUIET_REPORT_EVERY_S)
