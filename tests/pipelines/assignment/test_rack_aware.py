"""Standbys, and the racks they go to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from tests.pipelines.assignment.clusters import carried_out, cluster, clusters, empty, joined, runs, tasks_of
from weir.pipelines.assignment import ExecutorState, Role, StickyAssignor
from weir.state.types import TaskId

assign = StickyAssignor().assign


@given(state=clusters())
def test_a_task_is_in_as_many_racks_as_it_can_be(state):
    state = replace(state, spreads_over_racks=True)
    found = assign(state)
    racks = {executor.rack for executor in state.executors.values()}
    for task, at in runs(found).items():
        if state.tasks[task].is_stateful:
            keeping = [name for name, given in found.executors.items() if task in given.standby]
            used = {state.executors[name].rack for name in [at, *keeping]}
            assert len(used) == min(len(racks), 1 + len(keeping))


@pytest.mark.parametrize("racks", [1, 2, 3])
def test_standbys_are_shared_out_evenly(racks):
    state = cluster(empty(6, racks=racks), tasks_of(12, 12), standby_replicas=1, spreads_over_racks=True)
    assert [len(given.standby) for given in assign(state).executors.values()] == [4] * 6


def test_standbys_follow_the_slots_of_executors():
    executors = [ExecutorState(id=f"e{at}", slots=slots) for at, slots in enumerate((1, 2, 2))]
    found = assign(cluster(executors, tasks_of(20), standby_replicas=1))
    assert [len(given.standby) for given in found.executors.values()] == [4, 8, 8]


def test_a_standby_leaves_the_rack_of_its_task_once_there_is_another():
    tasks = tasks_of(1)
    task = TaskId(0, 0)
    state = cluster(
        [
            ExecutorState(id="e0", slots=1, rack="a", active=frozenset([task])),
            ExecutorState(id="e1", slots=1, rack="a", standby=frozenset([task])),
        ],
        tasks,
        standby_replicas=1,
        spreads_over_racks=True,
    )
    assert assign(state).moves == ()
    (move,) = assign(joined(state, ExecutorState(id="e2", slots=1, rack="b"))).moves
    assert (move.role, move.target) == (Role.STANDBY, "e2")
    assert "rack" in move.reason


def test_an_executor_that_joins_gets_its_share_of_standbys_and_others_stay():
    state = cluster(empty(3), tasks_of(12), standby_replicas=1)
    state = carried_out(state, assign(state))
    after = joined(state, ExecutorState(id="new", slots=1))
    found = assign(after)
    assert sorted(len(given.standby) for given in found.executors.values()) == [3, 3, 3, 3]


def test_who_ran_a_task_keeps_its_standby_when_it_moves():
    tasks = tasks_of(2)
    state = cluster(
        [ExecutorState(id="e0", slots=1, active=frozenset(tasks), lags=dict.fromkeys(tasks, 0)), *empty(3)[1:]],
        tasks,
        standby_replicas=1,
    )
    found = assign(state)
    (moved,) = (move for move in found.moves if move.role is Role.ACTIVE)
    assert moved.task in found.executors["e0"].standby
