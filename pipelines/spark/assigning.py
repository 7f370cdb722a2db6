"""The assignment of a run: what the assignor has said about the tasks, and what the driver has yet to do about it.

A round begins when executors come or go, or when one has had much more to do than others for a while. Within a round
tasks cost what was measured as it began, however that changes meanwhile, so that a task does not set out for one
executor and then for another one. Bringing stores to executors belongs to ``standbys``, moving a task there to
``restores``.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from weir.pipelines.assignment import ExecutorState, Role, TaskAssignment, TaskInfo, assignment_of, place_standbys
from weir.pipelines.spark.assignors import AssignorError, Assignors
from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.spark.planner import total_lag
from weir.pipelines.spark.spread import AHEAD_S, BUSY_S, GAIN
from weir.state.changelog.snapshot import has_snapshots
from weir.state.types import TaskId, TopicPartition

log = logging.getLogger("weir.driver")

SUSTAINED = 3
"""How many looks in a row must find that another assignment relieves the busiest executor."""


class Assigning:
    """Asks the assignor when there is a reason to."""

    def __init__(self, coordinator: Coordinator, assignors: Assignors, costs: Mapping[TaskId, float]) -> None:
        """``costs`` are those by which the tasks were placed as the run began."""
        self._coordinator, self._assignors, self._costs = coordinator, assignors, costs
        self._slots: Mapping[str, int] = {}
        """The executors of the newest answer, each with its slots."""
        self._asked: object = None
        """What the assignor was asked by last: if that changes, it is asked again."""
        self._found: TaskAssignment | None = None
        self._kept = set[tuple[TaskId, Role, str]]()
        """What executors are to keep besides their tasks, as noted last."""
        self._probe_at_s = math.inf
        self._uneven = 0
        """How many looks in a row have found that there is something to gain."""

    def current(self) -> TaskAssignment | None:
        """Who is to do what now; None while there is nobody to choose from, or an executor is lost."""
        slots = self._slots_of()
        if len(slots) < 2 and not self._slots:  # on a single host this is all
            return None
        homes = self._homes()
        for task in self._coordinator.tasks.values():
            task.standbys = {executor: each for executor, each in task.standbys.items() if executor in slots}
        if len(slots) < 2 or not set(homes.values()) <= slots.keys():
            self._asked = self._found = None
            return None
        if self._slots and slots != self._slots:
            self._costs = {task: self._work_s(task, 0, 1.0) for task in homes}
        self._slots = slots
        asked = slots, homes, [task for task in homes if self._is_stateful(task)]
        if asked != self._asked or time.monotonic() >= self._probe_at_s:
            self._asked, self._found = asked, self._answer(homes)
        return self._found

    def moves(self) -> tuple[dict[TaskId, int], dict[TaskId, str]]:
        """The slots of tasks that are to go on in slots of other executors now, and why each."""
        coordinator, found = self._coordinator, self.current()
        if found is None or coordinator.slots.lost():
            return {}, {}
        why = {move.task: move.reason for move in found.moves if move.role is Role.ACTIVE}
        homes = self._homes()
        wanted = {
            task: executor
            for executor, given in found.executors.items()
            for task in sorted(given.active)
            if homes[task] != executor and coordinator.whereabouts.may_leave(task)
        }
        slots = coordinator.whereabouts.slots_at(wanted)
        told = {
            task: f"goes to executor {wanted[task]}: {why.get(task, 'the assignor has it there')}" for task in slots
        }
        return slots, told

    def look(self, ends: Mapping[TopicPartition, int]) -> None:
        """Begin a round if the busiest executor has had much more to do than it would have elsewhere, over several
        looks; ``ends`` are those of the topics."""
        found = self.current()
        if found is None or found.follow_up or not self._is_worth_it(ends):
            self._uneven = 0
            return
        self._uneven += 1
        if self._uneven >= SUSTAINED:
            self._uneven, self._asked = 0, None
            self._costs = self._ahead_s(ends)

    def _is_worth_it(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether the assignor would relieve the busiest executor if all tasks could move at once."""
        work_s, homes = self._ahead_s(ends), self._homes()
        busiest_s = self._busiest_s(work_s, homes)
        if busiest_s < BUSY_S or sum(work_s.values()) / sum(self._slots.values()) > (1 - GAIN) * busiest_s:
            return False
        tasks = [replace(each, is_stateful=False) for each in self._tasks(work_s)]
        try:
            answer = self._assignors.assign(self._assignors.state(self._executors(homes), tasks))
        except AssignorError:  # it says so when it is asked in earnest
            return False
        there = {task: executor for executor, given in answer.executors.items() for task in given.active}
        return self._busiest_s(work_s, there) <= (1 - GAIN) * busiest_s

    def _busiest_s(self, work_s: Mapping[TaskId, float], homes: Mapping[TaskId, str]) -> float:
        """What a slot of the busiest executor has to do, in seconds."""
        loads = dict.fromkeys(self._slots, 0.0)
        for task, executor in homes.items():
            loads[executor] += work_s[task]
        return max(load / max(1, self._slots[executor]) for executor, load in loads.items())

    def _ahead_s(self, ends: Mapping[TopicPartition, int]) -> dict[TaskId, float]:
        tasks = self._coordinator.tasks.items()
        return {id_: self._work_s(id_, total_lag([task], ends), AHEAD_S) for id_, task in tasks}

    def _work_s(self, task: TaskId, lag: int, seconds: float) -> float:
        return self._coordinator.metrics.work_s(str(task), lag, seconds)

    def _answer(self, homes: Mapping[TaskId, str]) -> TaskAssignment | None:
        """What the assignor says; after an error, what it has said before, as far as that holds."""
        state = self._assignors.state(self._executors(homes), self._tasks(self._costs))
        self._probe_at_s = math.inf
        if not all(self._slots.values()):  # slots are on their way to an executor, and tasks follow them
            return assignment_of(state, {task: (at, "") for task, at in homes.items()}, place_standbys(state, homes))
        try:
            with self._coordinator.assignments.taking():
                found = self._assignors.assign(state)
        except AssignorError as error:
            log.warning("%s", error)
            is_valid = self._found is not None and self._found.executors.keys() == self._slots.keys()
            return self._found if is_valid else None
        if found.follow_up:
            self._probe_at_s = time.monotonic() + self._assignors.probing_interval_s
        self._note(found)
        return found

    def _note(self, found: TaskAssignment) -> None:
        """Note what is new of standbys and warm-ups; a task that moves is noted when it does."""
        for move in found.moves:
            if move.role is not Role.ACTIVE and (move.task, move.role, move.target) not in self._kept:
                self._coordinator.assignments.noted(move)
        self._kept = {
            (task, role, executor)
            for executor, given in found.executors.items()
            for role, tasks in ((Role.STANDBY, given.standby), (Role.WARM_UP, given.warm_up))
            for task in tasks
        }

    def _executors(self, homes: Mapping[TaskId, str]) -> Sequence[ExecutorState]:
        slots, tasks = self._coordinator.slots, self._coordinator.tasks
        active: dict[str, set[TaskId]] = {executor: set() for executor in self._slots}
        lags: dict[str, dict[TaskId, int]] = {executor: {} for executor in self._slots}
        for id_, task in tasks.items():
            active[homes[id_]].add(id_)
            for executor in task.standbys.keys() - {homes[id_]}:
                lags[executor][id_] = task.standby_lag(executor)
        before = self._found.executors if self._found is not None else {}
        return [
            ExecutorState(
                id=executor,
                slots=max(1, count),
                rack=slots.rack_of(executor),
                active=frozenset(active[executor]),
                standby=before[executor].standby & lags[executor].keys() if executor in before else frozenset(),
                lags=lags[executor],
            )
            for executor, count in self._slots.items()
        ]

    def _tasks(self, costs: Mapping[TaskId, float]) -> Sequence[TaskInfo]:
        return [
            TaskInfo(
                id=task,
                is_stateful=self._is_stateful(task),
                cost=costs.get(task),
                state_bytes=self._coordinator.metrics.state_bytes(str(task)),
            )
            for task in self._coordinator.tasks
        ]

    def _is_stateful(self, task: TaskId) -> bool:
        """Whether it has stores that can be brought elsewhere while it runs."""
        return has_snapshots(self._coordinator.stores(task)) and self._coordinator.tasks[task].committed is not None

    def _slots_of(self) -> dict[str, int]:
        """The executors that are there, each with its slots."""
        slots = self._coordinator.slots
        counts = Counter(slots.executor_of(slot) for slot in range(slots.count))
        return {executor: counts[executor] for executor in slots.executors()}

    def _homes(self) -> dict[TaskId, str]:
        """The executor of each task."""
        slots = self._coordinator.slots
        return {id_: slots.executor_of(task.slot) for id_, task in self._coordinator.tasks.items()}
