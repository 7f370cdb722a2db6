"""What is written to and read from the control database, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

RequestKind = Literal[
    "commit", "restore", "pause", "resume", "snapshot", "swap", "sink", "replay", "pace", "slots", "stop"
]
FREEST_SLOT = "freest"
"""The argument ``slot`` of a restore after which the task continues in the slot that has least to do."""
AT_REST = "weir backfill"
"""The owner of a lease that is held for a single commit while no driver runs: such a life is not a driver's."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to drive an application, as far as people and sensors are concerned (PROTOCOL 2: never a guard)."""

    application: str
    owner: str
    host: str
    pid: int
    started_at_ms: int
    ttl_s: float


@dataclass(frozen=True, kw_only=True)
class TaskStatusRow:
    """The status of one task."""

    task: str
    slot: int
    status: str
    """Its state: created, restoring, running, paused, isolated, corrupted, suspended or closed."""
    executor: str | None = None
    """The id of the executor that the slot is on; ``driver`` on a single host."""
    standbys: Mapping[str, float] | None = None
    """By how many seconds each standby is behind the commits, by executor."""
    restored_per_cent: float | None = None
    """How much of its restore is done; None if it is not restoring, or nobody knows yet."""
    state: str | None = None
    """The state id, ``generation.epoch``."""
    positions: Mapping[str, Any] = field(default_factory=dict)
    """Topic to partition to next offset; in JSON, partitions are text."""
    lag: int = 0
    stream_time_ms: int | None = None
    uncommitted_bytes: int = 0
    uncommitted_records: int = 0
    open_windows: int = 0
    late_records: int = 0
    records_in: int = 0
    reason: str = ""
    updated_at_ms: int = 0
    """Set by the database's writer."""


@dataclass(frozen=True, kw_only=True)
class QueryServerRow:
    """Where an executor answers queries of its tasks' stores."""

    executor: str
    host: str
    port: int
    token: str = field(repr=False)
    """What both sides prove to have."""
    machine: str
    """The host, as ``weir.infra.process.this_machine`` names it there."""
    folder: str
    """The folder of the tasks' state on that host."""


@dataclass(frozen=True, kw_only=True)
class RequestRow:
    """A request and, once ``state`` is done or failed, its answer in ``result``."""

    id: int
    application: str
    kind: str
    arguments: Mapping[str, str]
    requested_by: str
    reason: str
    requested_at_ms: int
    state: str
    result: str
    finished_at_ms: int | None


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """One reading of a running application."""

    epoch: int
    committed_epoch: int
    records_in: int
    records_per_s: float
    lag: int
    commit_ms: float
    """How long the newest commit took; average, maximum and rate are over the last minute."""
    commit_ms_avg: float = 0.0
    commit_ms_max: float = 0.0
    commits_per_s: float = 0.0
    state_bytes: int | None = None
    """What all local stores use; None until the first of them is known."""
    at_ms: int = 0
    """Set by the database's writer if it is 0."""


@dataclass(frozen=True, kw_only=True)
class MinuteRow:
    """A summary of one minute's readings."""

    at_ms: int
    """When the minute began."""
    epoch: int
    """The newest."""
    records_per_s: float
    """The average."""
    lag: int
    """The maximum."""
    commit_ms: float
    """The maximum."""
    state_bytes: int | None = None
    """The maximum; None if no reading has it."""


@dataclass(frozen=True, kw_only=True)
class AssignmentRow:
    """Which executor has which tasks, and what has changed."""

    reason: str
    """Why there was one, in a sentence."""
    seconds: float
    """How long it took, without restores."""
    executors: Mapping[str, Mapping[str, Any]]
    """By id: the number of ``slots``, and names of tasks: ``active``, ``standby``, and those that it had before,
    ``previous``."""
    moves: Sequence[Mapping[str, str | None]]
    """Each with ``task``, ``role``, ``source`` and ``target``, an executor or one of its slots, and ``reason``."""
    at_ms: int = 0
    """Set by the database's writer."""


@dataclass(frozen=True, kw_only=True)
class ApplicationStatus:
    """The newest life of an application with its tasks and newest reading."""

    application: str
    state: str
    """As reported: starting, running, waiting, paused, stopping, stopped, failed; ``dead`` if the lease was not given
    back and its process is gone or its time is up, whether or not somebody has taken it since."""
    is_running: bool
    generation: int | None
    owner: str
    host: str
    pid: int
    has_process: bool
    """Whether the driver's process is alive on the host that asks, however long it has not reported."""
    started_at_ms: int
    heartbeat_at_ms: int
    ended_at_ms: int | None
    error: str | None
    tasks: tuple[TaskStatusRow, ...]
    metric: MetricRow | None
    readings: tuple[Mapping[str, Any], ...] = ()
    """Metrics under Kafka Streams' names, each with ``group``, ``name``, ``tags`` and ``value``."""
    sinks: tuple[Mapping[str, Any], ...] = ()
    """How the sinks are doing: ``weir.pipelines.publishing.publisher.SinkState``, as plain values."""
    waits_for: str = ""
    """Why the driver waits, if it is running and does."""
    assignment: AssignmentRow | None = None
    """The newest one."""

    @property
    def has_ended(self) -> bool:
        """Whether the driver has given the lease back, or its process has ended; of one on another host, whether its
        time is up. A process that cannot extend its lease, being busy or without the database, has not ended."""
        return not (self.is_running or (self.ended_at_ms is None and self.has_process))
