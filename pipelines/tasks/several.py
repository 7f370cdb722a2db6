"""What executes a node with several parents, and how the tables are looked up that it joins."""

from __future__ import annotations

from collections.abc import Callable

from weir.pipelines.operators.changes import SelectChanges
from weir.pipelines.operators.cogroup import Cogroup
from weir.pipelines.operators.epoch import Operator, SeveralInputs
from weir.pipelines.operators.foreign_key import Naming, ResponseJoin, SubscriptionJoin, SubscriptionSend
from weir.pipelines.operators.global_join import GlobalTableJoin
from weir.pipelines.operators.mapping import SelectKey
from weir.pipelines.operators.merge import Merge
from weir.pipelines.operators.stream_join import StreamJoin
from weir.pipelines.operators.stream_table_join import StreamTableJoin
from weir.pipelines.operators.table_table_join import JoinedSide, JoinedTable, TableTableJoin
from weir.pipelines.operators.table_view import DerivedTable, StoredTable, TableView
from weir.pipelines.operators.versioned import NewestRows, VersionedTable
from weir.pipelines.serdes.source import source_schema
from weir.pipelines.topology.arrival import is_written_first, parents_by_arrival
from weir.pipelines.topology.cogroups import CogroupNode
from weir.pipelines.topology.foreign_key import ResponseJoinNode, SubscriptionJoinNode, SubscriptionSendNode
from weir.pipelines.topology.global_tables import GlobalJoinNode
from weir.pipelines.topology.joins import (
    StreamJoinNode,
    StreamTableJoinNode,
    TableTableJoinNode,
    bases,
    is_filtered,
    versioned_store,
)
from weir.pipelines.topology.nodes import AggregateNode, FilterNode, MapValuesNode, MergeNode, Node, TableNode
from weir.pipelines.topology.table_groups import ChangeSelectNode
from weir.state.engine.contract import StateView
from weir.state.types import StoreKind, StoreSpec

Operators = Callable[[Node], Operator | None]
"""The operators of nodes with one parent."""


def changes_of(node: ChangeSelectNode, operators: Operators) -> SelectChanges:
    """The operator that groups a table by another key."""
    record = node.parent.record
    selector = SelectKey(selector=node.selector, key=record.key_type, value=record.value, result=node.record.key)
    return SelectChanges(
        table=view_of(node.parent, operators),
        table_key=tuple(record.key_columns),
        selector=selector,
        newest=newest_rows_of(node.parent, operators),
        clock=node.name,
    )


def subscriptions_of(node: SubscriptionSendNode, operators: Operators) -> SubscriptionSend:
    """The operator that a table's updates go through to a table that they join by foreign key."""
    return SubscriptionSend(
        left=_side_of(node.parent, operators), key=node.key, naming=_naming_of(node), clock=node.name
    )


def _naming_of(node: SubscriptionSendNode) -> Naming:
    record = node.parent.record
    selector = SelectKey(selector=node.selector, key=record.key_type, value=record.value, result=node.selected.key)
    return Naming(
        selector=selector,
        foreign_key=tuple(node.record.key_columns),
        value=record.beside_key,
        is_left=node.kind == "left",
    )


def cogroup_of(node: CogroupNode) -> Cogroup:
    """The operator that puts the records of grouped streams beside each other, be it one stream or several."""
    return Cogroup(columns=node.columns, by_arrival=tuple(parents_by_arrival(node)))


def global_join_of(node: GlobalJoinNode, rows: StateView | None) -> GlobalTableJoin:
    """The operator that looks rows up in a global table; ``rows`` are those of all global tables."""
    assert rows is not None
    record = node.parent.record
    selector = SelectKey(selector=node.selector, key=record.key_type, value=record.value, result=node.selected.key)
    return GlobalTableJoin(
        store=node.table.store, rows=rows, selector=selector, joiner=node.joiner, is_left=node.is_left
    )


def several_inputs_of(node: Node, operators: Operators) -> SeveralInputs:
    """The operator of a node with several parents."""
    match node:
        case MergeNode():
            return Merge(names=tuple(source_schema(node.record.columns)), by_arrival=tuple(parents_by_arrival(node)))
        case CogroupNode():
            return cogroup_of(node)
        case StreamTableJoinNode():
            (table,) = node.others
            return StreamTableJoin(
                table=view_of(table, operators),
                table_key=tuple(table.record.key_columns),
                joiner=node.joiner,
                is_left=node.is_left,
                versions=versioned_store(table),
                is_written_first=all(is_written_first(base, node.parent, node) for base in bases(table)),
            )
        case StreamJoinNode():
            return StreamJoin(
                left=node.left,
                right=node.right,
                held=node.held,
                windows=node.windows,
                joiner=node.joiner,
                is_right_first=parents_by_arrival(node) == [1, 0],
            )
        case SubscriptionJoinNode():
            (right_table,) = node.others
            return SubscriptionJoin(
                right=_side_of(right_table, operators),
                store=node.store,
                key=node.key,
                right_names=node.joiner.right_names,
                clock=node.name,
            )
        case ResponseJoinNode():
            (left_table,) = node.others
            return ResponseJoin(
                left=_side_of(left_table, operators),
                naming=_naming_of(node.send),
                joiner=node.joiner,
                kind=node.send.kind,
                standing=node.standing,
            )
        case TableTableJoinNode():
            left, right = sides_of(node, operators)
            return TableTableJoin(
                left=left,
                right=right,
                joiner=node.joiner,
                kind=node.kind,
                is_right_first=parents_by_arrival(node) == [1, 0],
            )
    raise TypeError(f"{node.name} is a {type(node).__name__}, which no operator executes")


def sides_of(node: TableTableJoinNode, operators: Operators) -> list[JoinedSide]:
    """The left and the right side of a join of tables."""
    (left, right) = node.parents
    return [
        JoinedSide(
            table=view_of(table, operators),
            key=tuple(table.record.key_columns),
            is_written_first=all(is_written_first(base, other, node) for base in bases(table)),
            newest=newest_rows_of(table, operators),
            keeps_silent=is_filtered(table)
            and versioned_store(table) is None
            and (node.kind == "outer" or (node.kind == "left" and table is left)),
        )
        for table, other in ((left, right), (right, left))
    ]


def _side_of(table: Node, operators: Operators) -> JoinedSide:
    """A side of a join by foreign key, where no record is an update of both tables at once."""
    return JoinedSide(
        table=view_of(table, operators),
        key=tuple(table.record.key_columns),
        is_written_first=True,
        newest=newest_rows_of(table, operators),
        keeps_silent=False,
    )


def newest_rows_of(table: Node, operators: Operators) -> NewestRows | None:
    """What leaves out the updates of a versioned table that came out of order; None for other tables."""
    if versioned_store(table) is None:
        return None
    return NewestRows(table=view_of(table, operators), key=tuple(table.record.key_columns))


def view_of(table: Node, operators: Operators) -> TableView:
    """How a table is looked up: in its store, through the filters and mappings behind that."""
    match table:
        case TableNode(store=StoreSpec(kind=StoreKind.VERSIONED)):
            return VersionedTable(table.store)
        case TableNode():
            return StoredTable(table.store)
        case AggregateNode():
            return StoredTable(table.store, table.fold.finish)
        case TableTableJoinNode():
            left, right = sides_of(table, operators)
            return JoinedTable(left=left, right=right, joiner=table.joiner, kind=table.kind)
        case FilterNode() | MapValuesNode() if (operator := operators(table)) is not None:
            return DerivedTable(view_of(table.parent, operators), operator)
    raise TypeError(f"{table.name} is a {type(table).__name__}, which cannot be looked up")
