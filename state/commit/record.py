"""What one row of the commit log says. Writing and reading rows belongs to ``weir.state.commit.log``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from weir.state.types import BlobRef, FileEntry, Positions, StateId

FORMAT_VERSION = 1
SWAP_FORMAT_VERSION = 2
"""Of rows with swaps: who does not know of those must not redo such a row."""


@dataclass(frozen=True, kw_only=True)
class SnapshotRef:
    """A published copy of a task's stores at a commit (``weir.state.changelog.snapshot``)."""

    path: str
    """Relative to the application's folder."""
    state: StateId
    """The task's committed state that the copy holds."""
    size_bytes: int
    crc32: int
    """Of the file."""
    rows: int
    """Over all stores."""


@dataclass(frozen=True, kw_only=True)
class TaskCommit:
    """Where one task stands at a commit, idle tasks included (PROTOCOL 12)."""

    state: StateId | None
    """The committed state id; None for a task that never ran an epoch."""
    instance: str
    """The name of the folder that holds the task's local state (PROTOCOL 20)."""
    positions: Positions = field(default_factory=dict)
    clocks: Mapping[str, int] = field(default_factory=dict)
    """Stream time in ms by operator; a restored task gets its clocks back from here."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Counts since the application's first epoch, as ``records_in``, ``late_records``."""
    next_punctuation_ms: int | None = None
    snapshot: SnapshotRef | None = None
    """Where a restore begins; what came after it is in the changelog."""
    rows_since_snapshot: int = 0
    """Rows that the task's changelogs have grown by since."""


@dataclass(frozen=True, kw_only=True)
class CommittedTopology:
    """What the program of a commit kept and wrote, for comparing another program with it."""

    stores: Mapping[str, tuple[str, ...]]
    """Store names by the stored name of their sub-topology, ``flights-9f86d081``; empty for one without stores."""
    outputs: tuple[str, ...]
    """Names of the output tables."""
    settings: Mapping[str, Mapping[str, str]] | None = None
    """By store, what may be another over the same rows, as its retention, in words; None in rows of before this was
    kept."""


@dataclass(frozen=True, kw_only=True)
class TableSwap:
    """Rows of an output table for some days, or for ever, in place of those that it has (docs/backfill.md)."""

    backfill: str
    table: str
    column: str | None
    """The time that says to which day a row belongs: ``window_start`` or ``_ts``; None for all rows, without regard to
    their time."""
    start_ms: int
    end_ms: int
    """The days are ``[start_ms, end_ms)``."""
    cut_epoch: int
    """Rows of later epochs stay; the new rows have this one."""
    files: tuple[FileEntry, ...]
    """The new rows; none where the days have no rows any more."""


@dataclass(frozen=True, kw_only=True)
class SwapNote:
    """That a backfill was swapped in; commits carry the newest notes on."""

    backfill: str
    start_ms: int
    end_ms: int
    tables: tuple[str, ...]
    cut_epoch: int
    epoch: int
    """Of the commit that swapped it in."""
    is_whole: bool = False
    """Whether it replaced everything, stores, positions and counts too."""


@dataclass(frozen=True, kw_only=True)
class CommitRecord:
    """One row: the claim of a generation, or a commit of all epochs up to ``epoch``."""

    kind: Literal["claim", "commit"]
    generation: int
    epoch: int
    """For a claim, the newest committed epoch at that time (0 at the very first)."""
    at_ms: int
    """Wall clock, for people; nothing depends on it."""
    fingerprint: str
    reason: str = ""
    """Why the commit was made: interval, bytes, request, stop, caught_up."""
    tasks: Mapping[str, TaskCommit] = field(default_factory=dict)
    files: tuple[FileEntry, ...] = ()
    swaps: tuple[TableSwap, ...] = ()
    """Carried out after ``files`` were added, in one Delta commit with them."""
    swapped: tuple[SwapNote, ...] = ()
    """The newest swaps up to and with this row, oldest first; set by the committer."""
    pending_blobs: tuple[BlobRef, ...] = ()
    table_versions: Mapping[str, int] = field(default_factory=dict)
    """By table, the version of the newest row up to this one that has files for it; set by the committer.
    A table whose transaction version is lower is behind the log (PROTOCOL 14)."""
    is_rolled_up: bool = False
    """Whether ``files`` and ``swaps`` were dropped, all tables having had them (PROTOCOL 16)."""
    topology: CommittedTopology | None = None
    """None in a claim, and in rows of before this was kept."""
    format_version: int = FORMAT_VERSION

    @property
    def state_id(self) -> StateId:
        return StateId(self.generation, self.epoch)
