"""Publishing snapshots of running tasks: Spark jobs beside the epochs, listed by the next commit.

A snapshot is due once the task's changelogs have grown by so many rows since the last one that a restore would take
noticeably longer. The files are ``weir.state.changelog.snapshot``'s; when to begin one is the driver's decision.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark import SparkContext

from weir.pipelines.application import Application, load_application
from weir.pipelines.spark.background import BackgroundJobs, first_line
from weir.pipelines.spark.planner import Task, TaskState
from weir.pipelines.spark.worker import WorkerSettings, load_step_hook
from weir.pipelines.tasks.epoch import TaskSettings
from weir.state.changelog.snapshot import has_snapshots, publish_snapshot
from weir.state.commit.record import SnapshotRef
from weir.state.types import StoreSpec, TaskId

log = logging.getLogger(__name__)

POOL = "snapshots"


@dataclass(frozen=True, kw_only=True)
class SnapshotRequest:
    """Copies the committed state of a task's instance."""

    task: TaskId
    instance: str
    rows_since: int
    """The task's ``rows_since_snapshot`` when it was asked for: so many fewer are left afterwards."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """How a snapshot ended."""

    request: SnapshotRequest
    snapshot: SnapshotRef | None
    """None when the task has heard of no commit yet, or after an error."""
    seconds: float
    error: str = ""


def request_for(task: Task) -> SnapshotRequest:
    """A snapshot of ``task`` as it stands now."""
    return SnapshotRequest(task=task.id, instance=task.instance, rows_since=task.rows_since_snapshot)


def is_due(task: Task, every_rows: int, stores: Iterable[StoreSpec]) -> bool:
    """Whether a snapshot is worth its while: not for fewer changes than half of the rows it would copy.

    ``every_rows`` 0 stands for never.
    """
    held = task.snapshot.rows if task.snapshot else 0
    return (
        every_rows > 0
        and task.state is TaskState.RUNNING
        and task.committed is not None
        and task.rows_since_snapshot >= max(every_rows, held // 2)
        and has_snapshots(list(stores))
    )


def publish(application: Application, settings: TaskSettings, request: SnapshotRequest) -> Published:
    """Carry out ``request`` on this host; a failure is an answer, for the task itself goes on without."""
    started, name = time.perf_counter(), application.topology.task_name(request.task)
    snapshot, error = None, ""
    try:
        snapshot = publish_snapshot(
            Path(settings.application_folder), Path(settings.state_folder, name, request.instance), name
        )
    except Exception as failure:
        log.exception("task %s: its snapshot failed", request.task)
        error = first_line(failure)
    return Published(request=request, snapshot=snapshot, seconds=time.perf_counter() - started, error=error)


def run_publish(settings: WorkerSettings, request: SnapshotRequest, rows: Iterable[object]) -> Iterator[Published]:
    """``publish`` inside a Spark task."""
    list(rows)
    published = publish(load_application(settings.reference), settings.tasks, request)
    load_step_hook(settings.on_step)("snapshot published")
    return iter([published])


class SnapshotJobs:
    """Snapshots under way, one at a time."""

    def __init__(self, spark_context: SparkContext, settings: WorkerSettings) -> None:
        self._settings, self._jobs = settings, BackgroundJobs[Published](spark_context, POOL)
        self._requests: dict[TaskId, SnapshotRequest] = {}

    @property
    def tasks(self) -> set[TaskId]:
        """Whose snapshots have not been taken up yet."""
        return self._jobs.tasks

    def start(self, request: SnapshotRequest) -> None:
        """Begin; ``finished`` tells when it is done."""
        self._requests[request.task] = request
        self._jobs.start([request.task], partial(run_publish, self._settings, request))

    def finished(self) -> list[Published]:
        """Those that ended since the last call."""
        return [
            self._lost(task, answer) if isinstance(answer, BaseException) else answer
            for task, answer in self._jobs.finished()
        ]

    def close(self) -> None:
        self._jobs.close()

    def _lost(self, task: TaskId, error: BaseException) -> Published:
        return Published(request=self._requests[task], snapshot=None, seconds=0.0, error=first_line(error))
