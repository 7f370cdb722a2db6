"""The control database: leases, task status, requests and recent metrics."""

from infra.control.database import ControlDatabase, ControlDatabaseError, LeaseHeldError, this_host
from infra.control.guard import DriverControl
from infra.control.rows import ApplicationStatus, Lease, MetricRow, RequestRow, TaskStatusRow

__all__ = ["ApplicationStatus", "ControlDatabase", "ControlDatabaseError", "DriverControl", "Lease", "LeaseHeldError",
           "MetricRow", "RequestRow", "TaskStatusRow", "this_host"]
