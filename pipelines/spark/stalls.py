"""Sources that others wait for and that do not move: who they are, since when, and which nobody waits for any more."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from weir.pipelines.spark.frontiers import Frontiers
from weir.pipelines.spark.task import Task
from weir.pipelines.spark.task_state import TaskState
from weir.state.types import TaskId

log = logging.getLogger("weir.driver")

GIVEN_UP = "sources_given_up"
"""The count of how often others went on without a task."""
WORTH_NAMING_MS = 1_000


@dataclass(frozen=True)
class _Stall:
    place: object
    """Where the source was, to see whether it moves."""
    since_ms: int


class Stalls:
    """The sources that rows wait for, with the time since which they have not moved."""

    def __init__(self, max_wait: timedelta | None) -> None:
        """``max_wait``: how long rows wait for a source that does not move; None for ever."""
        self._max_wait_ms = None if max_wait is None else max_wait // timedelta(milliseconds=1)
        self._stalls: dict[TaskId, _Stall] = {}
        self._given_up: set[TaskId] = set()

    def given_up(self, tasks: Mapping[TaskId, Task], now_ms: int) -> set[TaskId]:
        """The sources that have not moved for too long; as soon as one moves, it is waited for again."""
        self._stalls = {id: stall for id, stall in self._stalls.items() if stall.place == _place(tasks[id])}
        limit_ms = self._max_wait_ms
        late = {
            id for id, stall in self._stalls.items() if limit_ms is not None and now_ms - stall.since_ms >= limit_ms
        }
        for id in late - self._given_up:
            tasks[id].totals[GIVEN_UP] = tasks[id].totals.get(GIVEN_UP, 0) + 1
            log.warning("task %s has not moved for %s ms: rows of others wait for it no longer", id, limit_ms)
        self._given_up = late
        return late

    def note(self, frontiers: Frontiers, tasks: Mapping[TaskId, Task], now_ms: int) -> None:
        """Remember which sources rows wait for after an epoch, and say so in the tasks that the rows wait for."""
        if not frontiers.may_hold:
            return
        waited_for = {id: via[0] for id, task in tasks.items() if (via := frontiers.waited_for(task, by_topics=True))}
        self._stalls = {
            id: self._stalls.get(id) or _Stall(_place(tasks[id]), now_ms)
            for id in {*waited_for.values(), *self._given_up}
        }
        for id, task in tasks.items():
            source = waited_for.get(id)
            stall = self._stalls[source] if source is not None else None
            task.waits = (
                f"rows wait for task {source}, which {_what(tasks[source])}"
                if source is not None and stall is not None and now_ms - stall.since_ms >= WORTH_NAMING_MS
                else ""
            )


def _place(task: Task) -> object:
    return {topic: dict(offsets) for topic, offsets in task.positions.items()}, task.takes


def _what(task: Task) -> str:
    if task.state is TaskState.ISOLATED:
        return "has failed"
    if task.state is not TaskState.RUNNING:
        return "is being restored"
    return "waits to try a record again" if task.waiting is not None else task.calling or "has not moved"
