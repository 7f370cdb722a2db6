"""The work of standbys: Spark jobs that bring those of an executor to the newest commit, beside the epochs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark import SparkContext

from weir.infra.spark.executors import executor_id
from weir.pipelines.application import Application
from weir.pipelines.spark.background import BackgroundJobs, first_line
from weir.pipelines.spark.slots import SlotPool
from weir.pipelines.spark.worker import WorkerSettings
from weir.pipelines.tasks.epoch import TaskSettings, task_rows
from weir.state.changelog.standby import follow
from weir.state.commit.record import TaskCommit
from weir.state.engine.standby import Left
from weir.state.storage.places import folder_at
from weir.state.types import StateId, TaskId

POOL = "standbys"


@dataclass(frozen=True, kw_only=True)
class FollowRequest:
    """Brings the standby of a task on an executor to a commit."""

    task: TaskId
    executor: str
    commit: TaskCommit
    through: StateId
    generation: int
    at_ms: int
    """When that commit was made, by its row."""
    before: int | None = None
    """The generation whose standbys go on, as everything else does of it; None if there is none."""
    at_s: float
    """When that was the newest commit, by the driver's monotonic clock."""
    logged: int
    """How many rows the task had written to its changelogs by then, since the run began."""
    anew: bool
    """Whether one that is there is not trusted."""
    left: Left | None = None
    """What the task has left; where that is, the standby begins with it."""
    distrusts: int
    """How often the task's copies had been distrusted by then."""


@dataclass(frozen=True, kw_only=True)
class Followed:
    """How that ended."""

    request: FollowRequest
    rows: int = 0
    seconds: float = 0.0
    error: str = ""
    """Why it is not at the commit, in one sentence; empty if it is."""


def bring(application: Application, settings: TaskSettings, request: FollowRequest) -> Followed:
    """Carry out ``request`` on this host."""
    began_s = time.perf_counter()
    name = application.topology.task_name(request.task)
    try:
        rows = follow(
            folder_at(settings.application_folder),
            Path(settings.state_folder, name),
            name,
            application.topology.sub_topology(request.task.sub_topology).stores,
            request.commit,
            request.through,
            generation=request.generation,
            task_rows=task_rows(request.commit.positions, request.commit.clocks),
            at_ms=request.at_ms,
            anew=request.anew,
            before=request.before,
            left=request.left,
        )
    except Exception as error:
        return Followed(request=request, error=first_line(error))
    return Followed(request=request, rows=rows, seconds=time.perf_counter() - began_s)


def run_follow(
    settings: WorkerSettings, requests: Sequence[FollowRequest], rows: Iterable[object]
) -> Iterator[Followed]:
    """``bring`` one after another inside a Spark task; elsewhere than on their executor nobody would find them."""
    list(rows)
    settings, here = settings.here(), executor_id()
    application = settings.application()
    for request in requests:
        if request.executor == here:
            yield bring(application, settings.tasks, request)
        else:
            yield Followed(request=request, error=f"executor {request.executor} is lost")


class StandbyJobs:
    """Standbys that are being brought to a commit, those of one executor at a time in one job."""

    def __init__(self, spark_context: SparkContext, settings: WorkerSettings, slots: SlotPool) -> None:
        self._context, self._settings, self._slots = spark_context, settings, slots
        self._jobs: dict[str, BackgroundJobs[Followed]] = {}
        self._requests: dict[str, Sequence[FollowRequest]] = {}

    @property
    def busy(self) -> set[str]:
        """The executors whose standbys are at it."""
        return {executor for executor, jobs in self._jobs.items() if jobs.tasks}

    def start(self, executor: str, requests: Sequence[FollowRequest]) -> None:
        """Begin with those of an executor that is not busy; ``finished`` tells when they are done."""
        home = self._slots.executor_at(executor)
        if home is None:
            return
        jobs = self._jobs.setdefault(executor, BackgroundJobs[Followed](self._context, POOL))
        self._requests[executor] = requests
        jobs.start([request.task for request in requests], partial(run_follow, self._settings, requests), home)

    def finished(self) -> list[Followed]:
        """Those that ended since the last call."""
        found = list[Followed]()
        for executor, jobs in self._jobs.items():
            given = {request.task: request for request in self._requests[executor]}
            found += [
                Followed(request=given[task], error=first_line(answer)) if isinstance(answer, BaseException) else answer
                for task, answer in jobs.finished()
            ]
        return found

    def close(self) -> None:
        for jobs in self._jobs.values():
            jobs.close()
