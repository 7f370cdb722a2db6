"""A worker that waits on each executor of a cluster, so that a restore there begins at once.

A Python worker takes a second or more to start: it imports Weir, its libraries and the program. On an executor that has
just got the tasks of a lost one, all that starts at the same time takes many times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from pyspark import SparkContext

from weir.pipelines.spark.background import BackgroundJobs
from weir.pipelines.spark.rounds import Rounds
from weir.pipelines.spark.slots import SlotPool
from weir.pipelines.spark.worker import WorkerSettings, worker_for

LOOK_EVERY_S = 5.0
"""How often it is looked for executors that have joined."""
KEEP_EVERY_S = 30.0
"""Spark ends workers that have done nothing for a minute."""


def run_nothing(settings: WorkerSettings, rows: Iterable[object]) -> Iterator[None]:
    """Inside a Spark task: have everything loaded that a restore needs."""
    list(rows)
    worker_for(settings)
    return iter(())


class ReadyWorkers:
    """Has a worker wait on each executor, of those that ``BackgroundJobs`` use."""

    def __init__(self, spark_context: SparkContext, settings: WorkerSettings, slots: SlotPool, pool: str) -> None:
        self._context, self._settings, self._pool = spark_context, settings, pool
        self._jobs: dict[str, BackgroundJobs[None]] = {}
        self._rounds = Rounds(slots, LOOK_EVERY_S)

    def keep(self) -> None:
        """Start those that are not there, and keep the others; it looks now and then, however often it is called."""
        if not self._rounds.begins():
            return
        for jobs in self._jobs.values():
            jobs.finished()  # a restore will say what is wrong, if anything is
        for home in self._rounds.executors({executor for executor, jobs in self._jobs.items() if jobs.is_at_work}):
            self._rounds.leave_alone(home.id, KEEP_EVERY_S)
            jobs = self._jobs.setdefault(home.id, BackgroundJobs[None](self._context, self._pool))
            jobs.start([], partial(run_nothing, self._settings), home)

    def close(self) -> None:
        for jobs in self._jobs.values():
            jobs.close()
