"""The nodes of a topology: what the DSL describes and the tasks execute. Nodes hold definitions, never data.

Each node has the name that Kafka Streams would give it. Splitting nodes into sub-topologies belongs to
``topology`` beside this, turning them into operators to ``weir.pipelines.tasks.operator_factory``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import polars as pl

from weir.pipelines.arguments import duration_text
from weir.pipelines.operators.fold import Fold
from weir.pipelines.operators.functions import KeyType, UserFunction
from weir.pipelines.operators.mapping import PairExpressions
from weir.pipelines.operators.session_windows import SessionWindows
from weir.pipelines.operators.sliding_windows import SlidingWindows
from weir.pipelines.operators.suppression_order import BufferLimits
from weir.pipelines.operators.windows import WINDOW_COLUMNS, TimeWindows, UnlimitedWindows
from weir.pipelines.serdes.partitioner import partition_of
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.serdes.source import source_schema
from weir.pipelines.serdes.timestamps import TimestampExtractor
from weir.state.types import StoreSpec

Windows = TimeWindows | UnlimitedWindows | SessionWindows | SlidingWindows


@dataclass(frozen=True, kw_only=True)
class RecordType:
    """The columns that a node forwards: key, window bounds if the key is windowed, value.

    A value column may share its name with a key column only where both are one column by construction, as
    behind ``group_by("tailnum")`` of a value column.
    """

    key: RowType
    value: RowType
    is_windowed: bool = False

    @property
    def key_columns(self) -> pl.Schema:
        return pl.Schema({**self.key.columns, **(WINDOW_COLUMNS if self.is_windowed else {})})

    @property
    def columns(self) -> pl.Schema:
        return pl.Schema({**self.key_columns, **self.value.columns})

    @property
    def beside_key(self) -> pl.Schema:
        """The value columns that are not key columns too."""
        return pl.Schema({name: dtype for name, dtype in self.value.columns.items() if name not in self.key_columns})

    @property
    def key_type(self) -> KeyType:
        return KeyType(self.key, self.is_windowed)


@dataclass(eq=False, kw_only=True)
class Node:
    """One node, joined to its parents when it is made."""

    name: str
    record: RecordType
    parent: Node | None = None
    """The only one, or the first: of a join its left side."""
    others: tuple[Node, ...] = ()
    """Further parents: of a join its right side."""
    children: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        for parent in dict.fromkeys(self.parents):
            parent.children.append(self)

    @property
    def parents(self) -> tuple[Node, ...]:
        """All of them, in the order in which an operator gets their rows."""
        return () if self.parent is None else (self.parent, *self.others)

    @property
    def looked_up(self) -> tuple[Node, ...]:
        """Parents whose rows the node only looks up: they bring nothing about by themselves."""
        return ()

    @property
    def is_join(self) -> bool:
        """Whether equal keys of all parents have to meet in one task."""
        return False

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        """What the node keeps."""
        return ()

    def entrances(self, parent: Node) -> tuple[str, ...]:
        """What ``describe()`` shows behind ``parent``."""
        return (self.name,)

    @property
    def foreign_stores(self) -> tuple[StoreSpec, ...]:
        """Stores of other nodes that the node looks into."""
        return ()

    @property
    def store_names(self) -> tuple[str, ...]:
        """Stores that ``describe()`` shows with the node."""
        return tuple(store.name for store in self.stores)

    @property
    def settings(self) -> Mapping[str, Mapping[str, str]]:
        """By store, what says how it is used and may be another over the same rows, as ``weir plan`` names it."""
        return {
            store.name: {"retention": duration_text(timedelta(milliseconds=store.retention_ms))}
            for store in self.stores
            if store.retention_ms is not None
        }


@dataclass(eq=False, kw_only=True)
class SourceNode(Node):
    """A topic, decoded by its serdes."""

    topic: str
    key_serde: Serde
    value_serde: Serde
    timestamp: TimestampExtractor
    idle_after_ms: int | None = None

    @property
    def key(self) -> RowType:
        return self.record.key

    @property
    def value(self) -> RowType:
        return self.record.value

    def key_bytes(self, keys: pl.DataFrame) -> list[bytes]:
        """Keys as the topic's producers write them; the columns match its own by position."""
        items = self.key.to_objects(keys.rename(dict(zip(keys.columns, self.key.columns, strict=True))))
        return [self.key_serde.encode(item) or b"" for item in items]


@dataclass(eq=False, kw_only=True)
class FilterNode(Node):
    predicate: pl.Expr | UserFunction
    is_negated: bool
    is_table: bool


@dataclass(eq=False, kw_only=True)
class MapValuesNode(Node):
    mapper: Mapping[str, pl.Expr] | UserFunction
    is_table: bool


@dataclass(eq=False, kw_only=True)
class SelectKeyNode(Node):
    selector: Mapping[str, pl.Expr] | UserFunction


@dataclass(eq=False, kw_only=True)
class MapNode(Node):
    """New keys and values: of expressions, or of a function that gives a pair, or any number of them if flat."""

    mapper: PairExpressions | UserFunction
    is_flat: bool


@dataclass(eq=False, kw_only=True)
class FlatMapValuesNode(Node):
    mapper: Mapping[str, pl.Expr] | UserFunction
    exploded: str | None
    """Of expressions, the list column whose elements become records."""


@dataclass(eq=False, kw_only=True)
class PeekNode(Node):
    """Shows records to a function; with nothing behind it, a ``for_each``."""

    action: UserFunction


