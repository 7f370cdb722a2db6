"""Evens out the loads of executors until none has more, per slot, than another one and its own costliest task.

A step takes from a more loaded executor and gives to the least loaded: a task, or one in exchange for a cheaper one of
the same sub-topology, so that each slot keeps its share of every sub-topology. While the loads differ by more, there is
always such a step: compare the tasks of a full slot and of an empty one by sub-topology and cost; both have their
share, so some task of the one costs more than its counterpart of the other. Each step lowers the sum of the squares of
the loads, and never the least load, so the steps end, and whoever has nothing to give stays so until it is given some.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from weir.pipelines.assignment.placement import Placement
from weir.pipelines.assignment.shares import bounds
from weir.state.types import TaskId


def level(placement: Placement) -> None:
    """Even out the loads, with tasks first that are not at home anyway."""
    limits = {group: bounds(len(tasks), sum(placement.slots)) for group, tasks in placement.groups.items()}
    least = [(placement.load(at), at) for at in range(len(placement.ids))]
    most = [(-load, at) for load, at in least]
    heapq.heapify(least)
    heapq.heapify(most)
    while most:
        load, full = heapq.heappop(most)
        if -load != placement.load(full):  # it has changed since, and has another entry
            continue
        while least[0][0] != placement.load(least[0][1]):
            heapq.heappop(least)
        empty = least[0][1]
        costliest = placement.costliest(full)
        slots = placement.slots[full], placement.slots[empty]
        gap = placement.loads[full] * slots[1] - placement.loads[empty] * slots[0]
        if gap <= costliest * slots[0] * slots[1]:
            continue
        step = min(_steps(placement, full, empty, limits, costliest), key=lambda step: step.rank)
        placement.put(step.given, empty)
        if step.taken is not None:
            placement.put(step.taken, full)
        for at in (full, empty):
            heapq.heappush(most, (-placement.load(at), at))
            heapq.heappush(least, (placement.load(at), at))


@dataclass(frozen=True)
class _Step:
    given: TaskId
    taken: TaskId | None
    rank: tuple[bool, int, int, float, TaskId]
    """Whether more steps are needed after it, how many tasks leave home by it, how many go where their stores are not,
    and how far it is from evening out the two loads; the least is the best."""


def _steps(
    placement: Placement, full: int, empty: int, limits: dict[int, tuple[int, int]], costliest: int
) -> Iterator[_Step]:
    gap = placement.load(full) - placement.load(empty)
    effect = 1 / placement.slots[full] + 1 / placement.slots[empty]
    """By how much the gap shrinks for each unit of cost that changes places."""
    ideal = gap / effect

    def step(given: TaskId, taken: TaskId | None, change: int) -> _Step:
        is_enough = abs(gap - change * effect) <= costliest
        moved = [(given, full, empty)] + ([] if taken is None else [(taken, empty, full)])
        homes = [(placement.home.get(task), source, target) for task, source, target in moved]
        left = sum((home == source) - (home == target) for home, source, target in homes) if is_enough else 0
        bare = sum(
            placement.state.tasks[task].is_stateful and placement.lag(task, target) is None for task, _, target in moved
        )
        return _Step(given, taken, (not is_enough, left, bare if is_enough else 0, abs(ideal - change), given))

    for group, (low, high) in limits.items():
        more, fewer = placement.tasks_of(full, group), placement.tasks_of(empty, group)
        may_give = len(more) > low * placement.slots[full] and len(fewer) < high * placement.slots[empty]
        for cost, task in more:
            if may_give and cost:
                yield step(task, None, cost)
            near = bisect_left(fewer, cost - ideal, key=lambda found: found[0])
            for other_cost, other in fewer[max(near - 1, 0) : near + 1]:
                if other_cost < cost:
                    yield step(task, other, cost - other_cost)
