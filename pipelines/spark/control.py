"""What the driver tells the control database: how the run and each of its tasks are doing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import msgspec

from weir.infra.control.guard import DriverControl
from weir.infra.control.rows import MetricRow, RequestRow, TaskStatusRow
from weir.pipelines.errors import naming
from weir.pipelines.publishing.state import SinkState
from weir.pipelines.spark.planner import total_lag
from weir.pipelines.spark.progress import Progress
from weir.pipelines.spark.task import Task, TaskState
from weir.state.types import TopicPartition

STATES = {"caught_up": "stopping"}
"""Progress states that have another name in the control database."""
LAST_STATES = ("stopped", "caught_up")


class ControlPanel:
    """Turns tasks and progress into rows of the control database; implements ``weir.pipelines.spark.parts.Control``."""

    def __init__(self, control: DriverControl) -> None:
        self._control = control

    def requests(self) -> list[RequestRow]:
        return self._control.requests()

    def finish(self, request_id: int, result: str, *, failed: bool = False) -> None:
        self._control.finish(request_id, result, failed=failed)

    def report(self, progress: Progress, tasks: Iterable[Task], ends: Mapping[TopicPartition, int]) -> None:
        state = STATES.get(progress.state, progress.state)
        self._control.heartbeat(state, progress.generation)
        self._control.report(
            [self._row(task, ends, is_paused=state == "paused") for task in tasks],
            MetricRow(
                epoch=progress.epoch,
                committed_epoch=progress.committed_epoch,
                records_in=progress.records_in,
                records_per_s=progress.records_per_s,
                lag=progress.lag,
                commit_ms=progress.commit_ms,
                commit_ms_avg=progress.commit_ms_avg,
                commit_ms_max=progress.commit_ms_max,
                commits_per_s=progress.commits_per_s,
            ),
            [asdict(reading) for reading in progress.readings],
            is_last=progress.state in LAST_STATES,
        )
        self.report_sinks(progress.sinks)

    def report_sinks(self, sinks: Sequence[SinkState]) -> None:
        self._control.report_sinks([msgspec.to_builtins(sink) for sink in sinks])

    def _row(self, task: Task, ends: Mapping[TopicPartition, int], *, is_paused: bool) -> TaskStatusRow:
        is_uncommitted = task.current != task.committed
        return TaskStatusRow(
            task=str(task.id),
            slot=task.slot,
            state=str(task.current) if task.current else None,
            status="paused" if is_paused and task.state is TaskState.RUNNING else task.state.value,
            positions=task.positions,
            lag=total_lag([task], ends),
            stream_time_ms=max(
                (time_ms for name, time_ms in task.clocks.items() if not name.startswith("_")), default=None
            ),
            uncommitted_bytes=task.gauges.get("uncommitted_bytes", 0) if is_uncommitted else 0,
            uncommitted_records=task.gauges.get("uncommitted_records", 0) if is_uncommitted else 0,
            open_windows=task.gauges.get("open_windows", 0),
            late_records=task.totals.get("late_records", 0),
            records_in=task.totals.get("records_in", 0),
            reason="; ".join(filter(None, (task.progress, task.reason, task.retrying, task.calling, task.waits))),
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
