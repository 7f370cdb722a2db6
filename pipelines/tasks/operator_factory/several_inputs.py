"""Makes the operators of nodes with several parents."""

from __future__ import annotations

from weir.pipelines.operators.cogroup import Cogroup
from weir.pipelines.operators.epoch import SeveralInputs
from weir.pipelines.operators.merge import Merge
from weir.pipelines.operators.stream_join import StreamJoin
from weir.pipelines.operators.stream_table_join import StreamTableJoin
from weir.pipelines.operators.table_table_join import TableTableJoin
from weir.pipelines.serdes.source import source_schema
from weir.pipelines.tasks.operator_factory.foreign_keys import response_join_of, subscription_join_of
from weir.pipelines.tasks.operator_factory.table_views import Operators, sides_of, view_of
from weir.pipelines.topology.arrival import is_written_first, parents_by_arrival
from weir.pipelines.topology.cogroups import CogroupNode
from weir.pipelines.topology.foreign_key import ResponseJoinNode, SubscriptionJoinNode
from weir.pipelines.topology.joins import (
    StreamJoinNode,
    StreamTableJoinNode,
    TableTableJoinNode,
    bases,
    versioned_store,
)
from weir.pipelines.topology.nodes import MergeNode, Node


def several_inputs_of(node: Node, operators: Operators) -> SeveralInputs:
    """The operator of a node with several parents."""
    match node:
        case MergeNode():
            return merge_of(node)
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
            return subscription_join_of(node, operators)
        case ResponseJoinNode():
            return response_join_of(node, operators)
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


def merge_of(node: Node) -> Merge:
    """The operator that puts the records of all parents into one order; the parents have the same columns."""
    columns = node.parents[0].record.columns
    return Merge(
        names=tuple(source_schema(columns, has_headers=node.has_headers)), by_arrival=tuple(parents_by_arrival(node))
    )


def cogroup_of(node: CogroupNode) -> Cogroup:
    """The operator that puts the records of one or several grouped streams beside each other."""
    return Cogroup(columns=node.columns, by_arrival=tuple(parents_by_arrival(node)))
