"""Where the tasks are while an assignment is being made: who runs each, how much that is for each executor.

Executors are numbers here, in the order of their ids, and their slots have no common divisor: only how they relate to
each other matters.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict

from weir.pipelines.assignment.contract import ApplicationState, task_order
from weir.pipelines.assignment.weights import weights
from weir.state.types import TaskId


class Placement:
    """The tasks of an application on its executors, at first where they have been running."""

    def __init__(self, state: ApplicationState) -> None:
        self.state = state
        self.ids = sorted(state.executors)
        executors = [state.executors[name] for name in self.ids]
        divisor = math.gcd(*(executor.slots for executor in executors))
        self.slots = [executor.slots // divisor for executor in executors]
        self.costs = weights(state.tasks)
        self.groups: dict[int, list[TaskId]] = defaultdict(list)
        """The tasks by sub-topology, in order."""
        for task in self.costs:
            self.groups[task.sub_topology].append(task)
        number_of = {name: at for at, name in enumerate(self.ids)}
        self.home = {task: number_of[name] for task, name in state.homes.items()}
        self.place: dict[TaskId, int] = {}
        self.loads = [0] * len(self.ids)
        self._by_cost: list[dict[int, list[tuple[int, TaskId]]]] = [defaultdict(list) for _ in self.ids]
        for task, at in self.home.items():
            self.put(task, at)

    def tasks_of(self, at: int, sub_topology: int) -> list[tuple[int, TaskId]]:
        """An executor's tasks of a sub-topology with their costs, the cheapest first."""
        return self._by_cost[at][sub_topology]

    def put(self, task: TaskId, at: int) -> None:
        """Have the executor run the task from now on, and nobody else."""
        self.take(task)
        self.place[task] = at
        self.loads[at] += self.costs[task]
        insort(self._by_cost[at][task.sub_topology], (self.costs[task], task))

    def take(self, task: TaskId) -> None:
        """Have nobody run the task."""
        if (at := self.place.pop(task, None)) is not None:
            self.loads[at] -= self.costs[task]
            found = self._by_cost[at][task.sub_topology]
            del found[bisect_left(found, (self.costs[task], task))]

    def load(self, at: int) -> float:
        """An executor's load per slot."""
        return self.loads[at] / self.slots[at]

    def costliest(self, at: int) -> int:
        """What the costliest of an executor's tasks costs; zero if it has none."""
        return max((found[-1][0] for found in self._by_cost[at].values() if found), default=0)

    def lag(self, task: TaskId, at: int) -> int | None:
        return self.state.executors[self.ids[at]].lag_of(task)

    def stores(self) -> dict[int, list[tuple[int, TaskId, int]]]:
        """By sub-topology: lag, task and executor of all stores that are anywhere, the newest first."""
        found: dict[int, list[tuple[int, TaskId, int]]] = defaultdict(list)
        for at, name in enumerate(self.ids):
            for task, lag in self.state.executors[name].lags.items():
                if task in self.costs:
                    found[task.sub_topology].append((lag, task, at))
        for each in found.values():
            each.sort(key=lambda store: (store[0], task_order(store[1]), store[2]))
        return found
