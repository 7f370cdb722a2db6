"""Restores, snapshots and standbys have shares of their own of the threads, beside the slots."""

from __future__ import annotations

import threading
from contextlib import closing
from types import SimpleNamespace

import pytest

from tests.waiting import wait_for
from weir.pipelines.spark import background, restore_jobs, snapshot_jobs, standby_jobs
from weir.state.types import TaskId

TASK = TaskId(0, 0)
REQUEST = SimpleNamespace(task=TASK, is_short=False, executor="driver")
SETTINGS = SimpleNamespace(is_on_cluster=False)
SLOTS = SimpleNamespace(count=2, home_of=lambda task: None, executor_at=lambda executor: "driver")


def restores(context):
    jobs = restore_jobs.RestoreJobs(context, SETTINGS, SLOTS, str)
    jobs.start([REQUEST], beside_epochs=True)
    return jobs


def snapshots(context):
    jobs = snapshot_jobs.SnapshotJobs(context, SETTINGS, SLOTS)
    jobs.start(REQUEST)
    return jobs


def standbys(context):
    jobs = standby_jobs.StandbyJobs(context, SETTINGS, SLOTS)
    jobs.start("driver", [REQUEST])
    return jobs


class Context:
    """A Spark context whose jobs answer with the pool of the thread that runs them, as properties belong to threads."""

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self._of_thread, self._jrdd, self.context = threading.local(), None, self

    def setLocalProperty(self, name: str, value: str) -> None:  # noqa: N802
        setattr(self._of_thread, name, value)

    def mapPartitions(self, work: object) -> Context:  # noqa: N802
        return self

    def collect(self) -> list[str]:
        return [getattr(self._of_thread, "spark.scheduler.pool")]


@pytest.mark.parametrize("begun", [restores, snapshots, standbys], ids=lambda begun: begun.__name__)
def test_what_runs_beside_epochs_is_in_a_pool_of_its_own(monkeypatch, begun):
    monkeypatch.setattr(background, "row_at", lambda context, executor: context)
    found = list[str]()
    with closing(begun(Context())) as jobs:
        wait_for(lambda: found.extend(jobs.finished()) or found, "it has ended")
    assert found == [begun.__name__]
