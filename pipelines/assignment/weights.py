"""What the tasks of an application cost, as whole numbers, so that loads are the same in whatever order they add up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from weir.pipelines.assignment.contract import TaskInfo, task_order
from weir.state.types import TaskId

PER_SECOND = 1_000_000_000
"""Costs are in nanoseconds of a slot's time per second."""


def weights(tasks: Mapping[TaskId, TaskInfo]) -> dict[TaskId, int]:
    """The cost of each task, in the order of the tasks. If none has a cost, each weighs one.

    >>> measured = TaskInfo(id=TaskId(0, 0), is_stateful=True, cost=0.5)
    >>> new = TaskInfo(id=TaskId(0, 1), is_stateful=True)
    >>> [*weights({new.id: new, measured.id: measured}).values()]
    [500000000, 500000000]
    """
    measured: dict[int, list[float]] = defaultdict(list)
    infos = {task: tasks[task] for task in sorted(tasks, key=task_order)}
    for task, info in infos.items():
        if info.cost is not None:
            measured[task.sub_topology].append(info.cost)
    usual = _mean(cost for costs in measured.values() for cost in costs)
    means = {sub_topology: _mean(costs) for sub_topology, costs in measured.items()}
    found = {
        task: round((means.get(task.sub_topology, usual) if info.cost is None else info.cost) * PER_SECOND)
        for task, info in infos.items()
    }
    return found if any(found.values()) else dict.fromkeys(found, 1)


def _mean(costs: Iterable[float]) -> float:
    known = [*costs]
    return fmean(known) if known else 0.0
