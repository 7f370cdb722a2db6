"""The snapshots of a run: when one is due, and what becomes of it once it is published.

A snapshot is due once the task's changelogs have grown by so many rows since the last one that a restore would take
noticeably longer. The work itself is done by ``weir.pipelines.spark.snapshot_jobs``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.spark.parts import SnapshotExecutor
from weir.pipelines.spark.snapshot_jobs import SnapshotRequest
from weir.pipelines.spark.task import Task
from weir.pipelines.spark.task_state import TaskState
from weir.state.changelog.snapshot import has_snapshots
from weir.state.types import StoreSpec

log = logging.getLogger("weir.driver")

STOP_WAIT_S = 5.0
"""The longest that a stop waits for snapshots: it has ten seconds for everything it does."""
LOOK_S = 0.02


class Snapshots:
    """Begins snapshots and tells the coordinator which ones were published."""

    def __init__(self, coordinator: Coordinator, executor: SnapshotExecutor, every_rows: int) -> None:
        """``every_rows`` is how many rows a task's changelogs grow by before a snapshot is due; 0 for never."""
        self._coordinator, self._executor, self._every_rows = coordinator, executor, every_rows

    def begin_due(self) -> None:
        """Begin those that are due, unless one is already under way for their task."""
        self._begin(lambda task: is_due(task, self._every_rows, self._coordinator.stores(task.id)))

    def begin_all(self) -> int:
        """Begin one for every task that can have one and has none under way; returns how many."""
        return self._begin(
            lambda task: (
                task.state is TaskState.RUNNING
                and task.committed is not None
                and has_snapshots(self._coordinator.stores(task.id))
            )
        )

    def take_up(self) -> None:
        """Let the next commit list what has been published; a task that is restoring by then loses its snapshot."""
        for published in self._executor.finished():
            task_id, snapshot = published.request.task, published.snapshot
            if published.error:
                log.warning("task %s: no snapshot: %s; its restore would read the changelog", task_id, published.error)
            elif snapshot and self._coordinator.published(published.request, snapshot):
                log.info(
                    "task %s: snapshot of %s, %s rows in %.2f s",
                    task_id,
                    snapshot.state,
                    snapshot.rows,
                    published.seconds,
                )

    def finish(self) -> None:
        """Publish those that are due before the run stops, so that no later restore has to read a long changelog."""
        self.begin_due()
        until = time.monotonic() + STOP_WAIT_S
        while self._executor.tasks and time.monotonic() < until:
            self.take_up()
            time.sleep(LOOK_S)
        self.take_up()

    def _begin(self, is_wanted: Callable[[Task], bool]) -> int:
        under_way = self._executor.tasks
        tasks = [task for task in self._coordinator.tasks.values() if task.id not in under_way and is_wanted(task)]
        for task in tasks:
            self._executor.start(
                SnapshotRequest(task=task.id, instance=task.instance, rows_since=task.rows_since_snapshot)
            )
        return len(tasks)


def is_due(task: Task, every_rows: int, stores: Sequence[StoreSpec]) -> bool:
    """Whether a snapshot is worthwhile: never for fewer changes than half of the rows that it would copy.

    ``every_rows`` 0 stands for never.
    """
    held = task.snapshot.rows if task.snapshot else 0
    return (
        every_rows > 0
        and task.state is TaskState.RUNNING
        and task.committed is not None
        and task.rows_since_snapshot >= max(every_rows, held // 2)
        and has_snapshots(stores)
    )
