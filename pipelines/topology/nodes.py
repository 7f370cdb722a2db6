"""The nodes of a topology: what the DSL describes and the tasks execute. Nodes hold definitions, never data.

Each node has the name that Kafka Streams would give it. Splitting nodes into sub-topologies belongs to
``topology`` beside this, turning them into operators to ``pipelines.tasks.processor``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from pipelines.operators.fold import Fold
from pipelines.operators.functions import KeyType, UserFunction
from pipelines.operators.windows import WINDOW_COLUMNS, TimeWindows
from pipelines.serdes.partitioner import partition_of
from pipelines.serdes.row_type import RowType
from pipelines.serdes.serde import Serde
from pipelines.serdes.source import source_schema
from state.types import StoreSpec


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
    def key_type(self) -> KeyType:
        return KeyType(self.key, self.is_windowed)


@dataclass(eq=False, kw_only=True)
class Node:
    """One node, joined to its parent when it is made."""

    name: str
    record: RecordType
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.parent.children.append(self)

    @property
    def store_names(self) -> tuple[str, ...]:
        """Stores that ``describe()`` shows with the node."""
        return ()


@dataclass(eq=False, kw_only=True)
class SourceNode(Node):
    """A topic, decoded by its serdes."""

    topic: str
    key_serde: Serde
    value_serde: Serde

    @property
    def key(self) -> RowType:
        return self.record.key

    @property
    def value(self) -> RowType:
        return self.record.value


@dataclass(eq=False, kw_only=True)
class FilterNode(Node):
    predicate: pl.Expr | UserFunction
    is_table: bool


@dataclass(eq=False, kw_only=True)
class MapValuesNode(Node):
    mapper: Mapping[str, pl.Expr] | UserFunction
    is_table: bool


@dataclass(eq=False, kw_only=True)
class SelectKeyNode(Node):
    selector: Mapping[str, pl.Expr] | UserFunction


@dataclass(eq=False, kw_only=True)
class RepartitionNode(Node):
    """The boundary of two sub-topologies: rows go to the task that owns their key.

    Its columns are those of its parent; ``name`` names the edge. Rows with a null key do not pass.
    """

    @property
    def schema(self) -> pl.Schema:
        """Key columns, value columns, ``_ts _partition _offset _deleted``; place and time are the source record's."""
        return source_schema(self.record.key, self.record.value)

    def partition_of(self, rows: pl.DataFrame, count: int) -> pl.Series:
        """The target partition of each row, by Kafka's default partitioner over the key's bytes."""
        return partition_of(rows, list(self.record.key.columns), count)


@dataclass(eq=False, kw_only=True)
class TableNode(Node):
    """Makes a table of a stream's records (``table``, ``to_table``)."""

    store: StoreSpec

    @property
    def store_names(self) -> tuple[str, ...]:
        return (self.store.name,)


@dataclass(eq=False, kw_only=True)
class AggregateNode(Node):
    store: StoreSpec
    fold: Fold
    windows: TimeWindows | None

    @property
    def store_names(self) -> tuple[str, ...]:
        return (self.store.name,)


@dataclass(eq=False, kw_only=True)
class SuppressNode(Node):
    """Holds a windowed table's updates back until the window closes."""

    store: StoreSpec
    windows: TimeWindows

    @property
    def store_names(self) -> tuple[str, ...]:
        return (self.store.name,)

    @property
    def fused_with(self) -> AggregateNode | None:
        """The aggregation that is evaluated together with this, when nothing else sees its updates."""
        parent = self.parent
        return parent if isinstance(parent, AggregateNode) and parent.children == [self] else None


@dataclass(eq=False, kw_only=True)
class ToStreamNode(Node):
    """A table's updates from here on are records of a stream."""


@dataclass(eq=False, kw_only=True)
class TableSinkNode(Node):
    """Writes a Delta table."""

    table: str
    is_updates: bool
    """True for a table's updates, of which the newest a key stands; False for facts."""


def keeps_every_update(node: Node) -> bool:
    """Whether what follows an aggregation or table can tell apart its updates within an epoch.

    Only a sink of updates, directly or behind stateless operators on the table, keeps the newest a key.
    """
    return not all(_keeps_newest(child) for child in node.children)


def _keeps_newest(node: Node) -> bool:
    if isinstance(node, TableSinkNode):
        return node.is_updates
    if isinstance(node, (FilterNode, MapValuesNode)):
        return node.is_table and not keeps_every_update(node)
    return isinstance(node, ToStreamNode) and not keeps_every_update(node)
