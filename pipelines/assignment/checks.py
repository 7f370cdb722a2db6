"""Whether an assignment fits the application and its cluster, with the errors that Kafka Streams has (KIP-924).

Judged is what can be carried out, not what is wise: an assignment of all tasks to one executor is valid.
"""

from __future__ import annotations

from enum import StrEnum

from weir.pipelines.assignment.contract import ApplicationState, TaskAssignment
from weir.state.types import TaskId


class AssignmentError(StrEnum):
    """What is wrong with an assignment; named as in Kafka Streams, except for the last, which it has no name for."""

    UNKNOWN_TASK_ID = "UNKNOWN_TASK_ID"
    """A task that the application does not have."""
    ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES = "ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES"
    INVALID_STANDBY_TASK = "INVALID_STANDBY_TASK"
    """A standby or warm-up of a task that has no state, or on an executor that has the task in another role already."""
    MISSING_PROCESS_ID = "MISSING_PROCESS_ID"
    """An executor of the cluster without an entry, which even one that gets no task has."""
    UNKNOWN_PROCESS_ID = "UNKNOWN_PROCESS_ID"
    """An executor that the cluster does not have."""
    MISSING_TASK_ID = "MISSING_TASK_ID"
    """A task that no executor runs."""


class InvalidAssignmentError(Exception):
    """An assignor has given an assignment that cannot be carried out; the one before stays in force."""

    def __init__(self, error: AssignmentError, found: str) -> None:
        super().__init__(error, found)
        self.error, self.found = error, found

    def __str__(self) -> str:
        return f"{self.error}: {self.found}; the assignment is not carried out"


def check(assignment: TaskAssignment, state: ApplicationState) -> None:
    """Raise ``InvalidAssignmentError`` for the first error, in the order of ``AssignmentError``."""
    found = errors_of(assignment, state)
    for error in AssignmentError:
        if error in found:
            raise InvalidAssignmentError(error, found[error])


def errors_of(assignment: TaskAssignment, state: ApplicationState) -> dict[AssignmentError, str]:
    """Each kind of error that the assignment has, with the first place where it was found."""
    found: dict[AssignmentError, str] = {}
    running: dict[TaskId, str] = {}
    for executor, given in sorted(assignment.executors.items()):
        if executor not in state.executors:
            found.setdefault(AssignmentError.UNKNOWN_PROCESS_ID, f"there is no executor {executor!r}")
        for task in sorted(given.active | given.standby | given.warm_up):
            if task not in state.tasks:
                found.setdefault(AssignmentError.UNKNOWN_TASK_ID, f"executor {executor!r} gets {task}, which is none")
        for task in sorted(given.active):
            if (other := running.setdefault(task, executor)) != executor:
                found.setdefault(
                    AssignmentError.ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES,
                    f"executors {other!r} and {executor!r} both run task {task}",
                )
        for task in sorted(given.standby | given.warm_up):
            where = f"executor {executor!r} gets a standby of task {task}"
            if task in state.tasks and not state.tasks[task].is_stateful:
                found.setdefault(AssignmentError.INVALID_STANDBY_TASK, f"{where}, which has no state")
            if (task in given.active) + (task in given.standby) + (task in given.warm_up) > 1:
                found.setdefault(AssignmentError.INVALID_STANDBY_TASK, f"{where} twice, or besides running it")
    for executor in sorted(state.executors.keys() - assignment.executors.keys()):
        found.setdefault(AssignmentError.MISSING_PROCESS_ID, f"executor {executor!r} has no entry")
    for task in sorted(state.tasks.keys() - running.keys()):
        found.setdefault(AssignmentError.MISSING_TASK_ID, f"no executor runs task {task}")
    return found