@dataclass(eq=False, kw_only=True)
class SplitNode(Node):
    """Decides which of its children, all of them branches, gets a record."""

    predicates: list[pl.Expr | UserFunction]


@dataclass(eq=False, kw_only=True)
class BranchNode(Node):
    index: int | None
    """Of its predicate; None for the default branch."""


@dataclass(eq=False, kw_only=True)
class RepartitionNode(Node):
    """The boundary of two sub-topologies: rows go to the task that owns their key.

    Its columns are those of its parent; ``name`` names the edge. Rows with a null key pass only through one that the
    program asked for: they keep their partition's number as far as there are so many.
    """

    is_explicit: bool = False
    """Whether the program asked for it, and not a grouping by a new key."""
    partitions: int | None = None
    """How many tasks take its rows; None for as many as write them."""

    def entrances(self, parent: Node) -> tuple[str, ...]:
        return (f"{self.name}-filter",)

    @property
    def schema(self) -> pl.Schema:
        """Key columns, value columns, ``_ts _partition _offset _deleted``; place and time are the source record's."""
        return source_schema(self.record.columns)

    @property
    def keeps_order(self) -> bool:
        """Whether its rows stay in the order in which each task sent them (``Epoch.sent``), whatever their times."""
        return False

    @property
    def is_message(self) -> bool:
        """Whether its rows go to tasks that are there for other inputs."""
        return False

    def partition_of(
        self, rows: pl.DataFrame, count: int, bytes_of: Callable[[pl.DataFrame], Sequence[bytes]]
    ) -> pl.Series:
        """The target partition of each row, by Kafka's default partitioner over the bytes of its key."""
        keys = list(self.record.key.columns)
        absent = rows.select(pl.all_horizontal(pl.col(keys).is_null())).to_series()
        if not absent.any():
            return partition_of(rows, keys, count, bytes_of)
        present = (~absent).arg_true()
        return (
            (rows.get_column("_partition") % count)
            .cast(pl.Int32)
            .scatter(present, partition_of(rows[present], keys, count, bytes_of))
        )


@dataclass(eq=False, kw_only=True)
class TableNode(Node):
    """Makes a table of a stream's records (``table``, ``to_table``)."""

    store: StoreSpec

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (self.store,)


@dataclass(eq=False, kw_only=True)
class AggregateNode(Node):
    store: StoreSpec
    fold: Fold
    windows: Windows | None
    is_final: bool = False
    """Whether it forwards a window once, when the window closes (``EmitStrategy.on_window_close``)."""
    late_to: str | None = None
    """The name of the node that gets the records that are late."""
    idle_after_ms: int | None = None

    @property
    def unseen(self) -> StoreSpec | None:
        """Of sliding windows: closed ones with the records that they missed, of which others will be made."""
        if not isinstance(self.windows, SlidingWindows):
            return None
        return replace(self.store, name=f"{self.store.name}-unseen")

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (self.store, self.unseen) if self.unseen else (self.store,)

    @property
    def store_names(self) -> tuple[str, ...]:
        return (self.store.name,)


@dataclass(eq=False, kw_only=True)
class LateRecordsNode(Node):
    """The records that its parent, a windowed aggregation, dropped as late, with the bounds of the closed window."""


@dataclass(eq=False, kw_only=True)
class SuppressNode(Node):
    """Holds a table's updates back, until their window closes or for a time."""

    store: StoreSpec
    delay_ms: int
    """After a key's place in the buffer: the end of its window, or its first timestamp."""
    is_final: bool
    """Whether it waits for windows to close."""
    limits: BufferLimits
    windows: Windows | None = None
    """That have to close."""
    idle_after_ms: int | None = None

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        """None where it is evaluated with its aggregation, which keeps what is open."""
        return () if self.fused_with else (self.store,)

    @property
    def store_names(self) -> tuple[str, ...]:
        return (self.store.name,)

    @property
    def fused_with(self) -> AggregateNode | None:
        """The aggregation that is evaluated together with this, when nothing else sees its updates."""
        parent = self.parent
        is_fit = self.is_final and not self.limits
        return parent if is_fit and isinstance(parent, AggregateNode) and readers_of(parent) == [self] else None


@dataclass(eq=False, kw_only=True)
class MergeNode(Node):
    """The records of several streams as one stream."""


@dataclass(eq=False, kw_only=True)
class SeveralTopicsNode(MergeNode):
    """The records of several topics as one stream. In Kafka Streams it is one source; here each topic has its own."""

    @property
    def topics(self) -> tuple[str, ...]:
        """In the order in which they were named."""
        return tuple(source.topic for source in self.parents if isinstance(source, SourceNode))


@dataclass(eq=False, kw_only=True)
class ToStreamNode(Node):
    """A table's updates from here on are records of a stream."""


@dataclass(eq=False, kw_only=True)
class TableSinkNode(Node):
    """Writes a Delta table."""

    table: str
    is_updates: bool
    """True for a table's updates, of which the newest a key stands; False for facts."""
    keeps_all: bool = False
    """Whether every update is written, not only the newest a key and epoch."""

    @property
    def collapses(self) -> bool:
        return self.is_updates and not self.keeps_all


def readers_of(node: Node) -> list[Node]:
    """The nodes that get what ``node`` forwards."""
    return [child for child in node.children if not isinstance(child, LateRecordsNode)]
