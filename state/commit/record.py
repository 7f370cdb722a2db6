"""What one row of the commit log says. Writing and reading rows belongs to ``weir.state.commit.log``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from weir.state.types import BlobRef, FileEntry, LeaderEpochs, Positions, StateId

FORMAT_VERSION = 1
SWAP_FORMAT_VERSION = 2
"""The format of rows with swaps: a version of Weir that does not know swaps must not redo such a row."""
KEYED_FORMAT_VERSION = 3
"""The format of rows that list blobs whose rows have keys: a version of Weir that does not know keys cannot read them,
and would take again what was taken of a blob."""
UNLOGGED_FORMAT_VERSION = 4
"""The format of rows with stores whose rows are not in their changelogs: a version of Weir that does not know them
would restore them from what an earlier program left there."""
LOST_RECORDS_ACCEPTED = "lost records accepted"
"""The reason of a commit that moves positions to where topics can still be read, and holds nothing else."""


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
class Beginning:
    """Where reading begins that gives all rows of a store again, in the task's partition of its topic."""

    topic: str
    offset: int
    clocks: Mapping[str, int] = field(default_factory=dict)
    """The clocks of the store's operator there."""


@dataclass(frozen=True, kw_only=True)
class TaskCommit:
    """A task's state and positions as of a commit, which lists idle tasks too (PROTOCOL 12)."""

    state: StateId | None
    """The committed state id; None for a task that never ran an epoch."""
    instance: str
    """The name of the folder that holds the task's local state (PROTOCOL 20)."""
    positions: Positions = field(default_factory=dict)
    leader_epochs: LeaderEpochs = field(default_factory=dict)
    """Of each topic partition, the epoch of a leader whose log reached the position (KIP-320); absent if unknown."""
    clocks: Mapping[str, int] = field(default_factory=dict)
    """Stream time in ms by operator; a restored task takes its clocks from here."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Counts since the application's first epoch, for example ``records_in`` and ``late_records``."""
    next_punctuation_ms: int | None = None
    snapshot: SnapshotRef | None = None
    """Where a restore begins; later changes are in the changelog."""
    rows_since_snapshot: int = 0
    """How many rows the task's changelogs have gained since."""
    unlogged: tuple[str, ...] = ()
    """The stores whose rows are only in the task's local store, since they have no changelog, or one that has yet to
    get the rows (PROTOCOL 37)."""
    beginnings: Mapping[str, Beginning] = field(default_factory=dict)
    """By store, of those in ``unlogged`` that are computed again if they are lost (PROTOCOL 38)."""
    busy_s: float = 0.0
    """What its epochs have taken in its slot since the first one."""


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """What tells an operator without a name of its own from the others, whatever comes before it in the program."""

    operator: str
    """What kind of operator it is: ``Suppress``."""
    origin: str
    """The nearest topics, repartitions and stores that have a name, of what it is made from: ``(orders, prices)``."""
    steps: str
    """A digest of what it does, and of the operators between it and those."""
    outputs: tuple[str, ...]
    """The nearest tables, repartitions and stores that have a name, of what is made from it, sorted."""


@dataclass(frozen=True, kw_only=True)
class StoreIdentity:
    """What a store's rows are, and which task has which of them: with its name and the number of its tasks, all that
    makes a store of another program the same one. Columns are names and polars types, in order."""

    kind: str
    key: Mapping[str, str]
    value: Mapping[str, str]
    """The only part that may change: columns come, go and get wider types."""
    owner: str
    """Who decides which task has a key, and by which bytes: ``a topic's producers, String keys``."""
    grouping: str = ""
    """What else decides which row a record belongs to: the sizes of its windows, or the columns of a foreign key."""
    lineage: Lineage | None = None
    """Of a store whose name is made up, what it is found again by in place of that; None in rows written before this
    field existed."""


@dataclass(frozen=True, kw_only=True)
class StoreAside:
    """A store that the program no longer has. Its changelog is kept until `weir state remove`."""

    since_epoch: int
    """The epoch of the last commit with it."""
    tasks: int
    """How many tasks it had."""
    identity: StoreIdentity | None = None
    """None if it was last written before commits had identities."""
    clocks: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """By partition, the clocks of the operators that kept it."""


@dataclass(frozen=True, kw_only=True)
class TopicAside:
    """A topic that the program no longer reads. Another program that reads it goes on where it was left."""

    positions: Mapping[int, int]
    leader_epochs: Mapping[int, int] = field(default_factory=dict)
    topic_id: str | None = None
    """None where the brokers had none."""


