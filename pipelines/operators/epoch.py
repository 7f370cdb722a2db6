"""What an operator sees of its epoch: the task's store session, its clocks, and the counts it adds to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import polars as pl

from weir.pipelines.operators.batch_session import BatchSession
from weir.pipelines.processors.records import RecordMetadata
from weir.state.engine.contract import StateSession, StateView
from weir.state.engine.figures import Values
from weir.state.frames import running_max

MOST_LATE = 10
"""How many late records of an epoch are kept for the log."""


@dataclass(frozen=True, kw_only=True)
class LateRecord:
    """A record that was dropped because a window was closed to it."""

    node: str
    topic: str
    """Empty behind a repartition, where offset and partition are those of the task's own count."""
    partition: int
    offset: int
    time_ms: int
    stream_time_ms: int
    window_ms: tuple[int, int]
    """Start and end."""


@dataclass
class Epoch:
    """One epoch of one task."""

    session: StateSession
    clocks: dict[str, int]
    """Stream time in ms by operator."""
    now_ms: int
    """The wall clock; used only by what the program puts on wall-clock time."""
    counts: Counter[str] = field(default_factory=Counter)
    clocks_before: Mapping[str, int] = field(default_factory=dict)
    """The clocks when the batch began."""
    task: str = ""
    """Its id, for example ``0_3``."""
    instances: MutableMapping[str, object] = field(default_factory=dict)
    """The task's processors by node, which live on from epoch to epoch."""
    passes_wall_clock: bool = True
    """Whether what processors do by the wall clock is due in this epoch."""
    begins_time: bool = False
    """Whether the stream time of a processor that has had no record begins where the input ends."""
    metadata_of: Callable[[int, int], RecordMetadata | None] = lambda partition, offset: None
    """Where the row with this ``_partition`` and ``_offset`` was read."""
    wants_commit: bool = False
    """Whether a processor has asked for a commit."""
    outlets: dict[str, Any] = field(default_factory=dict)
    """By node, where processors that run record by record leave each record as soon as they forward it."""
    due: dict[tuple[str, str], Callable[[], None]] | None = None
    """What the record that is under way has made due, by node and kind, to be called once it is through; None where
    operators run over all rows, and so each calls what is due after each of its records."""
    node: str = ""
    """The node that is at work."""
    expired: Counter[str] = field(default_factory=Counter)
    """By store, the records that were older than it keeps."""
    overtimes: dict[str, Values] = field(default_factory=dict)
    """By store of a suppression, how long updates waited without another one before its time limit let them go."""
    late_records: list[LateRecord] | None = None
    """The first late records; None if nobody wants to see them."""
    late: dict[str, pl.DataFrame] = field(default_factory=dict)
    """Late records by the node that receives them, with the bounds of the window that they are late for."""
    moments: dict[str, pl.DataFrame] = field(default_factory=dict)
    """By windowed store, the stream time at the turns of this batch's records, as ``closing.note`` puts it."""

    @property
    def before(self) -> StateView:
        """The stores that other operators look into, as they were when the batch began."""
        return self.session.before if isinstance(self.session, BatchSession) else self.session

    def note_expired(self, store: str, records: int) -> None:
        """Count records that were older than ``store`` keeps."""
        if records:
            self.counts["expired_records"] += records
            self.expired[store] += records

    def drop_late(self, rows: pl.DataFrame, late_to: str | None, offsets: pl.Series, stream_time: pl.Series) -> None:
        """Count rows that are late for their window, and keep them for the node ``late_to`` if given.

        ``stream_time`` is that at the turns of the records with these ``offsets``.
        """
        if rows.height:
            self.counts["late_records"] += rows.height
            if late_to is not None:
                self.late[late_to] = rows
            if self.late_records is not None and (room := MOST_LATE - len(self.late_records)) > 0:
                self.late_records += self._seen_late(rows[:room], offsets, stream_time)

    def _seen_late(self, rows: pl.DataFrame, offsets: pl.Series, stream_time: pl.Series) -> Iterator[LateRecord]:
        bounds = [rows.get_column(name).dt.timestamp("ms") for name in ("window_start", "window_end")]
        turns = (offsets.search_sorted(rows.get_column("_offset"), side="right") - 1).to_list()
        for turn, partition, offset, time_ms, *window_ms in zip(
            turns, rows["_partition"], rows["_offset"], rows["_ts"], *bounds, strict=True
        ):
            found = self.metadata_of(partition, offset)
            yield LateRecord(
                node=self.node,
                topic=found.topic if found else "",
                partition=found.partition if found else partition,
                offset=found.offset if found else offset,
                time_ms=time_ms,
                stream_time_ms=int(stream_time[max(0, turn)]),
                window_ms=(window_ms[0], window_ms[1]),
            )

    def advance(self, clock: str, times_ms: pl.Series) -> pl.Series:
        """Stream time at each record's own turn, the record included; the clock keeps the last.

        ``times_ms`` are the timestamps of the records that reach the operator, in order, at least one.
        """
        stream_time = running_max(times_ms.to_numpy(), self.clocks.get(clock))
        self.clocks[clock] = int(stream_time[-1])
        return pl.Series(times_ms.name, stream_time)


class Operator(Protocol):
    """Rows in, rows out, in processing order; rows keep ``_ts _partition _offset _deleted``.

    A row has the place of the record that caused it, so rows of several operators can be put in order. Where records
    of several inputs meet in a task, ``_offset`` counts the records that the task took before.
    """

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        """Called once per epoch, and only if there is at least one row."""
        ...


class SeveralInputs(Protocol):
    """An operator with several parents: one frame per parent, in their order, at least one of them with rows."""

    def process_all(self, inputs: Sequence[pl.DataFrame], epoch: Epoch) -> pl.DataFrame:
        """The result of processing record by record; ``_offset`` tells which came first."""
        ...


def has_key(rows: pl.DataFrame, key_columns: list[str], epoch: Epoch) -> pl.DataFrame:
    """``rows`` without those whose key is null (all key columns null); these are counted as ``null_keys``."""
    kept = without_null_keys(rows, key_columns)
    epoch.counts["null_keys"] += rows.height - kept.height
    return kept


def without_null_keys(rows: pl.DataFrame, key_columns: list[str]) -> pl.DataFrame:
    """``rows`` without those whose key is null, uncounted."""
    if not all(rows.get_column(name).null_count() for name in key_columns):
        return rows
    return rows.filter(pl.any_horizontal(pl.col(key_columns).is_not_null()))


def has_value(rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
    """``rows`` without those whose value is null; these are counted as ``null_values``."""
    deleted = rows.get_column("_deleted")
    if not deleted.any():
        return rows
    kept = rows.filter(~deleted)
    epoch.counts["null_values"] += rows.height - kept.height
    return kept
