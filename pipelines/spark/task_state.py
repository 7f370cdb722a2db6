"""The states of a task's life, which may follow which, and the log of what has followed.

Created, restoring, running, suspended and closed are Kafka Streams' own, with its transitions; there, a task that is
corrupted is closed and created again, a paused one is in no state of its own, and no task is isolated. What happens to
a task, ``weir.pipelines.spark.task`` is told. docs/state.md has the table for users.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from weir.state.types import TaskId

log = logging.getLogger("weir.driver")


class TaskState(StrEnum):
    """What a task does; only one that is running takes part in epochs."""

    CREATED = "created"
    """A new generation has it where the commit log does; nothing was done yet."""
    RESTORING = "restoring"
    """Its stores are rebuilt, or wait for what that needs."""
    RUNNING = "running"
    PAUSED = "paused"
    """Somebody has asked for that."""
    ISOLATED = "isolated"
    """Its last epoch has failed, and it tries again later."""
    CORRUPTED = "corrupted"
    """Its store is not what the commit log says, or a check has found it to differ, and no restore is under way."""
    SUSPENDED = "suspended"
    """It has given up its slot: it goes on in another one, is restored, or is closed."""
    CLOSED = "closed"
    """Its generation has ended."""


TRANSITIONS: Mapping[TaskState, frozenset[TaskState]] = {
    TaskState.CREATED: frozenset({TaskState.RUNNING, TaskState.RESTORING, TaskState.CORRUPTED, TaskState.SUSPENDED}),
    TaskState.RESTORING: frozenset({TaskState.RUNNING, TaskState.PAUSED, TaskState.CORRUPTED, TaskState.SUSPENDED}),
    TaskState.RUNNING: frozenset({TaskState.PAUSED, TaskState.ISOLATED, TaskState.CORRUPTED, TaskState.SUSPENDED}),
    TaskState.PAUSED: frozenset({TaskState.RUNNING, TaskState.CORRUPTED, TaskState.SUSPENDED}),
    TaskState.ISOLATED: frozenset({TaskState.RUNNING, TaskState.PAUSED, TaskState.CORRUPTED, TaskState.SUSPENDED}),
    TaskState.CORRUPTED: frozenset({TaskState.RESTORING, TaskState.SUSPENDED}),
    TaskState.SUSPENDED: frozenset({TaskState.RUNNING, TaskState.RESTORING, TaskState.CLOSED}),
    TaskState.CLOSED: frozenset(),
}
"""Of each state, those that may follow it."""


SETTLED = frozenset({TaskState.RUNNING, TaskState.PAUSED, TaskState.ISOLATED})
"""Those in which it has an instance that it goes on with."""


class IllegalTransitionError(Exception):
    """An error of the engine: something has happened to a task that cannot happen in its state."""

    def __init__(self, task: str, before: TaskState, after: TaskState, reason: str) -> None:
        super().__init__(task, before, after, reason)
        self.task, self.before, self.after, self.reason = task, before, after, reason

    def __str__(self) -> str:
        return (
            f"task {self.task} cannot go from {self.before} to {self.after} ({self.reason}): this is an error of "
            "Weir's; the next start goes on at the last commit"
        )


@dataclass
class _Group:
    """Tasks that have changed alike."""

    before: TaskState
    after: TaskState
    reason: str
    tasks: list[TaskId] = field(default_factory=list)

    def __str__(self) -> str:
        many = "s" * (len(self.tasks) > 1)
        return f"task{many} {ranges(self.tasks)}: {self.before} -> {self.after}: {self.reason}"


class TransitionLog:
    """Logs the transitions of an application's tasks: those that are alike in one line, of each task in their order."""

    def __init__(self) -> None:
        self._groups: list[_Group] = []
        self._newest: dict[tuple[TaskState, TaskState, str], int] = {}
        self._newest_of: dict[TaskId, int] = {}

    def note(self, task: TaskId, before: TaskState, after: TaskState, reason: str) -> None:
        """A task has changed; ``tell`` logs it."""
        key = before, after, reason
        place = self._newest.get(key, -1)
        if place <= self._newest_of.get(task, -1):
            self._groups.append(_Group(before, after, reason))
            place = self._newest[key] = len(self._groups) - 1
        self._groups[place].tasks.append(task)
        self._newest_of[task] = place

    def tell(self) -> None:
        """Log what was noted since the last call."""
        if self._groups:
            groups, self._groups, self._newest, self._newest_of = self._groups, [], {}, {}
            for group in groups:
                log.info("%s", group)


def ranges(tasks: Iterable[TaskId]) -> str:
    """Names of tasks, partitions in a row as one.

    >>> ranges([TaskId(0, 1), TaskId(0, 0), TaskId(0, 2), TaskId(1, 0), TaskId(1, 2)])
    '0_0 to 0_2, 1_0, 1_2'
    """
    rows: list[tuple[TaskId, TaskId]] = []
    for task in sorted(tasks, key=lambda each: (each.sub_topology, each.partition)):
        if rows and rows[-1][1] == TaskId(task.sub_topology, task.partition - 1):
            rows[-1] = rows[-1][0], task
        else:
            rows.append((task, task))
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in rows)
