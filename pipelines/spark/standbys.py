"""The standbys of a run: which executors keep them, when they follow, and how far each is.

The work itself is done by ``weir.pipelines.spark.standby_jobs``; who keeps which, ``weir.pipelines.spark.assigning``
says.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from weir.pipelines.assignment.contract import task_order
from weir.pipelines.spark.assigning import Assigning
from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.spark.parts import StandbyExecutor
from weir.pipelines.spark.standby_jobs import FollowRequest
from weir.pipelines.spark.task import Standing, Task
from weir.pipelines.spark.task_state import TaskState

log = logging.getLogger("weir.driver")

FOLLOW_EVERY_S = 2.0
"""How often standbys are brought to the newest commit."""
PAUSE_S = 10.0
"""How long an executor is left alone on which that has failed."""


class Standbys:
    """Has standbys follow, and notes on each task where it has some."""

    def __init__(
        self, coordinator: Coordinator, executor: StandbyExecutor, assigning: Assigning, kept_s: float
    ) -> None:
        """``kept_s`` is how long executors keep what no assignment needs."""
        self._coordinator, self._executor, self._assigning, self._kept_s = coordinator, executor, assigning, kept_s
        self._not_before = defaultdict[str, float](float)

    def begin_due(self) -> None:
        """Have those follow that are behind, if nothing is uncommitted, as right after a commit."""
        if self._coordinator.has_uncommitted:
            return
        if (chosen := self._chosen()) is None:
            return
        now_s, busy = time.monotonic(), self._executor.busy
        self._forget_unneeded(chosen, now_s)
        for executor, tasks in chosen.items():
            if executor in busy or now_s < self._not_before[executor]:
                continue
            behind = [task for task in tasks if self._home(task) != executor and _is_behind(task, executor)]
            if requests := [self._request(task, executor, now_s) for task in behind]:
                self._not_before[executor] = now_s + FOLLOW_EVERY_S
                self._executor.start(executor, requests)

    def take_up(self) -> None:
        """Note how far those are that have followed."""
        for followed in self._executor.finished():
            request = followed.request
            task = self._coordinator.tasks[request.task]
            if followed.error:
                self._not_before[request.executor] = time.monotonic() + PAUSE_S
                task.has_no_standby(request.executor)
                log.warning("task %s: its standby on executor %s: %s", task.id, request.executor, followed.error)
            elif task.distrusts == request.distrusts and request.executor != self._home(task):
                standing = task.standbys.get(request.executor)
                if standing is None or standing.is_left:
                    told = "task %s: has a standby on executor %s, %s rows in %.2f s"
                    log.info(told, task.id, request.executor, followed.rows, followed.seconds)
                task.standbys[request.executor] = Standing(
                    state=request.commit.state, at_s=request.at_s, logged=request.logged
                )

    def kept(self) -> dict[str, list[str]]:
        """By executor, the stored names of the tasks of which it is to keep a standby; while nobody is asked, of those
        of which it has one."""
        if (chosen := self._chosen()) is None:
            chosen = {}
            for task in self._coordinator.tasks.values():
                for executor in task.standbys:
                    chosen.setdefault(executor, []).append(task)
        name_of = self._coordinator.application.topology.task_name
        return {executor: [name_of(task.id) for task in tasks] for executor, tasks in chosen.items()}

    def _forget_unneeded(self, chosen: Mapping[str, Sequence[Task]], now_s: float) -> None:
        """Count no longer on what the clean-up may remove soon."""
        wanted = {executor: {task.id for task in tasks} for executor, tasks in chosen.items()}
        for task in self._coordinator.tasks.values():
            for executor, standing in [*task.standbys.items()]:
                if now_s - standing.at_s > self._kept_s and task.id not in wanted.get(executor, ()):
                    del task.standbys[executor]

    def _chosen(self) -> dict[str, list[Task]] | None:
        """By executor, the tasks of which it is to keep a standby, for good or until the task moves there; None while
        nobody can be chosen."""
        if (assignment := self._assigning.current()) is None:
            return None
        return {
            executor: [self._coordinator.tasks[task] for task in sorted(given.warm_up | given.standby, key=task_order)]
            for executor, given in assignment.executors.items()
        }

    def _home(self, task: Task) -> str:
        return self._coordinator.slots.executor_of(task.slot)

    def _request(self, task: Task, executor: str, at_s: float) -> FollowRequest:
        standing = task.standbys.get(executor)
        return FollowRequest(
            task=task.id,
            executor=executor,
            commit=task.to_commit(),
            through=self._coordinator.committed_id,
            generation=self._coordinator.generation,
            at_ms=self._coordinator.committed_at_ms,
            before=None if task.distrusts else self._coordinator.continues,
            at_s=at_s,
            logged=task.logged,
            anew=standing is None or standing.is_left,
            left=task.left if standing is None or standing.left is None else standing.left,
            distrusts=task.distrusts,
        )


def _is_behind(task: Task, executor: str) -> bool:
    standing = task.standbys.get(executor)
    is_at_commit = standing is not None and standing.state == task.committed and not standing.is_left
    return task.state is TaskState.RUNNING and not is_at_commit
