"""What balance means, said once more and slowly, for tests to compare with."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction

from tests.pipelines.assignment.clusters import moved
from weir.pipelines.assignment import ApplicationState
from weir.pipelines.assignment.weights import weights
from weir.state.types import TaskId


def is_fair(state: ApplicationState, running: Mapping[TaskId, str], *, by_slot: bool = False) -> bool:
    """Whether each executor has its fair share of every sub-topology, and in all, rounded down or up; ``by_slot``, the
    share of each slot is rounded, and the total is not looked at."""
    total = sum(executor.slots for executor in state.executors.values())
    groups = Counter(task.sub_topology for task in state.tasks)
    counts = Counter((name, task.sub_topology) for task, name in running.items())
    totals = Counter(running.values())
    divisor = math.gcd(*(executor.slots for executor in state.executors.values())) if by_slot else 1
    for name, executor in state.executors.items():
        for group, tasks in groups.items():
            unit = Fraction(tasks * divisor, total) if by_slot else Fraction(tasks * executor.slots, total)
            times = executor.slots // divisor if by_slot else 1
            if not math.floor(unit) * times <= counts[name, group] <= math.ceil(unit) * times:
                return False
        share = Fraction(len(state.tasks) * executor.slots, total)
        if not by_slot and not math.floor(share) <= totals[name] <= math.ceil(share):
            return False
    return True


def loads(state: ApplicationState, running: Mapping[TaskId, str]) -> dict[str, Fraction]:
    """The load per slot, in nanoseconds a second."""
    costs = weights(state.tasks)
    return {
        name: Fraction(sum(costs[task] for task, at in running.items() if at == name), executor.slots)
        for name, executor in state.executors.items()
    }


def is_level(state: ApplicationState, running: Mapping[TaskId, str]) -> bool:
    """Whether no load per slot exceeds another by more than the executor's costliest task."""
    costs, found = weights(state.tasks), loads(state, running)
    least = min(found.values())
    return all(
        load - least <= max((costs[task] for task, at in running.items() if at == name), default=0)
        for name, load in found.items()
    )


def possibilities(state: ApplicationState) -> Iterator[dict[TaskId, str]]:
    for places in itertools.product(sorted(state.executors), repeat=len(state.tasks)):
        yield dict(zip(sorted(state.tasks), places, strict=True))


def fewest_moves(state: ApplicationState) -> int:
    """Of all fair ways to run the tasks, the one with the fewest moves."""
    return min(moved(state, running) for running in possibilities(state) if is_fair(state, running))
