"""What holds for every assignor, over random clusters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines.assignment.clusters import carried_out, cluster, clusters, empty, homes, runs, tasks_of
from weir.pipelines.assignment import (
    ApplicationState,
    HighAvailabilityAssignor,
    Role,
    StickyAssignor,
    check,
)
from weir.state.types import TaskId

every_assignor = pytest.mark.parametrize(
    "assignor", [StickyAssignor(), HighAvailabilityAssignor()], ids=lambda assignor: type(assignor).__name__
)


def shuffled(state: ApplicationState) -> ApplicationState:
    """The same state, with every mapping the other way round."""
    return replace(
        state,
        executors={
            name: replace(executor, lags=dict(reversed(executor.lags.items())))
            for name, executor in reversed(state.executors.items())
        },
        tasks=dict(reversed(state.tasks.items())),
    )


@every_assignor
@given(state=clusters())
def test_every_task_runs_once_and_standbys_are_beside_other_tasks(assignor, state):
    found = assignor.assign(state)
    check(found, state)
    assert runs(found).keys() == state.tasks.keys()


@every_assignor
@given(state=clusters())
def test_stateful_tasks_have_as_many_standbys_as_there_are_executors_for(assignor, state):
    found = assignor.assign(state)
    for task, info in state.tasks.items():
        keeping = sum(task in gets.standby for gets in found.executors.values())
        wanted = min(state.standby_replicas, len(state.executors) - 1)
        assert keeping == (wanted if info.is_stateful else 0)


@every_assignor
@given(state=clusters())
def test_equal_states_get_equal_answers(assignor, state):
    assert assignor.assign(state) == assignor.assign(shuffled(state))


@every_assignor
@given(state=clusters(), keeps_stores=st.booleans())
def test_a_cluster_that_has_not_changed_moves_nothing(assignor, state, keeps_stores):
    found = assignor.assign(state)
    for _ in range(20):
        state = carried_out(state, found, keeps_stores=keeps_stores)
        found = assignor.assign(state)
        if not found.follow_up:
            break
    after = carried_out(state, found, keeps_stores=keeps_stores)
    assert assignor.assign(after).moves == ()
    assert assignor.assign(after).executors == found.executors


@every_assignor
@given(state=clusters())
def test_what_is_new_is_told_with_a_reason(assignor, state):
    found, before = assignor.assign(state), homes(state)
    told = {(move.task, move.role, move.target) for move in found.moves}
    assert len(told) == len(found.moves)
    assert all(move.reason and str(move).startswith(f"{move.task} {move.role}") for move in found.moves)
    for name, gets in found.executors.items():
        for task in gets.active:
            assert ((task, Role.ACTIVE, name) in told) or task in state.executors[name].active
        for task in gets.standby:
            assert ((task, Role.STANDBY, name) in told) == (task not in state.executors[name].standby)
    for move in found.moves:
        if move.role is Role.ACTIVE:
            assert move.source != move.target
            assert (move.source is None) == (move.task not in before)


@every_assignor
def test_one_executor_runs_everything_and_keeps_no_standby(assignor):
    (gets,) = assignor.assign(cluster(empty(1), tasks_of(3), standby_replicas=2)).executors.values()
    assert (len(gets.active), gets.standby, gets.warm_up) == (3, set(), set())


@every_assignor
def test_an_application_without_tasks_is_idle(assignor):
    found = assignor.assign(cluster(empty(2), {}))
    assert [*found.executors] == ["e0", "e1"]
    assert (found.moves, found.follow_up) == ((), False)


@every_assignor
def test_tasks_that_no_longer_exist_are_forgotten(assignor):
    state = carried_out(cluster(empty(2), tasks_of(4)), assignor.assign(cluster(empty(2), tasks_of(4))))
    found = assignor.assign(replace(state, tasks=tasks_of(2)))
    assert runs(found).keys() == {TaskId(0, 0), TaskId(0, 1)}
    check(found, replace(state, tasks=tasks_of(2)))
