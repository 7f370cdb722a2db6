"""Assignments that cannot be carried out, with the errors of Kafka Streams."""

from __future__ import annotations

import pickle

import pytest

from tests.pipelines.assignment.clusters import cluster, empty, tasks_of
from weir.pipelines.assignment import (
    AssignmentError,
    ExecutorAssignment,
    InvalidAssignmentError,
    TaskAssignment,
    check,
    errors_of,
)
from weir.state.types import TaskId

FIRST, SECOND, STATELESS, UNKNOWN = TaskId(0, 0), TaskId(0, 1), TaskId(1, 0), TaskId(7, 0)
STATE = cluster(
    empty(2), tasks_of(2) | {task: info for task, info in tasks_of(0, 1, stateful=False).items()}, standby_replicas=1
)


def given(**executors: dict[str, set[TaskId]]) -> TaskAssignment:
    return TaskAssignment(
        executors={
            name: ExecutorAssignment(**{role: frozenset(tasks) for role, tasks in roles.items()})
            for name, roles in executors.items()
        }
    )


def test_a_valid_assignment_has_no_errors():
    valid = given(e0={"active": {FIRST, STATELESS}, "warm_up": {SECOND}}, e1={"active": {SECOND}, "standby": {FIRST}})
    assert errors_of(valid, STATE) == {}
    check(valid, STATE)


ALL = {FIRST, SECOND, STATELESS}


@pytest.mark.parametrize(
    ("assignment", "error", "named"),
    [
        (given(e0={"active": ALL}, e1={"active": {SECOND}}), "ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES", "0_1"),
        (given(e0={"active": ALL}, e1={"standby": {STATELESS}}), "INVALID_STANDBY_TASK", "1_0, which has no state"),
        (given(e0={"active": ALL}, e1={"warm_up": {STATELESS}}), "INVALID_STANDBY_TASK", "1_0, which has no state"),
        (given(e0={"active": ALL, "standby": {FIRST}}, e1={}), "INVALID_STANDBY_TASK", "'e0'"),
        (given(e0={"active": ALL}, e1={"standby": {FIRST}, "warm_up": {FIRST}}), "INVALID_STANDBY_TASK", "'e1'"),
        (given(e0={"active": ALL}), "MISSING_PROCESS_ID", "'e1'"),
        (given(e0={"active": ALL}, e1={}, e9={}), "UNKNOWN_PROCESS_ID", "'e9'"),
        (given(e0={"active": ALL}, e1={"standby": {UNKNOWN}}), "UNKNOWN_TASK_ID", "7_0"),
        (given(e0={"active": ALL}, e1={"active": {UNKNOWN}}), "UNKNOWN_TASK_ID", "7_0"),
        (given(e0={"active": {FIRST}}, e1={"active": {STATELESS}}), "MISSING_TASK_ID", "0_1"),
    ],
)
def test_each_error_has_its_name_and_says_where(assignment, error, named):
    assert errors_of(assignment, STATE).keys() == {AssignmentError(error)}
    with pytest.raises(InvalidAssignmentError, match=f"{error}: .*{named}.*not carried out") as raised:
        check(assignment, STATE)
    assert raised.value.error is AssignmentError(error)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_of_several_errors_the_first_is_raised():
    with pytest.raises(InvalidAssignmentError) as raised:
        check(given(e9={"active": {UNKNOWN}}), STATE)
    assert raised.value.error is AssignmentError.UNKNOWN_TASK_ID
    assert errors_of(given(e9={"active": {UNKNOWN}}), STATE).keys() == {
        AssignmentError.UNKNOWN_TASK_ID,
        AssignmentError.UNKNOWN_PROCESS_ID,
        AssignmentError.MISSING_PROCESS_ID,
        AssignmentError.MISSING_TASK_ID,
    }
