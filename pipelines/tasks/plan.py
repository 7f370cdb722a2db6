"""What the driver asks of a task for one epoch, and what the task answers (PROTOCOL 4 to 9).

Both travel through Spark, so they hold only plain values. Making plans belongs to ``weir.pipelines.spark.planner``,
carrying them out to ``weir.pipelines.tasks.epoch``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from weir.pipelines.serdes.source import BadRecord
from weir.pipelines.tasks.attempts import Waiting
from weir.pipelines.tasks.dead_letters import Letter
from weir.pipelines.tasks.freshness import Arrived
from weir.pipelines.tasks.metrics import EpochMetrics
from weir.pipelines.tasks.order import Mark
from weir.state.stopwatch import Work
from weir.state.types import BlobRef, FileEntry, Positions, StateId, TaskId


class OffsetRange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What to read of one topic partition: ``[start, end)``, with ``end`` an upper bound (PROTOCOL 9)."""

    topic: str
    partition: int
    start: int
    end: int
    available: int | None = None
    """Where the topic partition ends on the brokers: rows of other sources must not overtake the records up to there.
    None: do not wait for any."""
    merge_ms: int | None = None
    """The merge time of what was read before, if its first record is to be compared by that; None: by its own."""


class TaskPlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One epoch of one task."""

    task: TaskId
    instance: str
    state: StateId
    """The id of the state after this epoch."""
    expected: StateId | None
    """The id that the local store must hold now; None for a task that never ran an epoch."""
    committed: StateId | None
    """The id of the task's committed state; None before its first commit."""
    now_ms: int
    """The wall clock of the epoch, so that running the plan again gives the same rows."""
    ranges: tuple[OffsetRange, ...] = ()
    global_ranges: tuple[OffsetRange, ...] = ()
    """What the global tables that the task joins must hold at least, from the beginning of each topic partition."""
    until_time_ms: int | None = None
    """Stop at the first record after this time, but read at least one record (PROTOCOL 10)."""
    is_strict: bool = False
    """Whether to read no record after that time, not even one."""
    blobs: tuple[BlobRef, ...] = ()
    """Rows from other tasks, of which it takes those that come before what may still come (PROTOCOL 31)."""
    marks: tuple[Mark, ...] = ()
    """How far the sources have come, of the two that are furthest behind among those that have more and are not read by
    this plan."""
    max_bytes: int = 64 << 20
    """Stop reading a topic partition once its keys and values pass this many bytes."""
    lets_idle: bool = False
    """Whether this plan reads all that the topics hold: an input without records is then idle."""
    end_time_ms: int | None = None
    """If set, the input has ended: after the rows stream time moves to here, and what that closes is forwarded."""
    sought: tuple[str, ...] = ()
    """Topics of which it checks that the keys are in the partitions of Kafka's default partitioner, beside those that
    the topology names."""
    passes_wall_clock: bool = True
    """Whether what processors do by the wall clock is due; not in a backfill."""
    stops: bool = False
    """Whether the processors are closed after the rows, since the run ends."""
    to_log: tuple[str, ...] = ()
    """Stores of which all rows go to the changelog, which does not have them yet (PROTOCOL 37)."""
    letters: tuple[Letter, ...] = ()
    """Dead letters to process again; a plan with some reads nothing else."""
    max_uncommitted_bytes: int | None = None
    """Stop after the batch of records whose writes to the stores reach this many bytes (KIP-892)."""
    max_rollback_us: int | None = None
    """Stop after the batch of records with which rolling the epoch back would take about this long."""
    budget_ms: int | None = None
    """Stop after the batch of records at which this much time has passed; only where functions of the program run."""
    batch_rows: int | None = None
    """How many records to begin with then, as far as is known what they take."""
    tried: int = 0
    """How often the first row has been tried before, where it failed and is to be tried again."""
    asks: bool = False
    """Whether the task asks before it writes, since a commit is made meanwhile (PROTOCOL 40)."""

    @property
    def plan_hash(self) -> str:
        """Identifies the plan: the same plan again is answered with the stored receipt (PROTOCOL 7)."""
        return hashlib.blake2b(msgspec.msgpack.encode(self), digest_size=16).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Renewal:
    """What holds instead of a plan's own state ids, where others were committed without the task (PROTOCOL 40)."""

    state: StateId
    """The id of the state after this epoch."""
    committed: StateId | None
    """The id of the task's committed state."""


class ReceiptStatus(StrEnum):
    """How an epoch of a task ended; anything but ``DONE`` had no local effect."""

    DONE = "done"
    NEEDS_RESTORE = "needs_restore"
    MAP_FULL = "map_full"
    DISK_FULL = "disk_full"
    STORE_AWAY = "store_away"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The outcome of one epoch of one task."""

    task: TaskId
    plan_hash: str
    status: ReceiptStatus
    state: StateId | None = None
    positions: Positions = field(default_factory=dict)
    """Next offsets of all source partitions of the task, read or not."""
    files: tuple[FileEntry, ...] = ()
    blobs: tuple[BlobRef, ...] = ()
    """Rows for tasks of later sub-topologies."""
    consumed: tuple[BlobRef, ...] = ()
    """Blobs of which no row is left."""
    left: tuple[BlobRef, ...] = ()
    """Blobs of which the first rows were taken, as they are now."""
    clocks: Mapping[str, int] = field(default_factory=dict)
    source_times_ms: Mapping[str, int] = field(default_factory=dict)
    """Greatest record timestamp seen, by ``topic-partition``; the basis of aligned catch-up."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Counts of this epoch: ``records_in``, ``rows_out``, ``late_records``, ``null_keys``, ``dead_letters``,
    ``failed_records``, ``retries``."""
    gauges: Mapping[str, int] = field(default_factory=dict)
    """Current values: ``uncommitted_bytes``, ``uncommitted_records``, ``rollback_us``, ``open_windows``."""
    next_punctuation_ms: int | None = None
    metrics: EpochMetrics = field(default_factory=EpochMetrics)
    arrived: tuple[Arrived, ...] = ()
    """The records that were read, by when they arrived."""
    wants_commit: bool = False
    """Whether it stopped early at ``max_uncommitted_bytes`` or ``max_rollback_us``, or a processor asked for it."""
    waiting: Waiting | None = None
    """The record before which it stopped, to try it again."""
    sent_rows: int = 0
    """How many rows it took of what other tasks have sent."""
    seconds: float = 0.0
    """How long it took."""
    work: Work | None = field(default=None, compare=False)
    """Where the time went, which is not part of the receipt that the store keeps."""
    function_seconds: float = 0.0
    """How long of that it was in loops over records that call functions."""
    ran_out_of_time: bool = False
    """Whether it stopped early at ``budget_ms``."""
    stopped_early: tuple[str, ...] = ()
    """Topics whose next record is after the time to stop at."""
    replayed: int = 0
    """How many dead letters were processed again."""
    bad_record: BadRecord | None = None
    """Set when the task stopped before this record (``on_error="fail"``, or an expectation with
    ``on_violation="fail"``); what came before it is in the receipt."""
    error: str = ""
    """Why the status is not ``DONE``, in one sentence."""
