"""The nodes of a topology: what the DSL describes and the tasks execute. Nodes hold definitions, never data.

Each node has the name that Kafka Streams would give it. ``topology`` splits nodes into sub-topologies, and
``weir.pipelines.tasks.operator_factory`` turns them into operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

import polars as pl

from weir.pipelines.arguments import duration_text
from weir.pipelines.expectations import OnViolation
from weir.pipelines.operators.fold import ColumnFold, Fold
from weir.pipelines.operators.functions import KeyType, UserFunction
from weir.pipelines.operators.last_headers import with_last_headers
from weir.pipelines.operators.mapping import PairExpressions
from weir.pipelines.operators.session_windows import SessionWindows
from weir.pipelines.operators.slices import Slices, slices_of
from weir.pipelines.operators.sliding_windows import SlidingWindows
from weir.pipelines.operators.suppression_order import BufferLimits
from weir.pipelines.operators.windows import WINDOW_COLUMNS, TimeWindows, UnlimitedWindows
from weir.pipelines.place import Place
from weir.pipelines.serdes.headers import HEADERS_TYPE
from weir.pipelines.serdes.partitioner import partition_of
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.serdes.source import source_schema
from weir.pipelines.serdes.timestamps import TimestampExtractor
from weir.pipelines.sinks.kafka import KafkaTopic
from weir.pipelines.sinks.sink import Sink
from weir.state.frames import has_null_row, picked
from weir.state.stores.specs import BOOKKEEPING, HELD_HEADERS, SHOWN
from weir.state.types import StoreSpec

SUPPRESSION_SETTING = "suppression"
"""The setting of a store whose updates are held back in it."""

Windows = TimeWindows | UnlimitedWindows | SessionWindows | SlidingWindows


RETENTION = "retention"
"""The setting of a store that says how long it keeps rows."""


@dataclass(frozen=True, kw_only=True)
class RecordType:
    """The columns that a node forwards: key, window bounds if the key is windowed, value.

    A value column may share its name with a key column only where both are the same column by construction, for
    example after ``group_by("tailnum")`` of a value column.
    """

    key: RowType
    value: RowType
    is_windowed: bool = False

    @cached_property
    def key_columns(self) -> pl.Schema:
        return pl.Schema({**self.key.columns, **(WINDOW_COLUMNS if self.is_windowed else {})})

    @cached_property
    def columns(self) -> pl.Schema:
        return pl.Schema({**self.key_columns, **self.value.columns})

    def declared_as(self, names: Mapping[str, str]) -> dict[str, Any]:
        """As ``RowType.declared_as``, for key and value columns."""
        return {**self.key.declared_as(names), **self.value.declared_as(names)}

    @property
    def beside_key(self) -> pl.Schema:
        """The value columns that are not also key columns."""
        return pl.Schema({name: dtype for name, dtype in self.value.columns.items() if name not in self.key_columns})

    @property
    def key_type(self) -> KeyType:
        return KeyType(self.key, self.is_windowed)


@dataclass(eq=False, kw_only=True)
class Node:
    """One node. Only sources and global tables have no parents; every other node is a ``ChildNode``."""

    name: str
    record: RecordType
    children: list[ChildNode] = field(default_factory=list)
    place: Place | None = field(default_factory=Place.of_call, repr=False)
    """The call of the program that made the node, for errors alone: nothing stored or shown depends on it."""

    @property
    def parents(self) -> tuple[Node, ...]:
        """All parents, in the order in which an operator gets their rows."""
        return ()

    @property
    def has_headers(self) -> bool:
        """Whether what it forwards has headers: those of the record that caused it."""
        return False

    @property
    def looked_up(self) -> tuple[Node, ...]:
        """Parents whose rows the node only looks up: they trigger nothing by themselves."""
        return ()

    @property
    def is_join(self) -> bool:
        """Whether equal keys of all parents must meet in one task."""
        return False

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        """Stores that the node keeps."""
        return ()

    def takes_null_keys(self, parent: Node) -> bool:
        """Whether records of ``parent`` without a key have results (KIP-962), where keys are what brings rows together;
        otherwise the node drops and counts them."""
        return False

    @property
    def foreign_stores(self) -> tuple[StoreSpec, ...]:
        """Stores of other nodes in which the node looks up rows."""
        return ()

    @property
    def store_names(self) -> tuple[str, ...]:
        """Stores that ``describe()`` shows with the node."""
        return tuple(store.name for store in self.stores)

    @property
    def made_up_names(self) -> tuple[str, ...]:
        """Those of its stores whose names have a running number, since the program gave none."""
        return ()

    def take_names(self, names: Mapping[str, str]) -> None:
        """Replace made-up names of stores and edges, and no others."""

    @property
    def settings(self) -> Mapping[str, Mapping[str, str]]:
        """The settings of each store that can change over the same rows, as ``weir plan`` names them."""
        return {
            store.name: {RETENTION: duration_text(timedelta(milliseconds=store.retention_ms))}
            for store in self.stores
            if store.retention_ms is not None
        }


@dataclass(eq=False, kw_only=True)
class ChildNode(Node):
    """A node with at least one parent, to whose children it adds itself."""

    parent: Node
    """The first or only parent: of a join, its left side."""
    others: tuple[Node, ...] = ()
    """Further parents: of a join, its right side."""

    def __post_init__(self) -> None:
        for parent in dict.fromkeys(self.parents):
            parent.children.append(self)

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.parent, *self.others)

    @property
    def has_headers(self) -> bool:
        return any(parent.has_headers for parent in self.parents if parent not in self.looked_up)


@dataclass(eq=False, kw_only=True)
class SourceNode(Node):
    """A topic, decoded by its serdes."""

    topic: str
    """Its name; where the topics of a pattern are not known, the pattern's text."""
    pattern: re.Pattern[str] | None = None
    """The pattern of the program by which it is read."""
    is_open: bool = False
    """Whether it stands for the topics of a pattern, of which none is known."""
    key_serde: Serde
    value_serde: Serde
    timestamp: TimestampExtractor
    idle_after_ms: int | None = None
    has_headers: bool = False
    """Whether the program asked for the records' headers."""
    priority: int = 1
    """How many times the time of a source of priority 1 its tasks get where they share a slot."""

    @property
    def key(self) -> RowType:
        return self.record.key

    @property
    def value(self) -> RowType:
        return self.record.value

    @property
    def declared(self) -> str:
        """What the program names: the topic, or the text of the pattern."""
        return self.topic if self.pattern is None else self.pattern.pattern

    def key_bytes(self, keys: pl.DataFrame) -> list[bytes]:
        """Keys as the topic's producers write them; the columns match the topic's by position."""
        items = self.key.to_objects(keys.rename(dict(zip(keys.columns, self.key.columns, strict=True))))
        return [self.key_serde.encode(item) or b"" for item in items]