@dataclass(frozen=True, kw_only=True)
class CommittedTopology:
    """The stores and outputs of the program that made a commit, for comparing another program with it."""

    stores: Mapping[str, tuple[str, ...]]
    """Store names by the stored name of their sub-topology, ``flights``; empty for one without stores."""
    outputs: tuple[str, ...]
    """Names of the output tables."""
    settings: Mapping[str, Mapping[str, str]] | None = None
    """By store, in words, the settings that may change over the same rows, for example its retention; None in rows
    written before this field existed."""
    identities: Mapping[str, StoreIdentity] | None = None
    """By store; None in rows written before this field existed."""
    aside: Mapping[str, StoreAside] = field(default_factory=dict)
    """Stores of earlier programs."""
    topics_aside: Mapping[str, TopicAside] = field(default_factory=dict)
    """Topics of earlier programs."""
    removed: tuple[str, ...] = ()
    """Stores that were removed, of which local stores may still have rows."""
    topics: tuple[str, ...] | None = None
    """The source topics in the order of their ranks, by which waiting rows were sent; None in rows written before this
    field existed."""
    edges: Mapping[str, Lineage] | None = None
    """The edges between tasks whose names are made up; None in rows written before this field existed."""


@dataclass(frozen=True, kw_only=True)
class TableSwap:
    """Rows that replace those of an output table for some days, or all of them (docs/backfill.md)."""

    backfill: str
    table: str
    column: str | None
    """The time that decides which day a row belongs to, ``window_start`` or ``_ts``; None for all rows, whatever their
    time."""
    start_ms: int
    end_ms: int
    """The days are ``[start_ms, end_ms)``."""
    cut_epoch: int
    """Rows of later epochs stay; the new rows have this one."""
    files: tuple[FileEntry, ...]
    """The new rows; empty when the days no longer have any."""


@dataclass(frozen=True, kw_only=True)
class SwapNote:
    """A note that a backfill was swapped in; every commit repeats the newest notes."""

    backfill: str
    start_ms: int
    end_ms: int
    tables: tuple[str, ...]
    cut_epoch: int
    epoch: int
    """The epoch of the commit that swapped it in."""
    is_whole: bool = False
    """Whether it replaced everything, including stores, positions and counts."""


@dataclass(frozen=True, kw_only=True)
class CommitRecord:
    """One row: the claim of a generation, or a commit of all epochs up to ``epoch``."""

    kind: Literal["claim", "commit"]
    generation: int
    epoch: int
    """For a claim, the newest epoch committed by then (0 for the very first)."""
    at_ms: int
    """Wall clock; no commit depends on it, only how long deletions and replaced files are kept."""
    fingerprint: str
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """By topic, the id that the brokers gave it (KIP-516): offsets of another topic of that name are others. Topics are
    absent in rows written before this field existed, and where the brokers have no ids."""
    reason: str = ""
    """Why the commit was made, for example ``interval``, ``bytes``, ``stop`` or ``caught_up``."""
    tasks: Mapping[str, TaskCommit] = field(default_factory=dict)
    files: tuple[FileEntry, ...] = ()
    swaps: tuple[TableSwap, ...] = ()
    """Carried out in the Delta commit that adds ``files``."""
    swapped: tuple[SwapNote, ...] = ()
    """The newest swaps up to and including this row, oldest first; set by the committer."""
    pending_blobs: tuple[BlobRef, ...] = ()
    table_versions: Mapping[str, int] = field(default_factory=dict)
    """By table, the version of the newest row so far that has files for it; set by the committer.
    A table whose transaction version is lower is behind the log (PROTOCOL 14)."""
    removed_tables: Mapping[str, str] = field(default_factory=dict)
    """By table, the ids of those that this commit gives up; the next claim deletes what is left of them."""
    is_rolled_up: bool = False
    """Whether ``files`` and ``swaps`` were dropped, since every table has them (PROTOCOL 16)."""
    topology: CommittedTopology | None = None
    """None in a claim, and in rows written before this field existed."""
    format_version: int = FORMAT_VERSION

    @property
    def state_id(self) -> StateId:
        return StateId(self.generation, self.epoch)

    @property
    def topics(self) -> dict[str, TopicAside]:
        """Where reading goes on in each topic that a task has read, or an earlier program."""
        positions, leader_epochs = Positions(), LeaderEpochs()
        for task in self.tasks.values():
            for topic, offsets in task.positions.items():
                positions.setdefault(topic, {}).update(offsets)
                leader_epochs.setdefault(topic, {}).update(task.leader_epochs.get(topic, {}))
        read = {
            topic: TopicAside(positions=offsets, leader_epochs=leader_epochs[topic], topic_id=self.topic_ids.get(topic))
            for topic, offsets in positions.items()
        }
        return {**(self.topology.topics_aside if self.topology else {}), **read}

    @property
    def partitions(self) -> dict[str, int]:
        """How many partitions of each of these topics have a position."""
        return {topic: len(each.positions) for topic, each in self.topics.items()}

    @property
    def needed_format(self) -> int:
        """The lowest format version that says everything that the row says."""
        if any(task.unlogged for task in self.tasks.values()):
            return UNLOGGED_FORMAT_VERSION
        if any(blob.first is not None for blob in self.pending_blobs):
            return KEYED_FORMAT_VERSION
        return SWAP_FORMAT_VERSION if self.swaps else self.format_version


RECORDS = msgspec.json.Decoder(CommitRecord)
"""Like all decoders of classes, made when its module is imported: msgspec 0.22 tells other threads of a class before it
knows all of its fields, and a thread that decodes one then ends the process."""
