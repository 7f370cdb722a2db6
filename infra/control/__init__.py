"""The control database: leases, task status, requests and recent metrics."""

from weir.infra.control.database import ControlDatabase, ControlDatabaseError, LeaseHeldError, this_host
from weir.infra.control.guard import DriverControl
from weir.infra.control.rows import (
    ApplicationStatus,
    AssignmentRow,
    Lease,
    MetricRow,
    MinuteRow,
    RequestRow,
    TaskStatusRow,
)

__all__ = [
    "ApplicationStatus",
    "AssignmentRow",
    "ControlDatabase",
    "ControlDatabaseError",
    "DriverControl",
    "Lease",
    "LeaseHeldError",
    "MetricRow",
    "MinuteRow",
    "RequestRow",
    "TaskStatusRow",
    "this_host",
]
