"""How operators look tables up: in the store that keeps a table, through the filters and mappings after it."""

from __future__ import annotations

from collections.abc import Callable

from weir.pipelines.operators.epoch import Operator
from weir.pipelines.operators.session_windows import SessionWindows
from weir.pipelines.operators.sliding_windows import SlidingWindows
from weir.pipelines.operators.table_table_join import JoinedSide, JoinedTable
from weir.pipelines.operators.table_view import (
    DerivedTable,
    StoredTable,
    SuppressedTable,
    TableView,
    WindowedTable,
)
from weir.pipelines.operators.versioned import NewestRows, VersionedTable
from weir.pipelines.operators.windows import TimeWindows
from weir.pipelines.topology.arrival import is_written_first
from weir.pipelines.topology.joins import TableTableJoinNode, bases, is_filtered, versioned_store
from weir.pipelines.topology.nodes import (
    AggregateNode,
    ExpectNode,
    FilterNode,
    MapValuesNode,
    Node,
    SuppressNode,
    TableNode,
)
from weir.state.types import StoreKind, StoreSpec

Operators = Callable[[Node], Operator | None]
"""The operators of nodes with one parent."""


def view_of(table: Node, operators: Operators) -> TableView:
    """How ``table`` is looked up by key."""
    match table:
        case TableNode(store=StoreSpec(kind=StoreKind.VERSIONED)):
            return VersionedTable(table.store)
        case TableNode():
            return StoredTable(table.store)
        case AggregateNode():
            return _aggregate_of(table)
        case SuppressNode():
            return suppressed_table_of(table, operators)
        case TableTableJoinNode():
            left, right = sides_of(table, operators)
            return JoinedTable(left=left, right=right, joiner=table.joiner, kind=table.kind)
        case ExpectNode():  # its violations are still in the table, or the records that caused them were put aside
            return view_of(table.parent, operators)
        case FilterNode() | MapValuesNode() if (operator := operators(table)) is not None:
            return DerivedTable(view_of(table.parent, operators), operator)
    raise TypeError(f"{table.name} is a {type(table).__name__}, which cannot be looked up")


def suppressed_table_of(node: SuppressNode, operators: Operators) -> SuppressedTable:
    """How a suppressed table is looked up by key."""
    return SuppressedTable(store=node.store, table=view_of(node.parent, operators))


def _aggregate_of(node: AggregateNode) -> StoredTable:
    store, finish, windows = node.store, node.fold.finish, node.windows
    match windows:
        case TimeWindows():
            kept_ms = windows.kept_ms if store.retention_ms is None else store.retention_ms
            counts_from = "window_start"
        case SessionWindows() | SlidingWindows():
            assert store.retention_ms is not None
            kept_ms, counts_from = store.retention_ms, "window_end"
        case _:
            return StoredTable(store, finish)
    return WindowedTable(
        store, finish, counts_from=counts_from, kept_ms=kept_ms, closes_after_ms=windows.closes_after_ms
    )


def newest_rows_of(table: Node, operators: Operators) -> NewestRows | None:
    """What drops the out-of-order updates of a versioned table; None for other tables."""
    if versioned_store(table) is None:
        return None
    return NewestRows(table=view_of(table, operators), key=tuple(table.record.key_columns))


def sides_of(node: TableTableJoinNode, operators: Operators) -> list[JoinedSide]:
    """The left and the right side of a table-table join."""
    (left, right) = node.parents
    return [
        JoinedSide(
            table=view_of(table, operators),
            key=tuple(table.record.key_columns),
            is_written_first=all(is_written_first(base, other, node) for base in bases(table)),
            newest=newest_rows_of(table, operators),
            drops_no_ops=is_filtered(table)
            and versioned_store(table) is None
            and (node.kind == "outer" or (node.kind == "left" and table is left)),
        )
        for table, other in ((left, right), (right, left))
    ]


def foreign_key_side_of(table: Node, operators: Operators) -> JoinedSide:
    """A side of a foreign-key join, where no record updates both tables at once."""
    return JoinedSide(
        table=view_of(table, operators),
        key=tuple(table.record.key_columns),
        is_written_first=True,
        newest=newest_rows_of(table, operators),
        drops_no_ops=False,
    )
