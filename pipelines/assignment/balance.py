"""Which executor is to run which task, for all that counts but how far the stores are: balance, then as few moves as
possible.

Balance means two things. Each slot gets the fair share of every sub-topology, rounded down or up, so that a heavy one
is spread over all executors. And no executor's load per slot exceeds that of another one by more than what its own
costliest task costs, so none is further than that above the ideal. If all tasks weigh the same, totals are fair shares
too, and no valid shares need fewer moves than those that are found here. If costs differ, the fewest moves would be a
problem of packing, which takes exponential time: then few tasks move, though not always the fewest.
"""

from __future__ import annotations

import heapq

from weir.pipelines.assignment.contract import ApplicationState
from weir.pipelines.assignment.levelling import level
from weir.pipelines.assignment.placement import Placement
from weir.pipelines.assignment.shares import even_shares, loaded_shares
from weir.state.types import TaskId


def balanced(state: ApplicationState) -> dict[TaskId, tuple[str, str]]:
    """The executor that is to run each task, and why, for those tasks that it has not been running."""
    placement = Placement(state)
    counts = _Counts(placement)
    if len({*placement.costs.values()}) <= 1:
        shares = dict(zip(placement.groups, counts.even(), strict=True))
        for group in placement.groups:
            _fit(placement, group, shares[group], counts)
    else:
        heaviest = {group: max(placement.costs[task] for task in tasks) for group, tasks in placement.groups.items()}
        for group in sorted(heaviest, key=lambda group: (-heaviest[group], group)):
            _fit(placement, group, counts.loaded(group), counts)
    outnumbered = {task for task, home in placement.home.items() if placement.place[task] != home}
    level(placement)
    return {
        task: (placement.ids[at], _reason(placement, task, task in outnumbered)) for task, at in placement.place.items()
    }


class _Counts:
    """How many tasks of each sub-topology the executors run, and have the stores of."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.stores = placement.stores()

    def held(self, group: int) -> list[int]:
        return [len(self._placement.tasks_of(at, group)) for at in range(len(self._placement.ids))]

    def hoped(self, group: int) -> list[int]:
        """For each task of the sub-topology that nobody runs, the executor with its newest store, newest first."""
        found: dict[TaskId, int] = {}
        for _, task, at in self.stores.get(group, ()):
            if task not in self._placement.place:
                found.setdefault(task, at)
        return [*found.values()]

    def even(self) -> list[list[int]]:
        groups = self._placement.groups
        hoped = [[0] * len(self._placement.ids) for _ in groups]
        for row, group in zip(hoped, groups, strict=True):
            for at in self.hoped(group):
                row[at] += 1
        return even_shares(
            [len(tasks) for tasks in groups.values()], self._placement.slots, [*map(self.held, groups)], hoped
        )

    def loaded(self, group: int) -> list[int]:
        placement, tasks = self._placement, self._placement.groups[group]
        mean = sum(placement.costs[task] for task in tasks) / len(tasks)
        return loaded_shares(len(tasks), placement.slots, self.held(group), self.hoped(group), placement.loads, mean)


def _fit(placement: Placement, group: int, shares: list[int], counts: _Counts) -> None:
    """Move tasks of a sub-topology so that each executor has its share: first tasks to where their stores are."""
    differences = [share - held for share, held in zip(shares, counts.held(group), strict=True)]
    for _, task, at in counts.stores.get(group, ()):
        source = placement.place.get(task)
        if differences[at] > 0 and (source is None or differences[source] < 0):
            placement.put(task, at)
            differences[at] -= 1
            if source is not None:
                differences[source] += 1
    mean = sum(placement.loads) / sum(placement.slots)
    for at, difference in enumerate(differences):
        if difference < 0:
            for task in _released(placement, group, at, -difference, mean):
                placement.take(task)
    waiting = [task for task in placement.groups[group] if task not in placement.place]
    waiting.sort(key=lambda task: (-placement.costs[task], task))
    open_ = [(placement.load(at), at) for at, difference in enumerate(differences) if difference > 0]
    heapq.heapify(open_)
    for task in waiting:
        _, at = heapq.heappop(open_)
        placement.put(task, at)
        differences[at] -= 1
        if differences[at]:
            heapq.heappush(open_, (placement.load(at), at))


def _released(placement: Placement, group: int, at: int, count: int, mean: float) -> list[TaskId]:
    """The tasks that an executor gives away: those that bring its load nearest to the mean, else the smallest."""
    wanted = max(placement.loads[at] - mean * placement.slots[at], 0) / count
    tasks = placement.state.tasks
    found = sorted((abs(cost - wanted), tasks[task].state_bytes, task) for cost, task in placement.tasks_of(at, group))
    return [task for *_, task in found[:count]]


def _reason(placement: Placement, task: TaskId, is_outnumbered: bool) -> str:
    home, at = placement.home.get(task), placement.place[task]
    if home is None:
        return "no executor ran it"
    if is_outnumbered:
        return f"{placement.ids[home]} had more than its share of the tasks"
    return f"evens out the load: {placement.ids[home]} had more than {placement.ids[at]}"
