"""Which executor of a cluster runs which task, and which keep standbys: Kafka Streams' task assignors (KIP-924)."""

from weir.pipelines.assignment.checks import AssignmentError, InvalidAssignmentError, check, errors_of
from weir.pipelines.assignment.contract import (
    ApplicationState,
    ExecutorAssignment,
    ExecutorState,
    Move,
    Role,
    TaskAssignment,
    TaskAssignor,
    TaskInfo,
)
from weir.pipelines.assignment.high_availability import HighAvailabilityAssignor
from weir.pipelines.assignment.moves import assignment_of
from weir.pipelines.assignment.standbys import place_standbys
from weir.pipelines.assignment.sticky import StickyAssignor

__all__ = [
    "ApplicationState",
    "AssignmentError",
    "ExecutorAssignment",
    "ExecutorState",
    "HighAvailabilityAssignor",
    "InvalidAssignmentError",
    "Move",
    "Role",
    "StickyAssignor",
    "TaskAssignment",
    "TaskAssignor",
    "TaskInfo",
    "assignment_of",
    "check",
    "errors_of",
    "place_standbys",
]