@dataclass(eq=False, kw_only=True)
class FilterNode(ChildNode):
    predicate: pl.Expr | UserFunction
    is_negated: bool
    is_table: bool


@dataclass(eq=False, kw_only=True)
class ExpectNode(ChildNode):
    """Counts the records that meet an expectation, and those that do not."""

    expectation: str
    """The name that the program gave it."""
    predicate: pl.Expr | UserFunction
    on_violation: OnViolation
    is_table: bool


@dataclass(eq=False, kw_only=True)
class MapValuesNode(ChildNode):
    mapper: Mapping[str, pl.Expr] | UserFunction
    is_table: bool


@dataclass(eq=False, kw_only=True)
class WithTimestampNode(ChildNode):
    """Gives the records of a stream other times."""

    time: pl.Expr | UserFunction
    takes_time: bool
    result: RowType
    skips_invalid: bool


@dataclass(eq=False, kw_only=True)
class SelectKeyNode(ChildNode):
    selector: Mapping[str, pl.Expr] | UserFunction


@dataclass(eq=False, kw_only=True)
class MapNode(ChildNode):
    """New keys and values: from expressions, or from a function that gives a pair, or any number of pairs if flat."""

    mapper: PairExpressions | UserFunction
    is_flat: bool


@dataclass(eq=False, kw_only=True)
class FlatMapValuesNode(ChildNode):
    mapper: Mapping[str, pl.Expr] | UserFunction
    exploded: str | None
    """The list column whose elements become records, if expressions make the values."""


