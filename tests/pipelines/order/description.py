"""Programs and topics as plain data, of which both the Weir program (``building``) and the model (``model``) are made.

A program is a list of steps, each of which refers to earlier ones by their place in the list. Every record has one text
as its key and a ``Value``; the functions of steps have names, so that each side has its own rendering of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Value(NamedTuple):
    num: int
    word: str


class Record(NamedTuple):
    key: str | None
    value: Value | None
    ts: int
    header: str = ""


@dataclass(frozen=True)
class Step:
    pass


@dataclass(frozen=True)
class Source(Step):
    """``history`` is that of a versioned table. ``has_headers``: whether each record with a value has a header, which
    is ``functions.header_of`` its value. Of a stream: ``is_timed``, whether the time of a record is
    ``functions.time_in`` its value; ``by_pattern``, whether a pattern names the topic."""

    topic: str
    is_table: bool = False
    history: int | None = None
    has_headers: bool = False
    is_timed: bool = False
    by_pattern: bool = False


@dataclass(frozen=True)
class Filter(Step):
    """Of a stream or a table; ``how`` is one of ``functions.PREDICATES``.

    ``is_kept``: whether a table keeps its rows in a store of its own. ``is_not``: whether the others pass.
    """

    parent: int
    how: str
    is_kept: bool = False
    is_not: bool = False


@dataclass(frozen=True)
class MapValues(Step):
    """Of a stream or a table; ``how`` is one of ``functions.MAPPERS``.

    ``is_kept``: whether a table keeps its rows in a store of its own.
    """

    parent: int
    how: str
    is_kept: bool = False


@dataclass(frozen=True)
class Expect(Step):
    """Of a stream or a table, without what violates it; ``how`` is one of ``functions.PREDICATES``."""

    parent: int
    how: str


@dataclass(frozen=True)
class FromHeader(Step):
    """By a processor without a store: the header takes the place of the word."""

    parent: int


@dataclass(frozen=True)
class SelectKey(Step):
    """``how`` is one of ``functions.KEYS``."""

    parent: int
    how: str


@dataclass(frozen=True)
class FlatMap(Step):
    """Of a stream; ``how`` is one of ``functions.PAIRS``."""

    parent: int
    how: str


@dataclass(frozen=True)
class FlatMapValues(Step):
    """Of a stream; ``how`` is one of ``functions.SPREADS``."""

    parent: int
    how: str


@dataclass(frozen=True)
class WithTime(Step):
    """Of a stream; ``how`` is one of ``functions.TIMES``."""

    parent: int
    how: str


@dataclass(frozen=True)
class Branch(Step):
    """One branch of a split of a stream: ``which`` is the place of its predicate in ``hows``, or their number for the
    records that meet none of them; each is one of ``functions.PREDICATES``."""

    parent: int
    hows: tuple[str, ...]
    which: int


@dataclass(frozen=True)
class Repartition(Step):
    parent: int
    partitions: int | None = None


@dataclass(frozen=True)
class Merge(Step):
    parent: int
    other: int


@dataclass(frozen=True)
class ToTable(Step):
    """A versioned table if it has a ``history``; one whose rows expire if it has a ``ttl``.

    ``deletes``: whether values that ``functions.is_deletion`` says so of are made null before.
    """

    parent: int
    history: int | None = None
    ttl: int | None = None
    deletes: bool = False


@dataclass(frozen=True)
class ToStream(Step):
    """A table's updates as a stream, without tombstones."""

    parent: int


@dataclass(frozen=True)
class Tumbling:
    size: int
    grace: int


@dataclass(frozen=True)
class Hopping:
    size: int
    advance: int
    grace: int


@dataclass(frozen=True)
class Sessions:
    gap: int
    grace: int


@dataclass(frozen=True)
class Sliding:
    difference: int
    grace: int


@dataclass(frozen=True)
class Unlimited:
    start: int


FOR_EVER = 253_402_300_799_999
"""Where unlimited windows end: with the year 9999."""
Windows = Tumbling | Hopping | Sessions | Sliding | Unlimited


