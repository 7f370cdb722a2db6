"""Spark jobs that run beside the epochs, for one task or a few: restores and snapshots, each in its scheduler pool.

They run in Python workers apart from those of the slots, whose tasks continue meanwhile: a process may open an LMDB
environment only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from pyspark import RDD, SparkContext

from weir.infra.spark.executors import Executor, row_at
from weir.pipelines.spark.slots import SLOT_VARIABLE
from weir.state.types import TaskId

BACKGROUND = "background"
"""The environment of all these workers, so that one that has the application loaded serves the next job."""
Answer = TypeVar("Answer")


class BackgroundJobs(Generic[Answer]):
    """Jobs of one kind, at most ``at_once`` at a time; each is a function that runs inside a Spark task and gives one
    answer per task of the application."""

    def __init__(self, spark_context: SparkContext, pool: str, at_once: int = 1) -> None:
        self._context, self._pool = spark_context, pool
        self._threads = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix=pool)
        self._running: dict[tuple[TaskId, ...], Future[list[Answer]]] = {}

    @property
    def tasks(self) -> set[TaskId]:
        """The tasks whose answers have not been collected yet."""
        return {task for tasks in self._running for task in tasks}

    @property
    def is_at_work(self) -> bool:
        """Whether there are jobs whose answers have not been collected yet."""
        return bool(self._running)

    def start(
        self,
        tasks: Sequence[TaskId],
        work: Callable[[Iterable[object]], Iterator[Answer]],
        executor: Executor | None = None,
    ) -> None:
        """Begin, in a separate worker, of ``executor`` if one is given; ``finished`` tells when it is done.

        Call it from the driver's thread, which binds the job to its environment.
        """
        self.watch(tasks, self._threads.submit(collect, bound(self._context, work, executor), self._pool))

    def watch(self, tasks: Sequence[TaskId], answers: Future[list[Answer]]) -> None:
        """Count what a slot does for ``tasks`` among these jobs."""
        self._running[tuple(tasks)] = answers

    def finished(self) -> list[tuple[TaskId, Answer | BaseException]]:
        """Those that ended since the last call, with their answer or the error."""
        done = [tasks for tasks, future in self._running.items() if future.done()]
        found: list[tuple[TaskId, Answer | BaseException]] = []
        for tasks in done:
            future = self._running.pop(tasks)
            error = future.exception()
            found += [(task, error) for task in tasks] if error else zip(tasks, future.result(), strict=True)
        return found

    def close(self) -> None:
        """Begin no more jobs; those that run end with the Spark context."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def bound(
    context: SparkContext, work: Callable[[Iterable[object]], Iterator[Answer]], executor: Executor | None
) -> RDD[Answer]:
    """A job of one row in a separate worker, of ``executor`` if one is given. Call it from the driver's thread, which
    binds the job to its environment."""
    context.environment[SLOT_VARIABLE] = BACKGROUND
    job = row_at(context, executor).mapPartitions(work)
    job._jrdd  # binds the environment of this moment  # noqa: B018
    return job


def collect(job: RDD[Answer], pool: str) -> list[Answer]:
    """Run a job in the thread that calls this, whose pool shares the cores fairly with that of the epochs
    (PROTOCOL 27)."""
    job.context.setLocalProperty("spark.scheduler.pool", pool)
    return job.collect()


def first_line(error: BaseException) -> str:
    """An error's type and the first line of its text."""
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no reason given'])[0]}"