@dataclass(eq=False, kw_only=True)
class PeekNode(ChildNode):
    """Shows records to a function; without children it is a ``for_each``."""

    action: UserFunction


@dataclass(eq=False, kw_only=True)
class SplitNode(ChildNode):
    """Decides which of its children, all branches, gets a record."""

    predicates: list[pl.Expr | UserFunction]


@dataclass(eq=False, kw_only=True)
class BranchNode(ChildNode):
    index: int | None
    """The index of its predicate; None for the default branch."""


@dataclass(frozen=True, kw_only=True)
class RepartitionNames:
    """What Kafka Streams calls a repartition's topic and the nodes around it."""

    topic: str
    sink: str
    source: str
    filter: str | None = None
    """None where nothing stands before the sink."""

    @classmethod
    def of(cls, topic: str) -> RepartitionNames:
        """The names that follow from the topic's."""
        return cls(topic=topic, sink=f"{topic}-sink", source=f"{topic}-source", filter=f"{topic}-filter")


@dataclass(eq=False, kw_only=True)
class RepartitionNode(ChildNode):
    """The boundary between two sub-topologies: rows go to the task that owns their key.

    Its columns are those of its parent; ``name`` names the edge, here and in stored data.
    """

    names: RepartitionNames
    is_explicit: bool = False
    """Whether the program asked for it; otherwise a new key made it necessary."""
    partitions: int | None = None
    """How many tasks take its rows; None for as many as write them."""

    def take_names(self, names: Mapping[str, str]) -> None:
        self.name = names.get(self.name, self.name)

    @property
    def shown_names(self) -> RepartitionNames:
        """The names in ``describe()``: those of Kafka Streams, or the edge's where Kafka Streams would have one topic
        for several edges of one stream."""
        topics = [child.names.topic for child in self.parent.children if isinstance(child, RepartitionNode)]
        is_own = self.name == self.names.topic or topics.count(self.names.topic) == 1
        return self.names if is_own else RepartitionNames.of(self.name)

    @property
    def keeps_null_keys(self) -> bool:
        """Whether rows with a null key pass: if the program asked for the repartition, or one of those that share it
        takes them. The others then drop them."""
        return self.is_explicit or any(child.takes_null_keys(self) for child in self.children)

    @property
    def schema(self) -> pl.Schema:
        """Key columns, value columns, ``_ts _partition _offset _deleted``: the partition of the task that sends, and
        the turn of the record that caused the row; then ``_headers``, if the rows have them."""
        return source_schema(self.record.columns, has_headers=self.has_headers)

    @property
    def is_message(self) -> bool:
        """Whether its rows go to tasks that exist for other inputs."""
        return False

    def partition_of(
        self, rows: pl.DataFrame, count: int, bytes_of: Callable[[pl.DataFrame], Sequence[bytes]]
    ) -> pl.Series:
        """The target partition of each row, by Kafka's default partitioner over the bytes of its key. A row with a null
        key keeps the number of its record's partition, modulo ``count``, so that it depends on the topics alone."""
        keys = list(self.record.key.columns)
        if not has_null_row(picked(rows, keys)):
            return partition_of(rows, keys, count, bytes_of)
        present = rows.select(pl.any_horizontal(pl.col(keys).is_not_null())).to_series().arg_true()
        return (
            (rows.get_column("_partition") % count)
            .cast(pl.Int32)
            .scatter(present, partition_of(rows[present], keys, count, bytes_of))
        )


@dataclass(eq=False, kw_only=True)
class TableNode(ChildNode):
    """Makes a table from a stream's records (``table``, ``to_table``)."""

    store: StoreSpec
    keeps_final_results: bool = False
    """Whether it keeps final results for those who look them up: its store then has a made-up name."""

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (self.store,)

    @property
    def made_up_names(self) -> tuple[str, ...]:
        return (self.store.name,) if self.keeps_final_results else ()

    def take_names(self, names: Mapping[str, str]) -> None:
        if self.keeps_final_results:
            self.store = renamed(self.store, names)


