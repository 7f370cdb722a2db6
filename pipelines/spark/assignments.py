"""The record of assignments: each time that tasks or standbys get another place, a line in the log and a row in the
control database say how long it took, which executor has which tasks, and why each has moved.

Whoever moves a task notes it here; choosing its place belongs to ``weir.pipelines.assignment``, ``placement``,
``whereabouts`` and ``standbys``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from weir.infra.control.rows import AssignmentRow
from weir.pipelines.assignment import Move
from weir.pipelines.spark.parts import Slots
from weir.pipelines.spark.task import Task
from weir.pipelines.spark.task_state import ranges
from weir.state.types import TaskId

log = logging.getLogger("weir.driver")

SHOWN = 20
"""How many moves a line in the log names."""


class Assignments:
    """The assignments of one generation."""

    def __init__(self, tasks: Mapping[TaskId, Task], slots: Slots) -> None:
        self._tasks, self._slots = tasks, slots
        self.on_assigned: Callable[[AssignmentRow], None] = lambda row: None
        """Gets each of them."""
        self._previous: Mapping[str, Collection[TaskId]] = {}
        self._moves: list[Move] = []
        self._seconds = 0.0

    def began(self, seconds: float, previous: Mapping[str, Collection[TaskId]], moves: Sequence[Move]) -> None:
        """A run begins: its tasks were divided within ``seconds`` among executors, which had the stores of those that
        are ``previous`` before."""
        self._previous, self._seconds = previous, seconds
        self._moves = [*moves]
        self._record("a run begins")

    def noted(self, move: Move) -> None:
        """A task, or a standby, has another place; ``tell`` records it."""
        self._moves.append(move)

    @contextmanager
    def taking(self) -> Iterator[None]:
        """The time within the block was taken by moves."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - began_s

    def place_of(self, task: TaskId) -> str:
        """The slot of a task with its executor, as moves have it."""
        return self._place(self._tasks[task].slot)

    def _place(self, slot: int) -> str:
        return f"{self._slots.executor_of(slot)}/{slot}"

    def tell(self) -> None:
        """Record what was noted since the last call as one assignment."""
        if self._moves:
            self._record("; ".join(dict.fromkeys(move.reason for move in self._moves)))

    def _record(self, reason: str) -> None:
        active, standby, slots = self._active(), self._standby(), self._count()
        ids = sorted({*self._slots.executors(), *slots, *active, *standby})
        row = AssignmentRow(
            reason=reason,
            seconds=round(self._seconds, 6),
            executors={
                each: {
                    "slots": slots.get(each, 0),
                    "active": _names(active.get(each, ())),
                    "standby": _names(standby.get(each, ())),
                    "previous": _names(self._previous.get(each, ())),
                }
                for each in ids
            },
            moves=[{**asdict(move), "task": str(move.task), "role": str(move.role)} for move in self._moves],
        )
        log.info("%s", self._said(row, active, standby))
        self.on_assigned(row)
        self._previous, self._moves, self._seconds = active, [], 0.0

    def _said(
        self,
        row: AssignmentRow,
        active: Mapping[str, Collection[TaskId]],
        standby: Mapping[str, Collection[TaskId]],
    ) -> str:
        who = "; ".join(
            f"{each} has {ranges(active.get(each, ())) or 'no task'}"
            + (f", standbys of {ranges(standby[each])}" if each in standby else "")
            + f" (had {ranges(self._previous.get(each, ())) or 'none'})"
            for each in row.executors
        )
        moves = [str(move) for move in self._moves[:SHOWN]]
        if len(self._moves) > SHOWN:
            moves.append(f"and {len(self._moves) - SHOWN} more")
        return f"assignment in {1000 * row.seconds:.0f} ms: {row.reason}. {who}. Moves: {', '.join(moves) or 'none'}"

    def _active(self) -> dict[str, list[TaskId]]:
        found = dict[str, list[TaskId]]()
        for task in self._tasks.values():
            found.setdefault(self._slots.executor_of(task.slot), []).append(task.id)
        return found

    def _standby(self) -> dict[str, list[TaskId]]:
        found = dict[str, list[TaskId]]()
        for task in self._tasks.values():
            for executor in task.standbys:
                found.setdefault(executor, []).append(task.id)
        return found

    def _count(self) -> dict[str, int]:
        found = dict[str, int]()
        for slot in range(self._slots.count):
            executor = self._slots.executor_of(slot)
            found[executor] = found.get(executor, 0) + 1
        return found


def _names(tasks: Collection[TaskId]) -> list[str]:
    return [str(task) for task in sorted(tasks, key=lambda each: (each.sub_topology, each.partition))]
