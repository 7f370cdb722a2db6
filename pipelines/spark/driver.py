"""The driver's loop: poll requests, run epochs, commit when due, report, stop cleanly.

A commit is due when its interval has passed, when uncommitted bytes reach the limit, when someone asked, and on
stop (KIP-892). Epochs and commits themselves are ``weir.pipelines.spark.coordinator``'s.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Protocol

from weir.infra.control.rows import RequestRow
from weir.infra.kafka.admin import BrokerUnreachableError
from weir.pipelines.spark.coordinator import Coordinator, EpochResult
from weir.pipelines.spark.errors import BadRecordError, OffsetsLostError, RestoreFailedError, RunError, TaskFailedError
from weir.pipelines.spark.pace import Pace
from weir.pipelines.spark.planner import Limits, Task, TaskState, TopicPartition, total_lag
from weir.pipelines.spark.progress import Progress, RunSummary
from weir.pipelines.spark.restore import Restored, RestoreRequest
from weir.pipelines.spark.snapshots import Published, SnapshotRequest, is_due, request_for
from weir.pipelines.tasks.plan import Receipt, ReceiptStatus
from weir.state.changelog.restore import RestoreProgress
from weir.state.changelog.snapshot import has_snapshots
from weir.state.engine.instances import new_instance
from weir.state.errors import SwapRefusedError
from weir.state.types import StateId, TaskId

log = logging.getLogger("weir.driver")

IDLE_WAIT_S = 0.02
ENDS_MAX_AGE_S = 0.2
REPORT_EVERY_S = 0.5
REQUESTS_EVERY_S = 0.1
DISK_FULL_WAIT_S = 5.0
BROKER_WAIT_S = 1.0
SNAPSHOT_WAIT_S = 5.0
"""A stop waits no longer for snapshots: it has ten seconds for all that it does."""
DRAIN_S = 2.0
"""Nor does it begin more epochs for rows between tasks after so long."""
RESTORE_HOLD_S = 5.0


class Source(Protocol):
    """What the driver asks of the brokers."""

    def end_offsets(self, topic_partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Last stable offsets; raises ``BrokerUnreachableError`` while the brokers are away."""
        ...


class Control(Protocol):
    """The control database as the driver uses it: its loss never stops a run, so no method raises."""

    def requests(self) -> list[RequestRow]: ...

    def finish(self, request_id: int, result: str, *, failed: bool = False) -> None: ...

    def report(self, progress: Progress, tasks: Iterable[Task], ends: Mapping[TopicPartition, int]) -> None: ...


class Restores(Protocol):
    """Restores under way; ``weir.pipelines.spark.restore.RestoreJobs`` fits."""

    def start(self, requests: Sequence[RestoreRequest], *, beside_epochs: bool) -> None: ...

    def finished(self) -> list[Restored]: ...

    def progress(self) -> Mapping[TaskId, RestoreProgress]: ...


class Snapshots(Protocol):
    """Snapshots under way; ``weir.pipelines.spark.snapshots.SnapshotJobs`` fits."""

    @property
    def tasks(self) -> set[TaskId]: ...

    def start(self, request: SnapshotRequest) -> None: ...

    def finished(self) -> list[Published]: ...


@dataclass
class _Clock:
    """When things happened last, by the monotonic clock."""

    commit: float = field(default_factory=time.monotonic)
    report: float = 0.0
    requests: float = 0.0
    ends: float = 0.0
    first_input: float | None = None
    last_commit_end: float = 0.0
    hold_until: float = 0.0