@dataclass(eq=False, kw_only=True)
class KeptTableNode(TableNode):
    """Keeps the rows that its parent, a filter, mapping or expectation of a table, gives. In Kafka Streams it is part
    of that."""


DerivedTableNode = FilterNode | MapValuesNode | ExpectNode | KeptTableNode
"""Makes a table of another, row by row, or a stream of a stream."""


@dataclass(eq=False, kw_only=True)
class AggregateNode(ChildNode):
    store: StoreSpec
    fold: Fold
    windows: Windows | None
    is_final: bool = False
    """Whether it forwards a window once, when the window closes (``EmitStrategy.on_window_close``)."""
    late_to: str | None = None
    """The name of the node that gets the late records."""
    idle_after_ms: int | None = None
    keeps_headers: bool = False
    """Whether its store has the headers of the last record of each window."""

    def keep_headers(self) -> None:
        """Keep those of each window's last record in the store, for a suppression that is evaluated with it."""
        if self.has_headers and not self.keeps_headers:
            self.keeps_headers, self.fold = True, with_last_headers(self.fold)
            self.store = replace(self.store, value=pl.Schema({**self.store.value, HELD_HEADERS: HEADERS_TYPE}))

    @property
    def unseen(self) -> StoreSpec | None:
        """For sliding windows: closed windows with the records that they missed, from which later ones are derived."""
        if not isinstance(self.windows, SlidingWindows):
            return None
        return replace(self.store, name=f"{self.store.name}-unseen", supplier=None)

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (self.store, self.unseen) if self.unseen else (self.store,)

    @property
    def settings(self) -> Mapping[str, Mapping[str, str]]:
        settings, grace_ms = super().settings, getattr(self.windows, "grace_ms", None)
        if grace_ms is None:
            return settings
        own = {"grace": duration_text(timedelta(milliseconds=grace_ms))}
        if self.forwards_final:
            own[SUPPRESSION_SETTING] = "until windows close"
        return {**settings, self.store.name: {**settings.get(self.store.name, {}), **own}}

    @property
    def forwards_final(self) -> bool:
        """Whether it forwards only closed windows: it emits on close, or is evaluated with its suppression."""
        return self.is_final or any(
            isinstance(child, SuppressNode) and child.fused_with is self for child in self.children
        )

    @property
    def hops(self) -> Slices | None:
        """The slices of its windows, if they hop and it aggregates columns; else None."""
        match self.windows, self.fold:
            case TimeWindows() as windows, ColumnFold() as fold:
                return slices_of(windows, fold, self.store)
        return None

    @property
    def slices(self) -> Slices | None:
        """The slices of its windows, where its store has them in place of windows: if these are forwarded only when
        they close, are not kept any longer, and can be merged of them. Else None."""
        hops, store = self.hops, self.store
        is_fit = self.forwards_final and store.retention_ms is None and store.supplier is None
        return hops if hops is not None and not hops.fold.is_ordered and is_fit else None

    @property
    def store_names(self) -> tuple[str, ...]:
        return (self.store.name,)


@dataclass(eq=False, kw_only=True)
class LateRecordsNode(ChildNode):
    """The records that its parent, a windowed aggregation, dropped as late, with the bounds of the closed window."""


