"""What an application is doing right now, as its driver reports it to the control database: rates, lag, where the time
goes, and state, by task and by operator. Shown by ``weir top``; what is committed is in
``weir.pipelines.operations.tasks``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weir.infra.control import ApplicationStatus, ControlDatabase, TaskStatusRow
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.tasks.run_metrics import ACTIVITIES, NODE, PACE, ROWS, THREAD, USED_BYTES


@dataclass(frozen=True, kw_only=True)
class TaskActivity:
    """One task. Rates and shares cover the last minute; None is what the driver has not measured."""

    task: str
    slot: int
    status: str
    records_per_s: float | None
    lag: int
    busy: float
    """The share of the time in which it was at work, and of what, by ``ACTIVITIES``."""
    shares: Mapping[str, float]
    rows: int | None
    """Of all its stores, as the next one."""
    used_bytes: int | None
    note: str
    """Why it does not run, or what it waits for."""


@dataclass(frozen=True, kw_only=True)
class OperatorActivity:
    """One operator, over all tasks."""

    operator: str
    rows_per_s: float
    """Rows that it passes on."""
    busy: float
    """The share of the time that it takes, in all tasks together."""


@dataclass(frozen=True, kw_only=True)
class ApplicationActivity:
    """One report of a driver that runs."""

    application: str
    state: str
    records_per_s: float
    lag: int
    commits_per_s: float
    commit: float
    """The share of the time that commits take."""
    waits_for: str
    tasks: tuple[TaskActivity, ...]
    operators: tuple[OperatorActivity, ...]


@dataclass
class _Read:
    """The readings of a driver, by what they are about."""

    of_run: dict[str, float] = field(default_factory=dict)
    of_tasks: dict[str, dict[str, float]] = field(default_factory=dict)
    of_nodes: dict[str, dict[str, float]] = field(default_factory=dict)

    def take(self, group: str, name: str, tags: Mapping[str, str], value: float) -> None:
        if group == THREAD:
            self.of_run[name] = value
        elif tags.keys() == {"task-id"}:
            self.of_tasks.setdefault(tags["task-id"], {})[name] = value
        elif group == NODE and tags.keys() == {"processor-node-id"}:
            self.of_nodes.setdefault(tags["processor-node-id"], {})[name] = value


def application_activity(database: ControlDatabase, application: str) -> ApplicationActivity:
    """What the application does, by the newest report of its driver.

    Raises:
        OperationError: No driver of it runs.
    """
    life = database.application_status(application, of_driver=True)
    if life is None or not life.is_running:
        raise OperationError(f"{application} is not running; start it with `weir run MODULE:APP`")
    return activity_of(life)


def activity_of(life: ApplicationStatus) -> ApplicationActivity:
    """The same of a report that was read already."""
    read = _Read()
    for each in life.readings:
        read.take(each["group"], each["name"], each["tags"], each["value"])
    return ApplicationActivity(
        application=life.application,
        state=life.state,
        records_per_s=read.of_run.get(PACE, 0.0),
        lag=sum(task.lag for task in life.tasks),
        commits_per_s=read.of_run.get("commit-rate", 0.0),
        commit=read.of_run.get("commit-ratio", 0.0),
        waits_for=life.waits_for,
        tasks=tuple(_task(row, read.of_tasks.get(row.task, {})) for row in life.tasks),
        operators=tuple(
            OperatorActivity(
                operator=name, rows_per_s=values.get("forward-rate", 0.0), busy=values.get("busy-ratio", 0.0)
            )
            for name, values in read.of_nodes.items()
            if "busy-ratio" in values
        ),
    )


def _task(row: TaskStatusRow, values: Mapping[str, float]) -> TaskActivity:
    shares = {activity: values.get(f"{activity}-ratio", 0.0) for activity in map(str, ACTIVITIES)}
    rows, used_bytes = values.get(ROWS), values.get(USED_BYTES)
    return TaskActivity(
        task=row.task,
        slot=row.slot,
        status=row.status,
        records_per_s=values.get(PACE),
        lag=row.lag,
        busy=sum(shares.values()),
        shares=shares,
        rows=None if rows is None else round(rows),
        used_bytes=None if used_bytes is None else round(used_bytes),
        note=row.reason,
    )