class Driver:
    """Runs one generation of an application until it is told to stop or has caught up."""

    def __init__(
        self,
        coordinator: Coordinator,
        source: Source,
        control: Control,
        restores: Restores,
        snapshots: Snapshots,
        limits: Limits,
        on_progress: Callable[[Progress], None],
        *,
        snapshot_rows: int = 0,
    ) -> None:
        """``snapshot_rows`` is how many rows a task's changelogs grow by until a snapshot is due; 0 for never."""
        self._coordinator, self._source, self._control, self._restores = coordinator, source, control, restores
        self._limits, self._on_progress = limits, on_progress
        self._snapshots, self._snapshot_rows = snapshots, snapshot_rows
        application = coordinator.application
        self._interval_s = application.commit_interval.total_seconds()
        self._pace = Pace(self._interval_s)
        self._uncommitted_max_bytes = application.uncommitted_max_bytes
        self._clock = _Clock()
        self._ends: dict[TopicPartition, int] = {}
        self._is_paused = self._is_live = False
        self._message = ""
        self._stop_request: RequestRow | None = None

    def run(self, stop: Event, *, until_caught_up: bool = False, end_time_ms: int | None = None) -> RunSummary:
        """Loop until ``stop`` is set, or until everything was read that the topics held at the start.

        ``end_time_ms`` is for input that ends there: stream time moves on to it, which closes windows.

        Raises:
            BadRecordError, TaskFailedError, RestoreFailedError: A task cannot go on; everything before is committed.
            OffsetsLostError: A topic ends before the position to go on from.
            FencedError: A newer driver has taken over; nothing more was written.
        """
        self._is_live = not until_caught_up
        self._refresh_ends(stop)
        self._check_positions()
        while not (stop.is_set() or self._stop_request):
            self._answer_requests()
            if not until_caught_up and time.monotonic() - self._clock.ends > ENDS_MAX_AGE_S:
                self._refresh_ends(stop)
            self._take_up_restored()
            self._take_up_snapshots()
            result = None if self._is_paused or self._waits_for_restores() else self._run_epoch()
            if result is not None:
                self._react(result, stop)
            self._commit_if_due(wants_commit=result is not None and result.wants_commit)
            self._report("paused" if self._is_paused else "running")
            if until_caught_up and not self._is_paused and self._has_caught_up(result):
                is_ended = end_time_ms is None or self._end_input(end_time_ms, stop)
                return self._finish("caught_up" if is_ended else "stopped")
            if result is None or not result.records_in:
                if until_caught_up and result is not None and self._lag() > 0:
                    self._ask_ends(stop)  # where to stop stays as it is; whether the brokers are there is the question
                self._idle(stop)
        return self._finish("stopped")

    def _end_input(self, end_time_ms: int, stop: Event) -> bool:
        """Epochs of every task, without records, in which stream time moves to the end; False when told to stop first.

        A task that could not take part does so in the next one, which brings the others nothing.
        """
        coordinator = self._coordinator
        while not stop.is_set():
            self._take_up_restored()
            result = coordinator.run_epoch(
                self._ends, self._limits, time.time_ns() // 1_000_000, end_time_ms=end_time_ms
            )
            if result is not None:
                self._react(result, stop)
            newest = StateId(coordinator.generation, coordinator.epoch)
            if all(task.current == newest and not task.pending for task in coordinator.tasks.values()):
                return True
        return False

    def _run_epoch(self) -> EpochResult | None:
        started = time.monotonic()
        behind = sum(total_lag([task], self._ends) > 0 for task in self._coordinator.tasks.values())
        limits = replace(self._limits, max_records=min(self._limits.max_records, self._pace.share(behind)))
        result = self._coordinator.run_epoch(self._ends, limits, time.time_ns() // 1_000_000, self._is_live)
        self._pace.took(result.records_in if result else 0, time.monotonic() - started)
        if result is not None and result.records_in and self._clock.first_input is None:
            self._clock.first_input = started
        return result

    def _react(self, result: EpochResult, stop: Event) -> None:
        application = self._coordinator.application.id
        if result.to_restore:
            for receipt in result.to_restore:
                task = self._coordinator.tasks[receipt.task]
                if task.is_restored and task.is_from_snapshot:
                    task.snapshot = None  # the changelog may know better
                elif task.is_restored:
                    self._commit("failure")
                    raise RestoreFailedError(
                        application, str(receipt.task), f"the restored state is no better: {receipt.error}"
                    )
            self._restore(result.to_restore)
        if result.bad_record is not None:
            self._commit("bad record")
            raise BadRecordError(application, result.bad_record)
        for receipt in result.failures:
            if receipt.status is ReceiptStatus.FAILED:
                self._commit("failure")
                raise TaskFailedError(application, str(receipt.task), receipt.error)
            self._message = f"task {receipt.task}: {receipt.error}; waiting for space"
            log.warning(self._message)
            self._report("waiting", now=True)
            stop.wait(DISK_FULL_WAIT_S)

    def _restore(self, receipts: list[Receipt], *, from_snapshots: bool = True) -> None:
        """Commit what was accepted, then begin to restore each task as of that commit (PROTOCOL 20).

        A restore moves a folder that a newer driver may be using, so a driver that was overtaken must not begin one.
        """
        coordinator = self._coordinator
        # 1. Accepted epochs committed
        if coordinator.has_uncommitted:
            self._commit("restore")
        else:
            coordinator.check_claim()
        for receipt in receipts:
            coordinator.tasks[receipt.task].lost(receipt.error)
        are_others_running = any(task.state is TaskState.RUNNING for task in coordinator.tasks.values())
        if not are_others_running:
            self._clock.hold_until = time.monotonic() + RESTORE_HOLD_S
        requests = []
        for receipt in receipts:
            task = coordinator.tasks[receipt.task]
            if not from_snapshots:
                task.snapshot = None
            instance = new_instance()
            log.warning("task %s: %s; it restores into instance %s, the others go on", task.id, receipt.error, instance)
            requests.append(
                RestoreRequest(
                    task=task.id,
                    instance=instance,
                    commit=task.to_commit(),
                    through=coordinator.committed_id,
                    generation=coordinator.generation,
                    reason=receipt.error,
                    take_snapshot=self._snapshot_rows > 0,
                )
            )
        self._restores.start(requests, beside_epochs=are_others_running)
        self._report("running", now=True)

    def _waits_for_restores(self) -> bool:
        """Where all tasks restore, in the slots' workers, the first to be done would take those from the others."""
        return time.monotonic() < self._clock.hold_until and any(
            task.state is TaskState.RESTORING for task in self._coordinator.tasks.values()
        )

    def _take_up_restored(self) -> None:
        for restored in self._restores.finished():
            task = self._coordinator.tasks[restored.request.task]
            if restored.error:
                if self._coordinator.has_uncommitted:
                    self._commit("failure")
                raise RestoreFailedError(self._coordinator.application.id, str(task.id), restored.error)
            task.restored(
                restored.request.instance,
                from_snapshot=restored.from_snapshot,
                is_snapshot_gone=restored.is_snapshot_gone,
            )
            self._coordinator.metrics.restored(str(task.id), restored.rows)
            self._coordinator.has_uncommitted = True  # which instance holds its state
            log.info(
                "task %s: restored %s rows in %.2f s from its %s",
                task.id,
                restored.rows,
                restored.seconds,
                restored.source,
            )

    def _start_snapshots(self, wanted: Callable[[Task], bool]) -> int:
        """Begin a snapshot of each task that is wanted and has none under way; returns how many."""
        tasks = [
            task for task in self._coordinator.tasks.values() if task.id not in self._snapshots.tasks and wanted(task)
        ]
        for task in tasks:
            self._snapshots.start(request_for(task))
        return len(tasks)

    def _take_up_snapshots(self) -> None:
        """The next commit lists what has been published; of a task that restores meanwhile it is left to be removed."""
        for published in self._snapshots.finished():
            task, snapshot = self._coordinator.tasks[published.request.task], published.snapshot
            if published.error:
                log.warning("task %s: no snapshot: %s; its restore would read the changelog", task.id, published.error)
            elif snapshot and task.state is TaskState.RUNNING and task.instance == published.request.instance:
                task.published(snapshot, published.request.rows_since)
                self._coordinator.has_uncommitted = True
                log.info(
                    "task %s: snapshot of %s, %s rows in %.2f s",
                    task.id,
                    snapshot.state,
                    snapshot.rows,
                    published.seconds,
                )

    def _is_snapshot_due(self, task: Task) -> bool:
        return is_due(task, self._snapshot_rows, self._coordinator.stores(task.id))

    def _commit_if_due(self, *, wants_commit: bool = False) -> None:
        coordinator = self._coordinator
        if not coordinator.has_uncommitted:
            return
        is_behind = self._lag() > 0
        if time.monotonic() - self._clock.commit + is_behind * self._pace.seconds >= self._interval_s:
            self._commit("interval")
        elif wants_commit or 0 <= self._uncommitted_max_bytes <= coordinator.uncommitted_bytes:
            self._commit("bytes")

    def _commit(self, reason: str) -> None:
        started = time.monotonic()
        self._coordinator.commit(reason)
        self._clock.commit = self._clock.last_commit_end = time.monotonic()
        self._coordinator.metrics.commit(self._clock.commit - started)
        log.info(
            "commit of epoch %s (%s): %.0f ms, lag %s",
            self._coordinator.committed_epoch,
            reason,
            self._coordinator.metrics.commits.last,
            self._lag(),
        )
        if self._snapshot_rows:
            self._start_snapshots(self._is_snapshot_due)

    def _answer_requests(self) -> None:
        if time.monotonic() - self._clock.requests < REQUESTS_EVERY_S:
            return
        self._clock.requests = time.monotonic()
        for request in self._control.requests():
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
                self._is_paused = True
                if coordinator.has_uncommitted:
                    self._commit("pause")
                return f"paused after epoch {coordinator.committed_epoch}"
            case "resume":
                self._is_paused = False
                return "running"
            case "stop":
                self._stop_request = request
                return f"stopping after epoch {coordinator.epoch}"
            case "restore":
                return self._restore_on_request(request)
            case "swap":
                return coordinator.swap(request.arguments.get("backfill", ""))
            case "snapshot":
                count = self._start_snapshots(
                    lambda task: (
                        task.state is TaskState.RUNNING
                        and task.committed is not None
                        and has_snapshots(coordinator.stores(task.id))
                    )
                )
                return f"publishing snapshots of {count} of {len(coordinator.tasks)} tasks"
            case _:
                raise RunError(f"cannot answer a request of the kind {request.kind!r}")

    def _restore_on_request(self, request: RequestRow) -> str:
        wanted = request.arguments.get("task", "")
        name_of = self._coordinator.application.topology.task_name
        task = next(
            (task for task in self._coordinator.tasks.values() if wanted in (str(task.id), name_of(task.id))), None
        )
        if task is None:
            raise RunError(
                f"there is no task {wanted!r}; tasks are "
                + ", ".join(str(task_id) for task_id in self._coordinator.tasks)
            )
        if task.state is TaskState.RESTORING:
            return f"task {wanted} restores already"
        if task.committed is None and not self._coordinator.has_uncommitted:
            raise RunError(f"task {wanted} has no committed state to restore from yet")
        why = f": {request.reason}" if request.reason else ""
        self._restore(
            [
                Receipt(
                    task=task.id,
                    plan_hash="",
                    status=ReceiptStatus.NEEDS_RESTORE,
                    error=f"asked for by {request.requested_by}{why}",
                )
            ],
            from_snapshots=request.arguments.get("source") != "changelog",
        )
        return f"task {wanted} restores"

    def _refresh_ends(self, stop: Event) -> None:
        self._ends = self._ask_ends(stop)
        self._clock.ends = time.monotonic()

    def _ask_ends(self, stop: Event) -> dict[TopicPartition, int]:
        """Where the topics end. While the brokers are away, say so, answer requests and try again."""
        wanted = [(topic, task.id.partition) for task in self._coordinator.tasks.values() for topic in task.topics]
        wanted += self._coordinator.global_beginnings
        while not (stop.is_set() or self._stop_request):
            try:
                ends = dict(self._source.end_offsets(wanted))
                self._message = ""
                return ends
            except BrokerUnreachableError as error:
                if str(error) != self._message:
                    log.warning("%s; trying again until stopped", error)
                self._message = str(error)
                self._answer_requests()
                self._take_up_restored()
                self._commit_if_due()
                self._report("waiting", now=True)
                stop.wait(BROKER_WAIT_S)
        return self._ends

    def _check_positions(self) -> None:
        """A topic that ends before the position was made anew: its records would be passed over up to there."""
        for task in self._coordinator.tasks.values():
            for topic in task.topics:
                position = task.positions[topic][task.id.partition]
                end = self._ends.get((topic, task.id.partition), position)
                if position > end:
                    raise OffsetsLostError(self._coordinator.application.id, topic, task.id.partition, position, end)

    def _has_caught_up(self, result: EpochResult | None) -> bool:
        coordinator = self._coordinator
        if any(task.state is TaskState.RESTORING or task.pending for task in coordinator.tasks.values()):
            return False
        return self._lag() == 0 and (result is None or not result.records_in)

    def _idle(self, stop: Event) -> None:
        """Nothing to read: let committed undo logs go, then wait a moment."""
        if self._coordinator.needs_settling and not self._coordinator.has_uncommitted:
            self._coordinator.settle()
        else:
            stop.wait(IDLE_WAIT_S)

    def _finish(self, reason: str) -> RunSummary:
        """Commit what is there, let the tasks hear of it, and close their stores for good."""
        coordinator = self._coordinator
        self._report("stopping", now=True)
        self._drain()
        if coordinator.has_uncommitted or any(task.current != task.committed for task in coordinator.tasks.values()):
            self._commit(reason.replace("stopped", "stop"))
        coordinator.settle(close=True)
        last_commit_end, first = self._clock.last_commit_end, self._clock.first_input
        self._finish_snapshots()
        self._report(reason, now=True)
        return RunSummary(
            application=coordinator.application.id,
            generation=coordinator.generation,
            epoch=coordinator.epoch,
            commits=coordinator.commits,
            records_in=self._pace.records_in,
            reason=reason,
            totals=coordinator.totals(),
            seconds=last_commit_end - first if first is not None else 0.0,
        )

    def _drain(self) -> None:
        """Let the tasks take the rows that are on their way between them, so that another program can go on from here
        (PROTOCOL 26). What is left after some seconds, or while a task cannot go on, stands in the commit."""
        coordinator, until = self._coordinator, time.monotonic() + DRAIN_S
        while (
            not self._is_paused
            and time.monotonic() < until
            and any(task.pending and task.state is TaskState.RUNNING for task in coordinator.tasks.values())
        ):
            result = coordinator.run_epoch({}, self._limits, time.time_ns() // 1_000_000)
            if result is None or result.failures or result.to_restore:
                return

    def _finish_snapshots(self) -> None:
        """Those due are published, and listed by a commit: a stop is no reason to read a long changelog one day."""
        if self._snapshot_rows:
            self._start_snapshots(self._is_snapshot_due)
        until = time.monotonic() + SNAPSHOT_WAIT_S
        while self._snapshots.tasks and time.monotonic() < until:
            self._take_up_snapshots()
            time.sleep(IDLE_WAIT_S)
        self._take_up_snapshots()
        if self._coordinator.has_uncommitted:
            self._coordinator.commit("snapshot")

    def _lag(self) -> int:
        return total_lag(self._coordinator.tasks.values(), self._ends)

    def _report(self, state: str, *, now: bool = False) -> None:
        if not now and time.monotonic() - self._clock.report < REPORT_EVERY_S:
            return
        self._clock.report = time.monotonic()
        coordinator = self._coordinator
        for task, restoring in self._restores.progress().items():
            coordinator.tasks[task].progress = str(restoring)
            coordinator.metrics.restoring(str(task), restoring.rows, restoring.rows_left)
        commits = coordinator.metrics.commits
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
            message=self._message,
            readings=coordinator.metrics.readings(),
        )
        self._control.report(progress, coordinator.tasks.values(), self._ends)
        self._on_progress(progress)
