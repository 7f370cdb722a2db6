"""The control database's tables. Times are milliseconds since 1970, UTC; JSON columns hold plain values only."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, Index, Integer, Text, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

FORMAT_VERSION = 2
METRICS_KEPT_MS = 3_600_000
MINUTES_KEPT_MS = 86_400_000
ASSIGNMENTS_KEPT = 100
"""Of each application, the newest."""


class Base(DeclarativeBase):
    """Every integer is 64 bits wide; every text is unbounded."""

    type_annotation_map: ClassVar = {int: BigInteger().with_variant(Integer, "sqlite"), str: Text}


class Format(Base):
    """One row: the version of these tables."""

    __tablename__ = "weir_format"
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Instance(Base):
    """One life of an application's driver; the open one (``ended_at_ms`` null) holds the lease."""

    __tablename__ = "weir_instances"
    id: Mapped[int] = mapped_column(primary_key=True)
    application: Mapped[str]
    generation: Mapped[int | None]
    state: Mapped[str]
    owner: Mapped[str]
    host: Mapped[str]
    pid: Mapped[int]
    process_start: Mapped[int | None]
    """In clock ticks since boot; identifies a process uniquely together with the pid."""
    started_at_ms: Mapped[int]
    heartbeat_at_ms: Mapped[int]
    lease_until_ms: Mapped[int]
    ended_at_ms: Mapped[int | None]
    error: Mapped[str | None]
    __table_args__ = (
        Index(
            "weir_one_lease",
            "application",
            unique=True,
            sqlite_where=text("ended_at_ms IS NULL"),
            postgresql_where=text("ended_at_ms IS NULL"),
        ),
        Index("weir_instances_by_application", "application", "id"),
    )


class TaskStatus(Base):
    """The status of one task as of its driver's last report."""

    __tablename__ = "weir_task_status"
    application: Mapped[str] = mapped_column(primary_key=True)
    task: Mapped[str] = mapped_column(primary_key=True)
    slot: Mapped[int]
    executor: Mapped[str | None]
    standbys: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    restored_per_cent: Mapped[float | None]
    status: Mapped[str]
    state: Mapped[str | None]
    positions: Mapped[dict[str, Any]] = mapped_column(JSON)
    lag: Mapped[int]
    stream_time_ms: Mapped[int | None]
    uncommitted_bytes: Mapped[int]
    uncommitted_records: Mapped[int]
    open_windows: Mapped[int]
    late_records: Mapped[int]
    records_in: Mapped[int]
    reason: Mapped[str]
    updated_at_ms: Mapped[int]


class QueryServer(Base):
    """Where an executor of a running application answers queries, and the token that it asks for."""

    __tablename__ = "weir_query_servers"
    application: Mapped[str] = mapped_column(primary_key=True)
    executor: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    port: Mapped[int]
    token: Mapped[str]
    machine: Mapped[str]
    folder: Mapped[str]


class Readings(Base):
    """The metrics of a running application as of its last report."""

    __tablename__ = "weir_readings"
    application: Mapped[str] = mapped_column(primary_key=True)
    readings: Mapped[list[Any]] = mapped_column(JSON)
    at_ms: Mapped[int]


class Sinks(Base):
    """How the sinks of an application are doing as of its last report."""

    __tablename__ = "weir_sinks"
    application: Mapped[str] = mapped_column(primary_key=True)
    sinks: Mapped[list[Any]] = mapped_column(JSON)
    at_ms: Mapped[int]


class Waiting(Base):
    """Why the driver of an application waits as of its last report, or an empty text."""

    __tablename__ = "weir_waiting"
    application: Mapped[str] = mapped_column(primary_key=True)
    reason: Mapped[str]
    at_ms: Mapped[int]


class Watched(Base):
    """When Dagster's sensors have looked at an application last."""

    __tablename__ = "weir_watched"
    application: Mapped[str] = mapped_column(primary_key=True)
    at_ms: Mapped[int]


class Request(Base):
    """What a person or a sensor asked of the driver, and the answer."""

    __tablename__ = "weir_requests"
    id: Mapped[int] = mapped_column(primary_key=True)
    application: Mapped[str]
    kind: Mapped[str]
    arguments: Mapped[dict[str, str]] = mapped_column(JSON)
    requested_by: Mapped[str]
    reason: Mapped[str]
    requested_at_ms: Mapped[int]
    state: Mapped[str]
    result: Mapped[str]
    finished_at_ms: Mapped[int | None]
    __table_args__ = (Index("weir_requests_by_state", "application", "state", "id"),)


class Metric(Base):
    """One reading of a running application; the last hour is kept, and older ones as ``Minute``."""

    __tablename__ = "weir_metrics"
    id: Mapped[int] = mapped_column(primary_key=True)
    application: Mapped[str]
    at_ms: Mapped[int]
    epoch: Mapped[int]
    committed_epoch: Mapped[int]
    records_in: Mapped[int]
    records_per_s: Mapped[float]
    lag: Mapped[int]
    commit_ms: Mapped[float]
    commit_ms_avg: Mapped[float]
    commit_ms_max: Mapped[float]
    commits_per_s: Mapped[float]
    state_bytes: Mapped[int | None]
    __table_args__ = (Index("weir_metrics_by_time", "application", "at_ms"),)


class Minute(Base):
    """A summary of one minute's readings, which are older than an hour; a day is kept."""

    __tablename__ = "weir_minutes"
    application: Mapped[str] = mapped_column(primary_key=True)
    at_ms: Mapped[int] = mapped_column(primary_key=True)
    epoch: Mapped[int]
    records_per_s: Mapped[float]
    lag: Mapped[int]
    commit_ms: Mapped[float]
    state_bytes: Mapped[int | None]


class Assignment(Base):
    """Which executor got which tasks, each time that this changed, and why; the newest are kept."""

    __tablename__ = "weir_assignments"
    id: Mapped[int] = mapped_column(primary_key=True)
    application: Mapped[str]
    at_ms: Mapped[int]
    reason: Mapped[str]
    seconds: Mapped[float]
    executors: Mapped[dict[str, Any]] = mapped_column(JSON)
    moves: Mapped[list[Any]] = mapped_column(JSON)
    __table_args__ = (Index("weir_assignments_by_application", "application", "id"),)
