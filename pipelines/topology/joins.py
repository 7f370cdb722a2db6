"""The nodes of joins, and the stores in which a joined table is kept, so that it can be looked up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from weir.pipelines.arguments import duration_text
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.join_windows import JoinWindows
from weir.pipelines.operators.joiner import Joiner
from weir.pipelines.operators.stream_join import StreamSide
from weir.pipelines.operators.table_table_join import JoinKind
from weir.pipelines.place import Place
from weir.pipelines.topology.nodes import (
    AggregateNode,
    ChildNode,
    ExpectNode,
    FilterNode,
    KeptTableNode,
    MapValuesNode,
    Node,
    SuppressNode,
    TableNode,
    ToStreamNode,
)
from weir.state.types import StoreKind, StoreSpec


@dataclass(eq=False, kw_only=True)
class JoinBufferNode(ChildNode):
    """Holds the records of a stream for the grace of the join that follows; in Kafka Streams it is part of the join."""

    store: StoreSpec
    grace_ms: int

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (self.store,)

    @property
    def store_names(self) -> tuple[str, ...]:
        """None: they are shown with the join."""
        return ()

    @property
    def settings(self) -> Mapping[str, Mapping[str, str]]:
        return {self.store.name: {"grace": duration_text(timedelta(milliseconds=self.grace_ms))}}

    def takes_null_keys(self, parent: Node) -> bool:
        return any(child.takes_null_keys(self) for child in self.children)


@dataclass(eq=False, kw_only=True)
class StreamTableJoinNode(ChildNode):
    """Joins each record of the stream with the table's row of its key, which is looked up."""

    joiner: Joiner
    is_left: bool

    @property
    def looked_up(self) -> tuple[Node, ...]:
        return self.others

    @property
    def is_join(self) -> bool:
        return True

    def takes_null_keys(self, parent: Node) -> bool:
        return self.is_left

    @property
    def foreign_stores(self) -> tuple[StoreSpec, ...]:
        return tuple(base.store for base in bases(self.others[0]))

    @property
    def store_names(self) -> tuple[str, ...]:
        held = self.parent.stores if isinstance(self.parent, JoinBufferNode) else ()
        return tuple(store.name for store in (*held, *self.foreign_stores))


@dataclass(eq=False, kw_only=True)
class TableTableJoinNode(ChildNode):
    """The rows of two tables with equal keys, as a table. In Kafka Streams these are three processors."""

    joiner: Joiner
    kind: JoinKind
    this_name: str
    other_name: str

    @property
    def is_join(self) -> bool:
        return True

    @property
    def foreign_stores(self) -> tuple[StoreSpec, ...]:
        return tuple(base.store for parent in self.parents for base in bases(parent))


@dataclass(eq=False, kw_only=True)
class StreamJoinNode(ChildNode):
    """Records of two streams that are close in time. In Kafka Streams these are five processors."""

    windows: JoinWindows
    joiner: Joiner
    left: StreamSide
    right: StreamSide
    held: StoreSpec | None
    windowed_names: tuple[str, str]
    join_names: tuple[str, str]

    @property
    def is_join(self) -> bool:
        return True

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        return (self.left.store, self.right.store, *((self.held,) if self.held else ()))

    def takes_null_keys(self, parent: Node) -> bool:
        sides = zip(self.parents, (self.left, self.right), strict=True)
        return any(side.is_outer for one, side in sides if one is parent)


@dataclass(eq=False, kw_only=True)
class NewestToStreamNode(ToStreamNode):
    """The updates of a versioned table that bring the newest row of their key."""

    @property
    def foreign_stores(self) -> tuple[StoreSpec, ...]:
        return tuple(base.store for parent in self.parents for base in bases(parent))


def versioned_store(table: Node) -> StoreSpec | None:
    """The versioned store behind ``table``, which may be filtered or mapped; None if the table is not versioned."""
    match table:
        case TableNode() if table.store.kind is StoreKind.VERSIONED:
            return table.store
        case FilterNode(is_table=True) | MapValuesNode(is_table=True) | ExpectNode(is_table=True):
            return versioned_store(table.parent)
    return None


def is_filtered(table: Node) -> bool:
    """Whether ``table`` is filtered; it may be mapped too."""
    if isinstance(table, (MapValuesNode, ExpectNode, KeptTableNode)):
        return is_filtered(table.parent)
    return isinstance(table, FilterNode)


BaseNode = TableNode | AggregateNode | SuppressNode
"""A node whose store is where a table is looked up."""


def be_looked_up(*tables: Node, lasting: bool = False) -> None:
    """Prepare ``tables`` for those who look them up; with ``lasting`` no rows may expire.

    Raises:
        TopologyError: A table cannot be looked up by key.
    """
    for table in tables:
        for base in (lasting_bases if lasting else bases)(table):
            if isinstance(base, SuppressNode):
                base.be_looked_up()


def bases(table: Node) -> tuple[BaseNode, ...]:
    """The nodes whose stores keep what ``table`` is made from, left before right.

    Raises:
        TopologyError: The table cannot be looked up by key.
    """
    match table:
        case TableNode() if table.store.retention_ms is None or table.store.kind is StoreKind.VERSIONED:
            return (table,)
        case AggregateNode() if not table.is_final:
            return (table,)
        case FilterNode(is_table=True) | MapValuesNode(is_table=True) | ExpectNode(is_table=True):
            return bases(table.parent)
        case SuppressNode(is_final=False):
            return (table, *bases(table.parent))
        case TableTableJoinNode():
            return tuple(base for parent in table.parents for base in lasting_bases(parent))
    raise _not_found_later(table, "expire" if isinstance(table, TableNode) else "are not kept")


def lasting_bases(table: Node) -> tuple[BaseNode, ...]:
    """As ``bases``, of a table whose rows stay until they are deleted.

    Raises:
        TopologyError: The table cannot be looked up by key, or is windowed, so that its rows expire.
    """
    found = bases(table)
    if any(isinstance(base, AggregateNode) and base.windows is not None for base in found):
        raise _not_found_later(table, "expire with their windows")
    return found


def _not_found_later(table: Node, why: str) -> TopologyError:
    return TopologyError(
        f"the rows of {table.name} {why}, so a join cannot look them up, and a grouping cannot take them out of the "
        'group that they leave; keep them first, with .to_stream().to_table("name")',
        places=(Place.of_call(), table.place),
    )
