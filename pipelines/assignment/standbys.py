"""Which executors keep standbys of a task: never the one that runs it; in other racks where that is asked for; those
that have its stores already, as long as this leaves nobody with more standbys than need be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from weir.pipelines.assignment.contract import ApplicationState, task_order
from weir.pipelines.assignment.rack_aware import RackQueues
from weir.state.types import TaskId


def place_standbys(state: ApplicationState, active: Mapping[TaskId, str]) -> dict[TaskId, dict[str, str]]:
    """The executors that keep standbys of each stateful task, each with the reason for it; ``active`` says who runs it.

    Standbys stay where they are unless an executor is too full by more than one of them, or in the wrong rack.
    """
    standbys = _Standbys(state, active)
    if state.standby_replicas:
        for task in standbys.tasks:
            standbys.fill(task)
        standbys.even_out()
    return standbys.named()


class _Standbys:
    def __init__(self, state: ApplicationState, active: Mapping[TaskId, str]) -> None:
        self._state, self._ids = state, sorted(state.executors)
        number_of = {name: at for at, name in enumerate(self._ids)}
        self.tasks = [task for task in sorted(state.tasks, key=task_order) if state.tasks[task].is_stateful]
        self._active = {task: number_of[active[task]] for task in self.tasks}
        self._chosen: dict[TaskId, dict[int, str]] = {task: {} for task in self.tasks}
        executors = [state.executors[name] for name in self._ids]
        self._slots = [executor.slots for executor in executors]
        self._kept_by: list[set[TaskId]] = [set() for _ in executors]
        self._queues = RackQueues(
            [executor.rack if state.spreads_over_racks else None for executor in executors],
            lambda at: (len(self._kept_by[at]) + 1) / self._slots[at],
        )
        self._holders: dict[TaskId, list[tuple[bool, int, int]]] = defaultdict(list)
        """By task, who has its stores: first those that kept a standby, then by lag."""
        for at, executor in enumerate(executors):
            for task in executor.active | executor.standby | executor.lags.keys():
                self._holders[task].append((task not in executor.standby, executor.lag_of(task) or 0, at))
        self._wanted = min(state.standby_replicas, len(executors) - 1)

    def named(self) -> dict[TaskId, dict[str, str]]:
        return {
            task: {self._ids[at]: reason for at, reason in sorted(chosen.items())}
            for task, chosen in self._chosen.items()
            if chosen
        }

    def fill(self, task: TaskId) -> None:
        """Choose executors until the task has enough standbys, in other racks first."""
        for at, reason in self._candidates(task):
            if len(self._chosen[task]) == self._wanted:
                return
            self._choose(task, at, reason)

    def even_out(self) -> None:
        """Move standbys from full executors to others while that makes the fuller of the two less full."""
        is_done = False
        while not is_done:
            is_done = True
            for at in sorted(range(len(self._ids)), key=lambda at: (-self._fullness(at), at)):
                for task in sorted(self._kept_by[at], key=lambda task: self._attachment(task, at)):
                    if not self._is_fuller_than_any(at):
                        break
                    if (target := self._better(task, at)) is not None:
                        del self._chosen[task][at]
                        self._kept_by[at].discard(task)
                        self._queues.changed(at)
                        self._choose(task, target, f"evens out the standbys: {self._ids[at]} had more")
                        is_done = False

    def _choose(self, task: TaskId, at: int, reason: str) -> None:
        self._chosen[task][at] = reason
        self._kept_by[at].add(task)
        self._queues.changed(at)

    def _candidates(self, task: TaskId) -> Iterator[tuple[int, str]]:
        """Executors in the order in which they are asked, with reasons; each depends on those chosen before."""
        holders = [at for *_, at in sorted(self._holders[task])]
        for only_new_racks in (True, False):
            for at in holders:
                if at not in self._taken(task) and not (
                    only_new_racks and self._queues.rack_of[at] in self._racks(task)
                ):
                    yield at, "its stores are there"
            while (
                at_least := self._queues.least(self._taken(task), self._racks(task) if only_new_racks else ())
            ) is not None:
                yield (
                    at_least,
                    "a standby was missing"
                    + (", and the task was not in this rack" if only_new_racks and len(self._queues.racks) > 1 else ""),
                )

    def _taken(self, task: TaskId) -> set[int]:
        return {self._active[task], *self._chosen[task]}

    def _racks(self, task: TaskId, *, without: int | None = None) -> set[int]:
        """The racks that the task is in; while racks do not count, none."""
        if len(self._queues.racks) == 1:
            return set()
        return {self._queues.rack_of[at] for at in self._taken(task) if at != without}

    def _fullness(self, at: int) -> float:
        return len(self._kept_by[at]) / self._slots[at]

    def _is_fuller_than_any(self, at: int) -> bool:
        least = self._queues.least((), ())
        return least is not None and self._improves(at, least)

    def _improves(self, source: int, target: int) -> bool:
        return (len(self._kept_by[target]) + 1) * self._slots[source] < len(self._kept_by[source]) * self._slots[target]

    def _attachment(self, task: TaskId, at: int) -> tuple[bool, bool, int, TaskId]:
        executor = self._state.executors[self._ids[at]]
        return (
            task in executor.standby,
            executor.lag_of(task) is not None,
            self._state.tasks[task].state_bytes,
            task,
        )

    def _better(self, task: TaskId, at: int) -> int | None:
        """An executor that would be less full with the standby than ``at`` is, in a rack that is as good."""
        others = self._racks(task, without=at)
        target = self._queues.least(self._taken(task), () if self._queues.rack_of[at] in others else others)
        return target if target is not None and self._improves(at, target) else None
