"""Clusters for tests of assignors: made, drawn at random, and moved on by carrying out assignments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hypothesis import strategies as st

from weir.pipelines.assignment import ApplicationState, ExecutorState, TaskAssignment, TaskInfo
from weir.state.types import TaskId


def tasks_of(
    *partitions: int, costs: Mapping[int, float] | None = None, stateful: bool = True
) -> dict[TaskId, TaskInfo]:
    """Tasks of sub-topologies with so many ``partitions``; ``costs`` are those of a task by sub-topology."""
    return {
        task: TaskInfo(id=task, is_stateful=stateful, cost=(costs or {}).get(task.sub_topology))
        for sub_topology, count in enumerate(partitions)
        for task in (TaskId(sub_topology, partition) for partition in range(count))
    }


def cluster(
    executors: Iterable[ExecutorState], tasks: Mapping[TaskId, TaskInfo], **settings: object
) -> ApplicationState:
    return ApplicationState(executors={each.id: each for each in executors}, tasks=tasks, **settings)


def empty(count: int, slots: int = 1, racks: int = 0) -> list[ExecutorState]:
    """Executors ``e0``, ``e1`` and so on, which have run nothing yet."""
    return [
        ExecutorState(id=f"e{number}", slots=slots, rack=f"r{number % racks}" if racks else None)
        for number in range(count)
    ]


def carried_out(
    state: ApplicationState, assignment: TaskAssignment, *, warm_up_lag: int = 0, keeps_stores: bool = False
) -> ApplicationState:
    """The state after an assignment has been carried out: all stores are there, those that warm up so far behind."""
    executors = {}
    for name, executor in state.executors.items():
        given = assignment.executors[name]
        stateful = {task for task in given.active | given.standby if state.tasks[task].is_stateful}
        lags = dict(executor.lags) if keeps_stores else {}
        lags |= dict.fromkeys(given.warm_up, warm_up_lag) | dict.fromkeys(stateful, 0)
        executors[name] = replace(executor, active=given.active, standby=given.standby, lags=lags)
    return replace(state, executors=executors)


def joined(state: ApplicationState, *executors: ExecutorState) -> ApplicationState:
    return replace(state, executors={**state.executors, **{each.id: each for each in executors}})


def left(state: ApplicationState, *names: str) -> ApplicationState:
    return replace(state, executors={name: each for name, each in state.executors.items() if name not in names})


def homes(state: ApplicationState) -> dict[TaskId, str]:
    return {task: name for name, executor in state.executors.items() for task in executor.active}


def runs(assignment: TaskAssignment) -> dict[TaskId, str]:
    return {task: name for name, given in assignment.executors.items() for task in given.active}


def moved(state: ApplicationState, running: Mapping[TaskId, str]) -> int:
    """How many tasks run elsewhere than before, or for the first time."""
    before = homes(state)
    return sum(before.get(task) != at for task, at in running.items())


COSTS = st.one_of(st.none(), st.just(0.0), st.floats(0, 10), st.sampled_from([0.5, 0.001, 100.0]))


@st.composite
def clusters(draw: st.DrawFn, *, most_executors: int = 5, measured: bool = True) -> ApplicationState:
    """A cluster where executors say of tasks what they like, some of them unknown, some run twice."""
    counts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    stateful = draw(st.lists(st.booleans(), min_size=len(counts), max_size=len(counts)))
    ids = [TaskId(index, partition) for index, count in enumerate(counts) for partition in range(count)]
    tasks = {
        task: TaskInfo(
            id=task,
            is_stateful=stateful[task.sub_topology],
            cost=draw(COSTS) if measured else None,
            state_bytes=draw(st.integers(0, 3)),
        )
        for task in ids
    }
    some = st.frozensets(st.sampled_from([*ids, TaskId(99, 0)]), max_size=8)
    executors = []
    for number in range(draw(st.integers(1, most_executors))):
        active = draw(some)
        executors.append(
            ExecutorState(
                id=f"e{number}",
                slots=draw(st.integers(1, 4)),
                rack=draw(st.sampled_from(["a", "b", None])),
                active=active,
                standby=draw(some) - active,
                lags=draw(st.dictionaries(st.sampled_from(ids), st.sampled_from([0, 5, 20_000]), max_size=8)),
            )
        )
    return cluster(
        executors,
        tasks,
        standby_replicas=draw(st.integers(0, 2)),
        max_warmup_replicas=draw(st.integers(1, 3)),
        spreads_over_racks=draw(st.booleans()),
    )