@dataclass(frozen=True)
class Aggregate(Step):
    """Of a stream by its key. ``fold`` is one of ``functions.FOLDS``.

    ``emits`` is "updates", or "suppressed" or "on close" for the two ways to final results. ``retention``: how much
    longer than it must a store keeps windows. ``is_unlogged``: whether its store has no changelog, but is computed
    again when it is lost. ``is_in_memory``: whether its rows are in memory.
    """

    parent: int
    fold: str
    windows: Windows | None = None
    emits: str = "updates"
    retention: int = 0
    is_unlogged: bool = False
    is_in_memory: bool = False


@dataclass(frozen=True)
class Late(Step):
    """The records that are late for windows of an ``Aggregate``, each once per window, with its bounds."""

    parent: int


@dataclass(frozen=True)
class Cogroup(Step):
    """Of two streams by their keys, into one table: each has a fold of its own, whose order matters, or columns of its
    own if it is ``by_columns``.

    ``windows`` and ``emits`` are as in ``Aggregate``.
    """

    parent: int
    other: int
    windows: Windows | None = None
    emits: str = "updates"
    by_columns: bool = False


@dataclass(frozen=True)
class Suppress(Step):
    """Under a time limit, of a table without windows; ``records`` limits the buffer.

    ``restarts``: whether each update begins the wait anew.
    """

    parent: int
    limit: int
    records: int | None = None
    restarts: bool = False


@dataclass(frozen=True)
class GroupTable(Step):
    """Of a table by another key. ``fold`` is one of ``functions.CHANGE_FOLDS``."""

    parent: int
    key: str
    fold: str


@dataclass(frozen=True)
class Process(Step):
    """Of a stream or a table, by a processor with a store and timers by stream time: it chains the values of a key, and
    sends the chain on once its number is a multiple of three, or when the key has been quiet for ``wait``."""

    parent: int
    wait: int


RESOLUTION = 4
"""Of the timers of a step ``Totals`` by columns."""


@dataclass(frozen=True)
class Totals(Step):
    """By a processor with a store, punctuations and timers by stream time: it sends on the sum of the key with each
    record, all sums once per ``every``, and that of a key that has been quiet for ``wait``; these begin anew then.

    ``by_columns`` says whether it takes batches; its timers are then called at multiples of ``RESOLUTION``.
    """

    parent: int
    wait: int
    every: int
    by_columns: bool


@dataclass(frozen=True)
class Shared(Step):
    """By two processors with one store: each chains the values of its stream, in a way of its own, onto what both know
    of the key, and sends that on; then they are one stream."""

    parent: int
    other: int


@dataclass(frozen=True)
class Batch(Step):
    """Of a stream by its key; a batch has at most so many records and bytes, and is chained into one value."""

    parent: int
    records: int | None
    size: int | None


@dataclass(frozen=True)
class Loose(Step):
    """Holds records until the wall clock lets them go, or the run ends: each comes once, those of a key in order, and
    has a time that is made of its value. ``how`` is "batch", or "processor", which counts as changing the key.

    When they come among those of other keys, nobody can say, so only steps follow that do not see it.
    """

    parent: int
    how: str


@dataclass(frozen=True)
class StreamTableJoin(Step):
    """With a ``grace``, records wait for the versioned table."""

    parent: int
    table: int
    is_left: bool
    grace: int | None = None


@dataclass(frozen=True)
class GlobalJoin(Step):
    """With a global topic; ``key`` is one of ``functions.KEYS``, or "own"."""

    parent: int
    topic: str
    key: str
    is_left: bool


@dataclass(frozen=True)
class JoinWithin:
    before: int
    after: int
    grace: int


@dataclass(frozen=True)
class StreamJoin(Step):
    """``kind`` is "inner", "left" or "outer".

    ``retention``: how long each side is kept, at least for as long as the windows need.
    """

    parent: int
    other: int
    kind: str
    windows: JoinWithin
    retention: int = 0


@dataclass(frozen=True)
class TableJoin(Step):
    """``kind`` is "inner", "left" or "outer"."""

    parent: int
    other: int
    kind: str


