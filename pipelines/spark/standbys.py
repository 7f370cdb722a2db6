"""The standbys of a run: which executors keep them, when they follow, and how far each is.

The work itself is done by ``weir.pipelines.spark.standby_jobs``; who keeps which, ``weir.pipelines.assignment`` says.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict

from weir.pipelines.assignment import ApplicationState, ExecutorState, Move, Role, TaskInfo, place_standbys
from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.spark.parts import StandbyExecutor
from weir.pipelines.spark.standby_jobs import FollowRequest
from weir.pipelines.spark.task import Standing, Task
from weir.pipelines.spark.task_state import TaskState
from weir.state.changelog.snapshot import has_snapshots
from weir.state.types import TaskId

log = logging.getLogger("weir.driver")

FOLLOW_EVERY_S = 2.0
"""How often standbys are brought to the newest commit."""
PAUSE_S = 10.0
"""How long an executor is left alone on which that has failed."""


class Standbys:
    """Has standbys follow, and notes on each task where it has some."""

    def __init__(self, coordinator: Coordinator, executor: StandbyExecutor, replicas: int) -> None:
        self._coordinator, self._executor, self._replicas = coordinator, executor, replicas
        self._not_before = defaultdict[str, float](float)
        self._kept = set[tuple[TaskId, str]]()
        """Which tasks have, or are to have, a standby on which executor."""

    def begin_due(self) -> None:
        """Have those follow that are behind; call it right after a commit, when nothing is uncommitted."""
        if not self._replicas or self._coordinator.has_uncommitted:
            return
        now_s, busy = time.monotonic(), self._executor.busy
        for executor, tasks in self._chosen().items():
            if executor in busy or now_s < self._not_before[executor]:
                continue
            if requests := [self._request(task, executor, now_s) for task in tasks if _is_behind(task, executor)]:
                self._not_before[executor] = now_s + FOLLOW_EVERY_S
                self._executor.start(executor, requests)

    def take_up(self) -> None:
        """Note how far those are that have followed."""
        for followed in self._executor.finished():
            request = followed.request
            task = self._coordinator.tasks[request.task]
            if followed.error:
                self._not_before[request.executor] = time.monotonic() + PAUSE_S
                task.standbys.pop(request.executor, None)
                log.warning("task %s: its standby on executor %s: %s", task.id, request.executor, followed.error)
            elif task.distrusts == request.distrusts and request.executor != self._home(task):
                if request.executor not in task.standbys:
                    told = "task %s: has a standby on executor %s, %s rows in %.2f s"
                    log.info(told, task.id, request.executor, followed.rows, followed.seconds)
                task.standbys[request.executor] = Standing(state=request.commit.state, at_s=request.at_s)

    def _chosen(self) -> dict[str, list[Task]]:
        """By executor, the tasks of which it is to keep a standby."""
        there, tasks = self._coordinator.slots.executors(), self._coordinator.tasks
        for task in tasks.values():
            task.standbys = {executor: each for executor, each in task.standbys.items() if executor in there}
        homes = {id: self._home(task) for id, task in tasks.items()}
        if len(there) < 2 or not set(homes.values()) <= set(there):  # slots of a lost executor are on their way
            return {}
        state = ApplicationState(
            executors={
                executor: ExecutorState(
                    id=executor,
                    slots=1,
                    active=frozenset(task for task, home in homes.items() if home == executor),
                    standby=frozenset(id for id, task in tasks.items() if executor in task.standbys),
                )
                for executor in there
            },
            tasks={
                id: TaskInfo(
                    id=id, is_stateful=has_snapshots(self._coordinator.stores(id)) and task.committed is not None
                )
                for id, task in tasks.items()
            },
            standby_replicas=self._replicas,
        )
        found, assignments = defaultdict[str, list[Task]](list), self._coordinator.assignments
        with assignments.taking():
            chosen = place_standbys(state, homes)
        for id, executors in chosen.items():
            for executor, reason in executors.items():
                found[executor].append(tasks[id])
                if (id, executor) not in self._kept:
                    assignments.noted(Move(task=id, role=Role.STANDBY, source=None, target=executor, reason=reason))
        self._kept = {(id, executor) for id, executors in chosen.items() for executor in executors}
        return found

    def _home(self, task: Task) -> str:
        return self._coordinator.slots.executor_of(task.slot)

    def _request(self, task: Task, executor: str, at_s: float) -> FollowRequest:
        return FollowRequest(
            task=task.id,
            executor=executor,
            commit=task.to_commit(),
            through=self._coordinator.committed_id,
            generation=self._coordinator.generation,
            at_s=at_s,
            anew=executor not in task.standbys,
            distrusts=task.distrusts,
        )


def _is_behind(task: Task, executor: str) -> bool:
    standing = task.standbys.get(executor)
    return task.state is TaskState.RUNNING and (standing is None or standing.state != task.committed)