@dataclass(eq=False, kw_only=True)
class SuppressNode(ChildNode):
    """Holds a table's updates back, until their window closes or for a time."""

    store: StoreSpec
    delay_ms: int
    """How long a row is held after its key's place in the buffer: the end of its window, or its first timestamp, or its
    greatest if updates restart the wait."""
    is_final: bool
    """Whether it waits for windows to close."""
    limits: BufferLimits
    windows: Windows | None = None
    """The windows that have to close."""
    idle_after_ms: int | None = None
    is_named: bool = False
    """Whether the program gave its name, and so its store's."""
    restarts: bool = False
    """Whether each update of a key restarts its wait."""

    def be_looked_up(self) -> None:
        """Also keep what was last forwarded of the keys that are held: the table's rows, for those who look them up."""
        value = self.store.value
        if SHOWN not in value:
            forwarded = {name: dtype for name, dtype in value.items() if name not in BOOKKEEPING}
            shown = pl.Struct({**forwarded, "_ts": pl.Int64()})
            self.store = replace(self.store, value=pl.Schema({**value, SHOWN: shown}))

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        """None if it is evaluated with its aggregation, which keeps the open windows."""
        return () if self.fused_with else (self.store,)

    @property
    def settings(self) -> Mapping[str, Mapping[str, str]]:
        return {**super().settings, **{store.name: {SUPPRESSION_SETTING: self.holds_for} for store in self.stores}}

    @property
    def holds_for(self) -> str:
        """How long it holds an update, in words."""
        if self.is_final:
            return "until windows close"
        delay = duration_text(timedelta(milliseconds=self.delay_ms))
        return f"until there was no update for {delay}" if self.restarts else f"for {delay}"

    @property
    def store_names(self) -> tuple[str, ...]:
        return (self.store.name,)

    @property
    def made_up_names(self) -> tuple[str, ...]:
        return () if self.is_named else tuple(store.name for store in self.stores)

    def take_names(self, names: Mapping[str, str]) -> None:
        if not self.is_named:
            self.store = renamed(self.store, names)

    @property
    def fused_with(self) -> AggregateNode | None:
        """The aggregation that is evaluated together with this, if nothing else sees its updates."""
        parent = self.parent
        is_fit = self.is_final and not self.limits
        return parent if is_fit and isinstance(parent, AggregateNode) and readers_of(parent) == [self] else None


@dataclass(eq=False, kw_only=True)
class MergeNode(ChildNode):
    """The records of several streams as one stream."""


@dataclass(eq=False, kw_only=True)
class SeveralTopicsNode(MergeNode):
    """The records of several topics as one stream. In Kafka Streams it is one source; here each topic has its own."""

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        """The topics, in the order in which they were named."""
        return tuple(source for source in self.parents if isinstance(source, SourceNode))


@dataclass(eq=False, kw_only=True)
class ToStreamNode(ChildNode):
    """From here on a table's updates are records of a stream."""


@dataclass(eq=False, kw_only=True)
class TableSinkNode(ChildNode):
    """Writes a Delta table."""

    table: str
    is_updates: bool
    """True for a table's updates, of which the newest per key is valid; False for facts."""
    keeps_all: bool = False
    """Whether every update is written, not only the newest per key and epoch."""
    refresh_ms: int | None = None
    """For a table of upserts, how often it is brought up to date at most; None for a table that commits append to."""
    partition_by: tuple[str, ...] = ()
    """The columns by which a table in Delta is partitioned."""
    keeps_headers: bool = False
    """Whether a table in Delta has the column ``_headers``."""
    sink: Sink | None = None
    """Where the rows leave for; the table is then the sink's outbox."""
    keeps_times: bool = False
    """Whether the outbox says by which time each row belongs to a day."""

    @property
    def name_given(self) -> str:
        """What the program calls its rows' place."""
        return self.sink.name if self.sink else self.table

    @property
    def collapses(self) -> bool:
        return self.is_updates and not self.keeps_all

    @property
    def day_column(self) -> str:
        """The time that says to which day a row belongs: ``window_start`` or ``_ts``."""
        return "window_start" if self.record.is_windowed else "_ts"

    @property
    def key_columns(self) -> list[str]:
        """The columns of the table, or of the outbox, by which the newest update counts."""
        return ["key"] if isinstance(self.sink, KafkaTopic) else list(self.record.key_columns)


def renamed(store: StoreSpec, names: Mapping[str, str]) -> StoreSpec:
    """``store`` under the name that ``names`` has for it, if any."""
    return replace(store, name=names[store.name]) if store.name in names else store


def readers_of(node: Node) -> list[Node]:
    """The nodes that get what ``node`` forwards."""
    return [child for child in node.children if not isinstance(child, LateRecordsNode)]


ROW_BY_ROW: tuple[type[Node], ...] = (
    BranchNode,
    ExpectNode,
    FilterNode,
    FlatMapValuesNode,
    MapNode,
    MapValuesNode,
    MergeNode,
    PeekNode,
    SelectKeyNode,
    SplitNode,
    ToStreamNode,
    WithTimestampNode,
)
"""Nodes that make their rows of one row each, whatever came before it."""