@dataclass(frozen=True)
class ForeignJoin(Step):
    """Of two tables; ``key`` is one of ``functions.KEYS``, of the left table's values."""

    parent: int
    other: int
    key: str
    is_left: bool


@dataclass(frozen=True)
class Sink(Step):
    """Writes the output table ``out<place of this step>``: facts of a stream or of final results, else updates."""

    parent: int


@dataclass(frozen=True)
class Program:
    topics: tuple[tuple[str, int], ...]
    """Topics with their numbers of partitions."""
    steps: tuple[Step, ...]
    global_topics: tuple[str, ...] = ()
    """Those of ``topics`` that are global tables, complete from the beginning."""

    def parents(self, place: int) -> tuple[int, ...]:
        step = self.steps[place]
        names = ("parent", "other", "table")
        return tuple(getattr(step, name) for name in names if hasattr(step, name))

    def is_table(self, place: int) -> bool:
        match self.steps[place]:
            case Source(is_table=is_table):
                return is_table
            case Filter(parent=parent) | MapValues(parent=parent) | Expect(parent=parent):
                return self.is_table(parent)
            case ToTable() | Aggregate() | Cogroup() | Suppress() | GroupTable() | TableJoin() | ForeignJoin():
                return True
        return False

    def is_versioned(self, place: int) -> bool:
        match self.steps[place]:
            case Source(history=history) | ToTable(history=history):
                return history is not None
            case Filter(parent=parent) | MapValues(parent=parent):
                return self.is_versioned(parent)
        return False

    def is_windowed(self, place: int) -> bool:
        match self.steps[place]:
            case Aggregate(windows=windows) | Cogroup(windows=windows):
                return windows is not None
            case (
                Filter() | MapValues() | Repartition() | ToStream() | Merge() | TableJoin() | StreamTableJoin() | Late()
            ):
                return self.is_windowed(self.parents(place)[0])
        return False

    def is_final(self, place: int) -> bool:
        match self.steps[place]:
            case Aggregate(emits=emits) | Cogroup(emits=emits):
                return emits != "updates"
            case Filter() | MapValues() if self.is_table(place):
                return self.is_final(self.parents(place)[0])
        return False

    def has_new_key(self, place: int) -> bool:
        """Whether the next grouping or join moves the stream's records."""
        match self.steps[place]:
            case SelectKey() | FlatMap() | Totals() | Loose(how="processor"):
                return True
            case (
                Filter()
                | MapValues()
                | Expect()
                | FlatMapValues()
                | WithTime()
                | Branch()
                | FromHeader()
                | GlobalJoin()
                | Merge()
                | Process()
                | Shared()
            ):
                return any(self.has_new_key(parent) for parent in self.parents(place))
        return False

    def has_headers(self, place: int) -> bool:
        """Whether the records of a stream, or the rows of a table, have the headers of records that were read."""
        match self.steps[place]:
            case Source(has_headers=has_headers):
                return has_headers
            case (
                Filter()
                | MapValues()
                | Expect()
                | SelectKey()
                | FlatMap()
                | FlatMapValues()
                | WithTime()
                | Branch()
                | FromHeader()
                | Repartition()
                | Merge()
                | ToTable()
                | ToStream()
                | Suppress()
                | Aggregate(windows=None)
            ):
                return all(self.has_headers(parent) for parent in self.parents(place))
        return False

    @property
    def topics_with_headers(self) -> set[str]:
        return {step.topic for step in self.steps if isinstance(step, Source) and step.has_headers}

    def is_loose(self, place: int) -> bool:
        """Whether the order among keys is not known."""
        return isinstance(self.steps[place], Loose) or any(self.is_loose(parent) for parent in self.parents(place))

    def facts(self) -> list[int]:
        """The sinks of facts."""
        return [
            place
            for place, step in enumerate(self.steps)
            if isinstance(step, Sink) and (not self.is_table(step.parent) or self.is_final(step.parent))
        ]

    def updates(self) -> list[int]:
        """The sinks of updates."""
        return [place for place, step in enumerate(self.steps) if isinstance(step, Sink) and place not in self.facts()]


Data = dict[tuple[str, int], list[Record]]
"""The records of each topic partition, in the order of their offsets."""
