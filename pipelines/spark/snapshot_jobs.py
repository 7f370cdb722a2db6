"""The work of a snapshot: Spark jobs that publish the state of running tasks while epochs continue.

The files themselves belong to ``weir.state.changelog.snapshot``; when to begin one, to
``weir.pipelines.spark.snapshots``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark import SparkContext

from weir.pipelines.application import Application, load_step_hook
from weir.pipelines.spark.background import BackgroundJobs, first_line
from weir.pipelines.spark.slots import SlotPool
from weir.pipelines.spark.worker import WorkerSettings
from weir.pipelines.tasks.epoch import TaskSettings
from weir.state.changelog.snapshot import publish_snapshot
from weir.state.commit.record import SnapshotRef
from weir.state.engine.instances import instance_folder
from weir.state.errors import DiskFullError
from weir.state.storage.places import folder_at
from weir.state.types import TaskId

log = logging.getLogger(__name__)

POOL = "snapshots"


@dataclass(frozen=True, kw_only=True)
class SnapshotRequest:
    """Copies the committed state of a task's instance."""

    task: TaskId
    instance: str
    rows_since: int
    """The task's ``rows_since_snapshot`` at the request; that many fewer are left afterwards."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """How a snapshot ended."""

    request: SnapshotRequest
    snapshot: SnapshotRef | None
    """None when the task has not heard of any commit yet, and after an error."""
    seconds: float
    error: str = ""


def publish(application: Application, settings: TaskSettings, request: SnapshotRequest) -> Published:
    """Carry out ``request`` on this host; a failure is an answer, since the task can continue without a snapshot."""
    started, name = time.perf_counter(), application.topology.task_name(request.task)
    snapshot, error = None, ""
    try:
        snapshot = publish_snapshot(
            folder_at(settings.application_folder),
            instance_folder(Path(settings.state_folder, name), request.instance),
            name,
        )
    except DiskFullError as full:  # it is due again after the next commit
        error = str(full)
    except Exception as failure:
        log.exception("task %s: its snapshot failed", request.task)
        error = first_line(failure)
    return Published(request=request, snapshot=snapshot, seconds=time.perf_counter() - started, error=error)


def run_publish(settings: WorkerSettings, request: SnapshotRequest, rows: Iterable[object]) -> Iterator[Published]:
    """``publish`` inside a Spark task; on another executor than that of the task, its instance is not found."""
    list(rows)
    settings = settings.here()
    published = publish(settings.application(), settings.tasks, request)
    load_step_hook(settings.on_step)("snapshot published")
    return iter([published])


class SnapshotJobs:
    """Snapshots under way, one at a time, each where the slot of its task is."""

    def __init__(self, spark_context: SparkContext, settings: WorkerSettings, slots: SlotPool) -> None:
        self._slots = slots
        self._settings, self._jobs = settings, BackgroundJobs[Published](spark_context, POOL)
        self._requests: dict[TaskId, SnapshotRequest] = {}

    @property
    def tasks(self) -> set[TaskId]:
        """Those whose snapshots have not been collected yet."""
        return self._jobs.tasks

    def start(self, request: SnapshotRequest) -> None:
        """Begin; ``finished`` tells when it is done."""
        self._requests[request.task] = request
        work = partial(run_publish, self._settings, request)
        self._jobs.start([request.task], work, self._slots.home_of(request.task))

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
