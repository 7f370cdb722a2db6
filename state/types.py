"""Value types that every layer shares: tasks, state ids, positions, and the files an epoch leaves.

No behaviour beyond parsing and printing lives here; what a commit does with these types belongs to
``state.commit``, what a task does with them to ``pipelines.tasks``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import polars as pl

Positions = dict[str, dict[int, int]]
"""Topic to partition to the next offset to read."""


class IsolationLevel(StrEnum):
    """What a reader sees of a running task: committed epochs only, or every applied epoch (KIP-892)."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


@dataclass(frozen=True, order=True)
class TaskId:
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


@dataclass(frozen=True)
class StateId:
    """The identity of one epoch's state, printed ``generation.epoch`` (PROTOCOL 1).

    Ids are compared for equality only; their order says nothing about which state is newer.
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
    """The table's path below the application's folder, as ``late_departures`` or ``_changelog/hourly``."""
    path: str
    """Relative to the table's folder."""
    size_bytes: int
    rows: int
    partition_values: Mapping[str, str] = field(default_factory=dict)
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


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """A Delta table that belongs to an application and is written by its commits only."""

    name: str
    """The path below the application's folder."""
    schema: pl.Schema
    """All columns, partition columns included, in order."""
    partition_by: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    """Set for a table of updates: the newest row (by ``_epoch``, ``_seq``) per these columns stands.
    Empty for facts, where every row counts."""


@dataclass(frozen=True, kw_only=True)
class StoreSpec:
    """A keyed store of a task: typed key columns, typed value columns, and how its keys are ordered.

    The changelog's columns are the key columns, the value columns, ``_ts`` (UTC, ms), ``_epoch`` and
    ``_deleted``. A window store has ``window_start`` and ``window_end`` (both UTC, ms) as the last two
    key columns; its key bytes begin with the window's start, so that closing windows is one range.
    """

    name: str
    key: pl.Schema
    value: pl.Schema
    is_windowed: bool = False
