"""Which slot each task is in while a run goes on, and which executor runs each slot: executors are lost and join, slots
are added and end, and some have more to do than others.

How tasks are divided in each case, ``weir.pipelines.spark.spread`` says; where they are as a run begins,
``weir.pipelines.spark.placement``. What a move means for the state of a task is up to whoever asks for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from weir.pipelines.assignment import Move, Role
from weir.pipelines.spark.assignments import Assignments
from weir.pipelines.spark.parts import Slots
from weir.pipelines.spark.planner import total_lag
from weir.pipelines.spark.spread import AHEAD_S, evened, freest, relieved, shared_out
from weir.pipelines.spark.task import Task
from weir.pipelines.spark.task_state import SETTLED, TaskState
from weir.pipelines.tasks.run_metrics import RunMetrics
from weir.state.types import TaskId, TopicPartition


class Whereabouts:
    """Moves the tasks of one generation among its slots, and these among executors."""

    def __init__(
        self,
        tasks: Mapping[TaskId, Task],
        slots: Slots,
        metrics: RunMetrics,
        assignments: Assignments,
        *,
        forget: Callable[[TaskId], None],
    ) -> None:
        """``forget`` gives up what a task is still doing, if it is at work."""
        self._tasks, self._slots, self._metrics = tasks, slots, metrics
        self._assignments, self._forget = assignments, forget
        self._ends = False

    def move_to_freest(self, task_id: TaskId) -> None:
        """Have a task whose state is lost or in doubt continue in the slot whose tasks have worked least over the last
        minute, other than its own if there is another one."""
        slot_of, costs = self._slot_of, {task: self._metrics.busy_s(str(task)) for task in self._tasks}
        slot = freest(task_id, slot_of, self._slots.count, costs)
        if slot != slot_of[task_id]:
            self.move_to(task_id, slot)

    def move_to_standby(self, task_id: TaskId) -> None:
        """Have a task whose state is lost continue where it has a standby, if it has one that is not where it is, in
        the slot there whose tasks have worked least over the last minute. If it has none and its executor is lost or
        leaves, too, any slot will do."""
        task, closed = self._tasks[task_id], self.closed
        if task.slot not in closed and (not task.standbys or self._slots.executor_of(task.slot) in task.standbys):
            return
        if choice := self._standbys_of(task) or (self._open if task.slot in closed else []):
            self.move_to(task_id, self._freest_of(choice))

    def _standbys_of(self, task: Task) -> list[int]:
        """The slots that can take a task where it has standbys."""
        return [slot for slot in self._open if self._slots.executor_of(slot) in task.standbys]

    def _freest_of(self, slots: Collection[int]) -> int:
        """The one whose tasks have worked least over the last minute; of several, the one with the fewest."""
        return _Loads(self._slot_of, self._metrics).freest(slots)

    def move_to(self, task_id: TaskId, slot: int) -> None:
        """Have a task whose state is lost or was given up continue in another slot."""
        before = self._assignments.place_of(task_id)
        with self._assignments.taking():
            self._slots.move(task_id, slot)
        self._tasks[task_id].slot = slot
        self._note(task_id, before, self._tasks[task_id].reason)

    def _note(self, task: TaskId, before: str, reason: str) -> None:
        move = Move(task=task, role=Role.ACTIVE, source=before, target=self._assignments.place_of(task), reason=reason)
        self._assignments.noted(move)

    def take_lost(self) -> dict[TaskId, str]:
        """Take tasks out of the epochs whose executors are gone; returns why those are to be restored elsewhere that
        have done something."""
        found, lost = dict[TaskId, str](), self._slots.lost()
        for task in self._tasks.values():
            if task.slot not in lost or task.state not in (TaskState.RUNNING, TaskState.ISOLATED):
                continue
            self._forget(task.id)
            if task.current is None:
                self.move_to_standby(task.id)
            else:
                found[task.id] = f"executor {self._slots.executor_of(task.slot)} is lost"
        return found

    def leaving(self) -> tuple[dict[TaskId, int], list[TaskId]]:
        """Which of the tasks whose executor leaves are to be restored in which other slots, where they have standbys if
        they have any; and those that are at work and will follow. Those that have done nothing yet have gone. A task
        stays if its changelogs do not have all of its rows: it is lost with its executor."""
        found, left, slots = dict[TaskId, int](), list[TaskId](), self._slots.leaving()
        if not slots:
            return found, left
        loads, open_slots = _Loads(self._slot_of, self._metrics), self._open
        for task in [task for task in self._tasks.values() if task.slot in slots]:
            if not self._rests(task.id):
                left += [task.id] if task.state in (TaskState.RUNNING, TaskState.RESTORING) else []
            elif task.current is None:
                self.move_to_standby(task.id)
                loads.add(task.id, task.slot)
            elif not task.unlogged and (choice := self._standbys_of(task) or open_slots):
                found[task.id] = loads.freest(choice)
                loads.add(task.id, found[task.id])
        return found, left

    def leave_ending(self) -> list[TaskId]:
        """Have tasks of slots that end move with their stores to others of their executors, unless they are at work or
        restored, and end slots without tasks; returns the tasks that have moved.

        Raises:
            RunError: A slot does not answer; some may have moved.
        """
        moves = dict[TaskId, int]()
        if ending := [task for task in self._tasks.values() if task.slot >= self._slots.count]:
            loads, open_slots = _Loads(self._slot_of, self._metrics), self._open
            for task in ending:
                home = self._slots.executor_of(task.slot)
                here = [slot for slot in open_slots if self._slots.executor_of(slot) == home]
                if here and task.state in SETTLED and self._slots.is_free(task.id):
                    moves[task.id] = loads.freest(here)
                    loads.add(task.id, moves[task.id])
            self._move(moves, "its slot ends")
        self._ends = self._slots.end_unused({task.slot for task in self._tasks.values()})
        return sorted(moves)

    @property
    def has_ending_slot(self) -> bool:
        """Whether ``leave_ending`` has left slots that are to end."""
        return self._ends

    def fill_slots(self) -> list[TaskId]:
        """Have tasks that rest move with their stores into slots that have none; returns these tasks.

        Raises:
            RunError: A slot does not answer; some may have moved.
        """
        resting = {task for task in self._tasks if self._rests(task)}
        costs = {task: self._metrics.busy_s(str(task)) for task in self._tasks}
        moves = self._within_executors(lambda slot_of, slots: relieved(slot_of, slots, costs, resting))
        self._move(moves, "moves into a slot that had none")
        return sorted(moves)

    def even_slots(self, ends: Mapping[TopicPartition, int]) -> tuple[list[TaskId], list[TaskId]]:
        """Have tasks of busy slots move with their stores to slots that have less to do, with all that waits up to
        ``ends``: those that have moved, and those that are at work and will move later.

        Raises:
            RunError: A slot does not answer; some may have moved.
        """
        work_s = {
            id_: self._metrics.work_s(str(id_), total_lag([task], ends), AHEAD_S) for id_, task in self._tasks.items()
        }
        moves = self._within_executors(lambda slot_of, slots: evened(slot_of, slots, work_s))
        ready = {task: slot for task, slot in moves.items() if self._rests(task)}
        self._move(ready, "moves to a slot that has less to do")
        return sorted(ready), sorted(moves.keys() - ready.keys())

    def follow_executors(self, *, is_late: bool = False) -> Mapping[int, str]:
        """Have slots of executors that are lost go to those that have joined, and if ``is_late`` also to others; slots
        without tasks of those that leave, to any; then also slots whose tasks rest, which stay, in other slots. Returns
        the executor of each.

        Raises:
            RunError: A slot does not answer; some may have gone.
        """
        there = self._slots.executors()
        if lost := [slot for slot in self._slots.lost() if slot < self._slots.count]:
            return self._sent_on(lost, there, is_late=is_late)
        held = {task.slot for task in self._tasks.values()}
        if vacated := [slot for slot in self._slots.leaving() if slot not in held and slot < self._slots.count]:
            return self._sent_on(vacated, there, is_late=True)
        if len(there) < 2:
            return {}
        busy = {task.slot for task in self._tasks.values() if not self._rests(task.id)}
        homes = [self._slots.executor_of(slot) for slot in range(self._slots.count)]
        empty = set(self._ready) - held
        moves = shared_out(homes, there, set(self._ready) - busy, empty)
        gone = dict[int, str]()
        for slot, executor in moves.items():
            others = [other for other in self._ready if homes[other] == homes[slot] and other not in moves]
            leaving = [task for task, its_slot in self._slot_of.items() if its_slot == slot]
            if leaving and not others:
                continue
            for task in leaving:
                self._move({task: self._freest_of(others)}, f"stays on executor {homes[slot]}, which its slot leaves")
            self._slots.go(slot, executor)
            gone[slot] = executor
        return gone

    def _sent_on(self, lost: Collection[int], there: Sequence[str], *, is_late: bool) -> Mapping[int, str]:
        counts = Counter(self._slots.executor_of(slot) for slot in range(self._slots.count))
        joined = [executor for executor in there if not counts[executor]]
        sent = dict[int, str]()
        for slot in lost:
            if choice := joined or (list(there) if is_late else []):
                sent[slot] = min(choice, key=lambda executor: counts[executor])
                counts[sent[slot]] += 1
                held = {task: self._assignments.place_of(task) for task, its in self._slot_of.items() if its == slot}
                self._slots.go(slot, sent[slot])
                for task, before in held.items():
                    self._note(task, before, "its executor is lost, and its slot goes to another one")
        return sent

    def may_leave(self, task_id: TaskId) -> bool:
        """Whether a task can be restored on another executor now: it rests, and its changelogs have all of its rows."""
        task = self._tasks[task_id]
        return task.current is not None and not task.unlogged and self._rests(task_id)

    def slots_at(self, executors: Mapping[TaskId, str]) -> dict[TaskId, int]:
        """Slots for tasks that come from elsewhere to these ``executors``: of those that get the fewest of them, the
        one whose tasks have worked least; none for a task where none can take it."""
        found, taken = dict[TaskId, int](), Counter[int]()
        slots_of: dict[str, list[int]] = {}
        for slot in self._open if executors else ():
            slots_of.setdefault(self._slots.executor_of(slot), []).append(slot)
        loads = _Loads(self._slot_of if executors else {}, self._metrics)
        for task, executor in executors.items():
            if slots := slots_of.get(executor):
                least = min(taken[slot] for slot in slots)
                found[task] = loads.freest([slot for slot in slots if taken[slot] == least])
                taken[found[task]] += 1
        return found

    @property
    def _ready(self) -> list[int]:
        """The slots that can take tasks."""
        return [slot for slot in range(self._slots.count) if self._slots.is_ready(slot)]

    @property
    def closed(self) -> set[int]:
        """The slots that are to have no tasks: their executors are gone or leave."""
        return {*self._slots.lost(), *self._slots.leaving()}

    @property
    def _open(self) -> list[int]:
        """The slots that can take tasks of other executors."""
        closed = self.closed
        return [slot for slot in self._ready if slot not in closed]

    @property
    def _slot_of(self) -> dict[TaskId, int]:
        return {task.id: task.slot for task in self._tasks.values()}

    def _within_executors(
        self, moves: Callable[[Mapping[TaskId, int], int], Mapping[TaskId, int]]
    ) -> dict[TaskId, int]:
        """The moves among the slots of each executor, since a task has no store elsewhere; ``moves`` gets the slot of
        each task, and how many slots there are."""
        found, slot_of = dict[TaskId, int](), self._slot_of
        for slots in self._slots_by_executor():
            numbers = {slot: number for number, slot in enumerate(slots)}
            here = {task: numbers[slot] for task, slot in slot_of.items() if slot in numbers}
            found |= {task: slots[number] for task, number in moves(here, len(slots)).items()}
        return found

    def _slots_by_executor(self) -> list[list[int]]:
        found: dict[str, list[int]] = {}
        for slot in self._ready:
            found.setdefault(self._slots.executor_of(slot), []).append(slot)
        return list(found.values())

    def _rests(self, task: TaskId) -> bool:
        return self._tasks[task].state is TaskState.RUNNING and self._slots.is_free(task)

    def _move(self, moves: Mapping[TaskId, int], why: str) -> None:
        for task_id, slot in moves.items():
            task = self._tasks[task_id]
            task.to(TaskState.SUSPENDED, why)
            before = self._assignments.place_of(task_id)
            try:
                with self._assignments.taking():
                    self._slots.move(task_id, slot, with_store=True)
                task.slot = slot
            finally:
                task.to(TaskState.RUNNING, f"in slot {task.slot}")
                if task.is_paused:
                    task.pause("it was paused before it moved")
            self._note(task_id, before, why)

    @property
    def has_empty_slot(self) -> bool:
        """Whether a slot, whose worker may have yet to start, has no task although another one of its executor has
        several."""
        held, closed = Counter(task.slot for task in self._tasks.values()), self.closed
        counts: dict[str, list[int]] = {}
        for slot in range(self._slots.count):
            if slot not in closed:
                counts.setdefault(self._slots.executor_of(slot), []).append(held[slot])
        return any(min(each) == 0 and max(each) > 1 for each in counts.values())


class _Loads:
    """How much the tasks of each slot have worked over the last minute, and how many they are."""

    def __init__(self, slot_of: Mapping[TaskId, int], metrics: RunMetrics) -> None:
        self._metrics = metrics
        self._of: dict[int, tuple[float, int]] = {}
        for task, slot in slot_of.items():
            self.add(task, slot)

    def add(self, task: TaskId, slot: int) -> None:
        """The slot gets one more."""
        cost_s, tasks = self._of.get(slot, (0.0, 0))
        self._of[slot] = cost_s + self._metrics.busy_s(str(task)), tasks + 1

    def freest(self, slots: Collection[int]) -> int:
        """The one whose tasks have worked least; of several, the one with the fewest."""
        return min(slots, key=lambda slot: (*self._of.get(slot, (0.0, 0)), slot))
