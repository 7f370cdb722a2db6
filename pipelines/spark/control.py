"""What the driver tells the control database, how the run and each of its tasks are doing, and what it is asked there.

The database is on a disk that may be slow, or somewhere else, so a thread of its own talks to it: the driver never
waits for an answer. That thread gives the heartbeats, so they come however long the driver is at one thing; readings
come only as long as the driver itself goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import msgspec

from weir.infra.control.guard import DriverControl
from weir.infra.control.rows import AssignmentRow, MetricRow, QueryServerRow, RequestRow, TaskStatusRow
from weir.pipelines.errors import naming
from weir.pipelines.publishing.state import SinkState
from weir.pipelines.spark.planner import total_lag
from weir.pipelines.spark.progress import Progress
from weir.pipelines.spark.task import Task
from weir.pipelines.spark.task_state import TaskState
from weir.pipelines.tasks.run_metrics import USED_BYTES
from weir.state.types import TopicPartition

STATES = {"caught_up": "stopping"}
"""Progress states that have another name in the control database."""
LAST_STATES = ("stopped", "caught_up")
REQUESTS_EVERY_S = 0.25
READING_EVERY_S = 5.0
"""How often the newest reading is written again while the driver goes on and reports nothing."""


class ControlPanel:
    """Turns tasks and progress into rows of the control database; implements ``weir.pipelines.spark.parts.Control``.

    A report that is not written yet when the next one comes is left out.
    """

    def __init__(self, control: DriverControl) -> None:
        self._control = control
        self._changed = threading.Condition()
        self._asked: list[RequestRow] = []
        """Requests that the driver has not taken yet."""
        self._seen: set[int] = set()
        """The ids of the requests that were read."""
        self._answers: list[tuple[int, str, bool]] = []
        self._report: Callable[[], None] | None = None
        self._sinks: Sequence[SinkState] | None = None
        self._query_servers: Sequence[QueryServerRow] | None = None
        self._assignments: list[AssignmentRow] = []
        self._beat: tuple[str, int | None] = ("starting", None)
        """The state and the generation that were reported last."""
        self._reading: MetricRow | None = None
        """The newest one."""
        self._gone_on_at_ms = 0
        """When the driver last did."""
        self._is_over = False

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Read and write within the block, in which nothing else may use ``control``; what is left is written at its
        end."""
        thread = threading.Thread(target=self._serve, name="control", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify()
            thread.join()

    def requests(self) -> list[RequestRow]:
        """What was asked since the last call, oldest first. Whoever looks goes on."""
        self.goes_on()
        with self._changed:
            found, self._asked = self._asked, []
        return found

    def finish(self, request_id: int, result: str, *, failed: bool = False) -> None:
        with self._changed:
            self._answers.append((request_id, result, failed))
            self._changed.notify()

    def assigned(self, row: AssignmentRow) -> None:
        with self._changed:
            self._assignments.append(replace(row, at_ms=time.time_ns() // 1_000_000))
            self._changed.notify()

    def goes_on(self) -> None:
        self._gone_on_at_ms = time.time_ns() // 1_000_000

    def report(self, progress: Progress, tasks: Iterable[Task], ends: Mapping[TopicPartition, int]) -> None:
        self.goes_on()
        at_ms, state = self._gone_on_at_ms, STATES.get(progress.state, progress.state)
        rows = [self._row(task, ends, is_paused=state == "paused") for task in tasks]
        with self._changed:
            self._report = partial(self._write, progress, state, rows, at_ms)
            self._changed.notify()

    def tell_sinks(self, sinks: Sequence[SinkState]) -> None:
        """How the sinks are doing while the run waits for them alone."""
        with self._changed:
            self._sinks = sinks
            self._changed.notify()

    def tell_query_servers(self, servers: Sequence[QueryServerRow]) -> None:
        """Where executors answer queries."""
        with self._changed:
            self._query_servers = servers
            self._changed.notify()

    def report_sinks(self, sinks: Sequence[SinkState]) -> None:
        """Write how the sinks are doing at the end, after ``serving``."""
        self._control.report_sinks([msgspec.to_builtins(sink) for sink in sinks])

    def _serve(self) -> None:
        look_s, is_last = 0.0, False
        while not is_last:
            with self._changed:
                has_news = self._sinks or self._query_servers or self._assignments
                if not (self._is_over or self._answers or self._report or has_news):
                    self._changed.wait(max(0.0, look_s - time.monotonic()))
                is_last = self._is_over
                answers, self._answers = self._answers, []
                report, self._report = self._report, None
                sinks, self._sinks = self._sinks, None
                servers, self._query_servers = self._query_servers, None
                assignments, self._assignments = self._assignments, []
            (report or self._write_again)()
            if sinks:
                self.report_sinks(sinks)
            if servers:
                self._control.report_query_servers(servers)
            for row in assignments:
                self._control.add_assignment(row)
            for request_id, result, failed in answers:  # after what they have brought about
                self._control.finish(request_id, result, failed=failed)
            if time.monotonic() >= look_s and not is_last:
                look_s = time.monotonic() + REQUESTS_EVERY_S
                self._look()

    def _look(self) -> None:
        if not self._control.may_have_requests():
            return
        found = [request for request in self._control.requests() if request.id not in self._seen]
        with self._changed:
            self._asked += found
            self._seen.update(request.id for request in found)

    def _write_again(self) -> None:
        """A heartbeat without a report; the newest reading still held when the driver last went on."""
        self._control.heartbeat(*self._beat)
        at_ms = self._gone_on_at_ms
        if self._reading is not None and at_ms >= self._reading.at_ms + READING_EVERY_S * 1000:
            self._reading = replace(self._reading, at_ms=at_ms)
            self._control.add_reading(self._reading)

    def _write(self, progress: Progress, state: str, rows: Sequence[TaskStatusRow], at_ms: int) -> None:
        self._beat = (state, progress.generation)
        used = [reading.value for reading in progress.readings if reading.name == USED_BYTES]
        self._reading = MetricRow(
            epoch=progress.epoch,
            committed_epoch=progress.committed_epoch,
            records_in=progress.records_in,
            records_per_s=progress.records_per_s,
            lag=progress.lag,
            commit_ms=progress.commit_ms,
            commit_ms_avg=progress.commit_ms_avg,
            commit_ms_max=progress.commit_ms_max,
            commits_per_s=progress.commits_per_s,
            state_bytes=round(sum(used)) if used else None,
            at_ms=at_ms,
        )
        self._control.heartbeat(*self._beat)
        self._control.report(
            rows,
            self._reading,
            msgspec.to_builtins(progress.readings),
            is_last=progress.state in LAST_STATES,
        )
        self._control.report_waiting(progress.message)
        self.report_sinks(progress.sinks)

    def _row(self, task: Task, ends: Mapping[TopicPartition, int], *, is_paused: bool) -> TaskStatusRow:
        is_uncommitted = task.current != task.committed
        return TaskStatusRow(
            task=str(task.id),
            slot=task.slot,
            executor=task.executor,
            standbys={
                executor: task.standby_behind_s(executor)
                for executor, standing in task.standbys.items()
                if not standing.is_left
            },
            state=str(task.current) if task.current else None,
            status="paused" if is_paused and task.state is TaskState.RUNNING else task.state.value,
            positions={topic: dict(offsets) for topic, offsets in task.positions.items()},
            lag=total_lag([task], ends),
            stream_time_ms=max(
                (time_ms for name, time_ms in task.clocks.items() if not name.startswith("_")), default=None
            ),
            uncommitted_bytes=task.gauges.get("uncommitted_bytes", 0) if is_uncommitted else 0,
            uncommitted_records=task.gauges.get("uncommitted_records", 0) if is_uncommitted else 0,
            open_windows=task.gauges.get("open_windows", 0),
            late_records=task.totals.get("late_records", 0),
            records_in=task.totals.get("records_in", 0),
            restored_per_cent=task.restored_per_cent if task.state is TaskState.RESTORING else None,
            reason="; ".join(
                filter(None, (task.held, task.progress, task.reason, task.retrying, task.calling, task.waits))
            ),
        )


@contextmanager
def lease(control: DriverControl, reference: str) -> Iterator[None]:
    """Give the lease back at the end of the block, with the error that ended it, if any; ``reference`` is the program
    that its advice is about."""
    try:
        yield
    except BaseException as error:
        control.release("failed", naming(str(error), program=reference) or type(error).__name__)
        raise
    control.release()
