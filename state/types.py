"""Value types that every layer shares: tasks, state ids, positions, and the files an epoch leaves.

No behaviour beyond parsing and printing lives here; what a commit does with these types belongs to
``weir.state.commit``, what a task does with them to ``weir.pipelines.tasks``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from weir.state.own_stores import Supplier

if TYPE_CHECKING:
    import polars as pl

CHANGELOG_FOLDER = "_changelog"
"""The folder of the changelogs, below the application's."""
TopicPartition = tuple[str, int]
"""A topic and the number of a partition."""
Positions = dict[str, dict[int, int]]
"""Topic to partition to the next offset to read."""
LeaderEpochs = dict[str, dict[int, int]]
"""Topic to partition to the epoch of its leader."""


class IsolationLevel(StrEnum):
    """What a reader sees of a running task: committed epochs only, or every applied epoch (KIP-892)."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class TaskId(msgspec.Struct, frozen=True, order=True, cache_hash=True, gc=False):
    """One sub-topology over one partition, printed ``0_3``."""

    sub_topology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.sub_topology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Read ``0_3``; raises ``ValueError`` for anything else."""
        sub_topology, partition = text.split("_")
        return cls(int(sub_topology), int(partition))


class StateId(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """The identity of one epoch's state, printed ``generation.epoch`` (PROTOCOL 1).

    Ids are compared for equality only; their order says which state is newer only within a generation.
    """

    generation: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> StateId:
        """Read ``generation.epoch``; raises ``ValueError`` for anything else."""
        generation, epoch = text.split(".")
        return cls(int(generation), int(epoch))

    @property
    def version(self) -> int:
        """The application's Delta transaction version of a commit at this id (PROTOCOL 3)."""
        return self.generation << 32 | self.epoch


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A Parquet file that an epoch wrote into a table's folder, invisible until a commit names it."""

    table: str
    """The table's path below the application's folder, for example ``late_departures`` or ``_changelog/hourly``."""
    path: str
    """Relative to the table's folder."""
    size_bytes: int
    rows: int
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    """As Delta writes them."""
    stats: str = ""
    """Delta's file statistics as JSON: the row count, and the range of numbers, times and short strings."""


@dataclass(frozen=True, kw_only=True)
class BlobRef:
    """Rows that one task's epoch left for a task of a later sub-topology (PROTOCOL 23)."""

    source: str
    target: str
    edge: str
    """The name of the repartition edge."""
    state: StateId
    """The state id of the epoch that wrote it."""
    path: str
    """Relative to the application's ``_blobs`` folder."""
    rows: int
    size_bytes: int
    taken: int = 0
    """How many of its rows the target has taken; they are its first."""
    first: tuple[int, int] | None = None
    """The key of the next row (``weir.pipelines.tasks.order``); None in rows written before rows had keys."""
    last: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """A Delta table that belongs to an application and is written by its commits only."""

    name: str
    """The path below the application's folder."""
    schema: pl.Schema
    """All columns, partition columns included, in order."""
    partition_by: tuple[str, ...] = ()
    has_partition_columns: bool = False
    """Whether files have the partition columns too, and can be read by themselves, and no folders of their own, since a
    value may be longer than a folder's name; Delta's readers take the values from its log."""
    keys: tuple[str, ...] = ()
    """Set for a table of updates, where the newest row per key (by ``_epoch``, ``_seq``) is the current one. Empty for
    facts, where every row counts."""
    evolves_freely: bool = False
    """Whether columns may get wider types, or no longer be written, in a table that exists; else they may only be
    added."""
    required: tuple[str, ...] = ()
    """Columns that each row has to have: a table that exists without them cannot get them."""


class StoreKind(StrEnum):
    """What a store keeps one row for, and so how its keys are ordered."""

    KEY_VALUE = "key_value"
    """One row per key, in key order."""
    WINDOW = "window"
    """One row per key and window, by the window's start, then key: closing windows is one range."""
    SESSION = "session"
    """One row per key and session, by key, then the session's end, then its start."""
    VERSIONED = "versioned"
    """One row per key and version, by key, then the time from which the version is valid."""


class StoreClock(StrEnum):
    """The clock by which a store's rows expire."""

    STREAM_TIME = "stream_time"
    WALL_CLOCK = "wall_clock"


@dataclass(frozen=True, kw_only=True)
class StoreSpec:
    """A keyed store of a task: typed key columns, typed value columns, and how its keys are ordered.

    The changelog's columns are the key columns, the value columns, ``_ts`` (UTC, ms), ``_epoch`` and
    ``_deleted``. The last key columns of a window or session store are ``window_start`` and ``window_end``,
    that of a versioned store is ``valid_from`` (all UTC, ms). ``weir.state.stores.specs`` makes specs with the
    columns that a kind of store needs.
    """

    name: str
    key: pl.Schema
    value: pl.Schema
    kind: StoreKind = StoreKind.KEY_VALUE
    retention_ms: int | None = None
    """How long rows live (None: forever): windows from their start, sessions from their end, versions from the time
    they were replaced, key-value rows from their last write. Older rows are neither found nor accepted."""
    expires_by: StoreClock = StoreClock.STREAM_TIME
    """The wall clock is for key-value stores only; such a store has the value column ``_written``."""
    window_size_ms: int | None = None
    """The common size of a window store's windows, if they have one; needed to put a window by its start alone."""
    supplier: Supplier | None = None
    """Opens the user's store that holds the rows; None for a built-in one. Not part of what identifies a store."""
    is_logged: bool = True
    """Whether it has a changelog. Not part of what identifies a store."""
    is_in_memory: bool = False
    """Whether its rows are in memory instead of on disk. Not part of what identifies a store."""
    is_rebuilt: bool = False
    """Whether a store without a changelog that is lost is computed again from its topic; else it begins empty."""
