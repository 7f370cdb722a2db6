"""Tasks move once their stores are where they are to run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines.assignment.balancing import is_fair, is_level
from tests.pipelines.assignment.clusters import (
    carried_out,
    cluster,
    clusters,
    empty,
    homes,
    joined,
    left,
    runs,
    tasks_of,
)
from weir.pipelines.assignment import ApplicationState, ExecutorState, HighAvailabilityAssignor, Role
from weir.state.types import TaskId

assign = HighAvailabilityAssignor().assign


def warming(found) -> set[tuple[TaskId, str]]:
    return {(task, name) for name, given in found.executors.items() for task in given.warm_up}


def grown(count: int = 6, **settings: object) -> ApplicationState:
    """One executor that has all tasks, and a second one that has just joined."""
    state = cluster(empty(1), tasks_of(count), **settings)
    return joined(carried_out(state, assign(state)), ExecutorState(id="new", slots=1))


@given(state=clusters())
def test_there_are_never_more_warm_up_replicas_than_allowed(state):
    found = assign(state)
    assert len(warming(found)) <= state.max_warmup_replicas
    assert not warming(found) or found.follow_up


@given(state=clusters())
def test_a_stateful_task_moves_only_to_an_executor_that_has_caught_up_or_has_the_newest_stores(state):
    for task, at in runs(assign(state)).items():
        lags = {name: lag for name, each in state.executors.items() if (lag := each.lag_of(task)) is not None}
        if state.tasks[task].is_stateful and lags and task not in state.executors[at].active:
            assert lags[at] <= max(state.acceptable_recovery_lag, min(lags.values()))


def test_a_task_stays_until_its_stores_are_at_the_other_executor():
    state = grown(max_warmup_replicas=2)
    found = assign(state)
    assert set(runs(found).values()) == {"e0"}
    assert found.follow_up
    assert [(move.role, move.target) for move in found.moves] == [(Role.WARM_UP, "new")] * 2
    still = carried_out(state, found, warm_up_lag=10_001)
    assert assign(still).executors == found.executors
    assert assign(still).moves == ()
    then = assign(carried_out(state, found, warm_up_lag=10_000))
    assert {(task, "new") for task in then.executors["new"].active} == warming(found)
    assert then.follow_up


def test_follow_ups_end_when_the_tasks_are_in_balance():
    state, rounds = grown(max_warmup_replicas=1), 0
    while (found := assign(state)).follow_up:
        assert len(warming(found)) == 1
        state, rounds = carried_out(state, found), rounds + 1
    assert rounds == 3
    assert [len(given.active) for given in found.executors.values()] == [3, 3]


@given(state=clusters(), keeps_stores=st.booleans())
def test_repeated_follow_ups_lead_to_a_balanced_cluster(state, keeps_stores):
    for _ in range(len(state.tasks) + 2):
        found = assign(state)
        state = carried_out(state, found, keeps_stores=keeps_stores)
        if not found.follow_up:
            break
    assert not found.follow_up
    assert is_level(state, homes(state))


@given(state=clusters(measured=False))
def test_they_lead_to_fair_shares_where_tasks_weigh_the_same(state):
    while (found := assign(state)).follow_up:
        state = carried_out(state, found)
    assert is_fair(state, runs(found))


def test_an_executor_within_the_lag_takes_its_tasks_at_once():
    state = grown()
    near = replace(state.executors["new"], lags=dict.fromkeys(state.tasks, 10_000))
    found = assign(joined(state, near))
    assert len(found.executors["new"].active) == 3
    assert (warming(found), found.follow_up) == (set(), False)


def test_tasks_without_state_move_at_once():
    state = grown()
    state = replace(state, tasks=tasks_of(6, stateful=False))
    found = assign(state)
    assert len(found.executors["new"].active) == 3
    assert not found.follow_up


def test_stores_that_nobody_has_are_not_waited_for():
    found = assign(cluster(empty(2), tasks_of(4)))
    assert [len(given.active) for given in found.executors.values()] == [2, 2]
    assert not found.follow_up


def test_the_standbys_of_an_executor_that_left_take_over():
    state = cluster(empty(4), tasks_of(12), standby_replicas=1)
    state = carried_out(state, assign(state))
    found = assign(left(state, "e2"))
    for task in state.executors["e2"].active:
        assert task in state.executors[runs(found)[task]].standby


def test_of_late_stores_the_newest_run_the_task_meanwhile():
    task = TaskId(0, 0)
    lags = {"e0": None, "e1": 70_000, "e2": 50_000}
    state = cluster(
        [ExecutorState(id=name, slots=1, lags={} if lag is None else {task: lag}) for name, lag in lags.items()],
        tasks_of(1),
    )
    found = assign(state)
    assert runs(found) == {task: "e2"}


def test_a_standby_in_the_right_place_needs_no_warm_up():
    tasks = tasks_of(2)
    state = cluster(
        [
            ExecutorState(id="e0", slots=1, active=frozenset(tasks)),
            ExecutorState(id="e1", slots=1, standby=frozenset(tasks), lags=dict.fromkeys(tasks, 20_000)),
        ],
        tasks,
        standby_replicas=1,
    )
    found = assign(state)
    assert (warming(found), found.follow_up, found.moves) == (set(), True, ())


@pytest.mark.parametrize(("other_lag", "runner"), [(10_000, "e1"), (15_000, "e0")])
def test_a_task_that_is_being_restored_is_handed_over_to_stores_within_the_lag_only(other_lag, runner):
    task = TaskId(0, 0)
    state = cluster(
        [
            ExecutorState(id="e0", slots=1, active=frozenset([task]), lags={task: 20_000}),
            ExecutorState(id="e1", slots=1, lags={task: other_lag}),
        ],
        tasks_of(1),
    )
    assert runs(assign(state)) == {task: runner}
