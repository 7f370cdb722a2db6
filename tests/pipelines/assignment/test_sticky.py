"""Balance first, then as few moves as possible."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines.assignment.balancing import fewest_moves, is_fair, is_level, loads
from tests.pipelines.assignment.clusters import (
    carried_out,
    cluster,
    clusters,
    empty,
    joined,
    left,
    moved,
    runs,
    tasks_of,
)
from weir.pipelines.assignment import ExecutorState, StickyAssignor, TaskInfo
from weir.pipelines.assignment.weights import weights
from weir.state.types import TaskId

assign = StickyAssignor().assign


@given(state=clusters(measured=False))
def test_tasks_that_weigh_the_same_are_shared_out_by_slots_in_all_and_by_sub_topology(state):
    running = runs(assign(state))
    assert is_fair(state, running)
    per_slot = [
        Fraction(len(given.active), state.executors[name].slots) for name, given in assign(state).executors.items()
    ]
    assert max(per_slot) - min(per_slot) <= 1


@given(state=clusters())
def test_loads_differ_by_no_more_than_a_task_and_sub_topologies_are_shared_out_by_slots(state):
    running = runs(assign(state))
    assert is_level(state, running)
    if len({*weights(state.tasks).values()}) > 1:
        assert is_fair(state, running, by_slot=True)


@given(state=clusters())
def test_no_slot_is_further_above_the_ideal_than_the_costliest_task(state):
    costs = weights(state.tasks)
    ideal = Fraction(sum(costs.values()), sum(executor.slots for executor in state.executors.values()))
    assert max(loads(state, runs(assign(state))).values()) <= ideal + max(costs.values())


SMALL = st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda counts: sum(counts) <= 6)


@given(counts=SMALL, slots=st.lists(st.integers(1, 2), min_size=3, max_size=3), at=st.integers(0, 2))
def test_no_fair_assignment_needs_fewer_moves_when_an_executor_joins_or_leaves(counts, slots, at):
    executors = [replace(each, slots=count) for each, count in zip(empty(3), slots, strict=True)]
    whole = cluster(executors, tasks_of(*counts))
    without = left(whole, f"e{at}")
    for before, after in ((whole, without), (without, whole)):
        state = carried_out(before, assign(before))
        state = replace(
            state, executors={name: state.executors.get(name, each) for name, each in after.executors.items()}
        )
        assert moved(state, runs(assign(state))) == fewest_moves(state)


@given(counts=SMALL, slots=st.lists(st.integers(1, 3), min_size=1, max_size=3), data=st.data())
def test_no_fair_assignment_needs_fewer_moves_wherever_the_tasks_have_been(counts, slots, data):
    tasks = tasks_of(*counts)
    places = {task: data.draw(st.integers(-1, len(slots) - 1)) for task in tasks}
    state = cluster(
        [
            ExecutorState(id=f"e{at}", slots=count, active=frozenset(task for task in tasks if places[task] == at))
            for at, count in enumerate(slots)
        ],
        tasks,
    )
    assert moved(state, runs(assign(state))) == fewest_moves(state)


def test_an_executor_that_joins_takes_its_share_and_nothing_else_moves():
    state = cluster(empty(4), tasks_of(8, 4))
    state = carried_out(state, assign(state))
    found = assign(joined(state, ExecutorState(id="new", slots=2)))
    assert {move.target for move in found.moves} == {"new"}
    assert len(found.moves) == len(found.executors["new"].active) == 4


def test_the_tasks_of_an_executor_that_left_go_where_their_stores_are():
    state = cluster(empty(3), tasks_of(6), standby_replicas=1)
    state = carried_out(state, assign(state))
    lost = state.executors["e1"].active
    found = assign(left(state, "e1"))
    takers = {move.task: move.target for move in found.moves if move.role == "active"}
    assert takers.keys() == lost
    assert all(task in state.executors[target].standby for task, target in takers.items())


def test_small_changes_of_what_is_measured_move_nothing():
    costs = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0]
    tasks = {TaskId(0, at): TaskInfo(id=TaskId(0, at), is_stateful=True, cost=cost) for at, cost in enumerate(costs)}
    state = cluster(empty(3), tasks)
    state = carried_out(state, assign(state))
    changed = {task: replace(info, cost=costs[-1 - task.partition]) for task, info in tasks.items()}
    assert assign(replace(state, tasks=changed)).moves == ()


def test_a_task_that_has_become_expensive_is_left_alone_with_its_executor():
    tasks = tasks_of(9)
    state = cluster(empty(3), tasks)
    state = carried_out(state, assign(state))
    heavy = min(state.executors["e0"].active)
    measured = {task: replace(info, cost=8.0 if task == heavy else 1.0) for task, info in tasks.items()}
    found = assign(replace(state, tasks=measured))
    assert heavy in found.executors["e0"].active
    assert all(move.task != heavy for move in found.moves)


def test_tasks_with_much_state_stay():
    tasks = {task: replace(info, state_bytes=1_000 * (4 - task.partition)) for task, info in tasks_of(4).items()}
    state = cluster([ExecutorState(id="e0", slots=1, active=frozenset(tasks)), ExecutorState(id="e1", slots=1)], tasks)
    assert assign(state).executors["e0"].active == {TaskId(0, 0), TaskId(0, 1)}


@pytest.mark.parametrize("costs", [None, {0: 0.9, 1: 0.01, 2: 0.02}])
def test_a_heavy_sub_topology_is_spread_over_all_executors(costs):
    """As in Zendesk's report: two slow tasks on one of its threads, while others have nothing to do."""
    state = cluster(empty(5), tasks_of(5, 8, 2, costs=costs))
    heavy = Counter(name for task, name in runs(assign(state)).items() if task.sub_topology == 0)
    assert heavy == dict.fromkeys(state.executors, 1)
    state = left(carried_out(state, assign(state)), "e3")
    heavy = Counter(name for task, name in runs(assign(state)).items() if task.sub_topology == 0)
    assert sorted(heavy.values()) == [1, 1, 1, 2]
    assert [move.task.sub_topology for move in assign(state).moves if move.source is not None].count(0) == 0


@pytest.mark.parametrize(("counts", "executors", "sizes"), [((4, 2, 2), 5, [1, 1, 2, 2, 2]), ((1, 2, 1), 2, [2, 2])])
def test_sub_topologies_do_not_all_begin_with_the_same_executor(counts, executors, sizes):
    state = cluster(empty(executors), tasks_of(*counts))
    assert sorted(Counter(runs(assign(state)).values()).values()) == sizes
