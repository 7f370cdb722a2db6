"""Which columns of topics the values of an output's columns come from, where the topology tells.

Expressions name their columns and functions do not, so what a function returns has no known origin, nor has what is
made from it. A condition decides which rows there are, not what is in them, so it is no origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from weir.pipelines.operators.fold import ColumnFold
from weir.pipelines.operators.functions import UserFunction
from weir.pipelines.operators.joiner import Joiner
from weir.pipelines.operators.mapping import PairExpressions
from weir.pipelines.topology.cogroups import CogroupNode
from weir.pipelines.topology.foreign_key import ResponseJoinNode
from weir.pipelines.topology.global_tables import GlobalJoinNode, GlobalTableNode
from weir.pipelines.topology.joins import JoinBufferNode, StreamJoinNode, StreamTableJoinNode, TableTableJoinNode
from weir.pipelines.topology.nodes import (
    AggregateNode,
    BranchNode,
    ExpectNode,
    FilterNode,
    FlatMapValuesNode,
    LateRecordsNode,
    MapNode,
    MapValuesNode,
    MergeNode,
    Node,
    PeekNode,
    RepartitionNode,
    SelectKeyNode,
    SourceNode,
    SplitNode,
    SuppressNode,
    TableNode,
    TableSinkNode,
    ToStreamNode,
    WithTimestampNode,
)
from weir.pipelines.topology.table_groups import ChangeRepartitionNode, ChangeSelectNode, UpdatesRepartitionNode

TopicColumn = tuple[str, str]
"""A topic and the name that its key column or the field of its value has in the program."""
Origins = Mapping[str, frozenset[TopicColumn]]
"""By column; a column whose origin is not known, or that comes from no column, is missing."""
_SAME_COLUMNS = (
    FilterNode,
    ExpectNode,
    PeekNode,
    SplitNode,
    BranchNode,
    RepartitionNode,
    TableNode,
    LateRecordsNode,
    SuppressNode,
    ToStreamNode,
    TableSinkNode,
    WithTimestampNode,
    JoinBufferNode,
)
"""They forward columns of their parent as they are."""


class ColumnLineage:
    """The origins of one topology's columns. Of shared nodes each is looked at once."""

    def __init__(self) -> None:
        self._found: dict[Node, Origins] = {}

    def of(self, node: Node) -> Origins:
        """The origins of what ``node`` forwards or writes."""
        if node not in self._found:
            columns = node.record.columns
            self._found[node] = {name: found for name, found in self._of(node).items() if name in columns and found}
        return self._found[node]

    def _of(self, node: Node) -> Origins:
        match node:
            case SourceNode():
                return {name: frozenset([(node.topic, name)]) for name in node.record.columns}
            case GlobalTableNode():
                return self.of(node.source)
            case MapValuesNode() | FlatMapValuesNode():
                return {**_picked(self.of(node.parent), node.record.key_columns), **self._computed(node, node.mapper)}
            case MapNode(mapper=PairExpressions() as mapper):
                return {**self._computed(node, mapper.value), **self._computed(node, mapper.key)}
            case SelectKeyNode() | ChangeSelectNode():
                values = _picked(self.of(node.parent), node.record.beside_key)
                return {**values, **self._computed(node, node.selector)}
            case AggregateNode():
                return {**_picked(self.of(node.parent), node.record.key_columns), **self._folded(node)}
            case CogroupNode():
                return self._joined_keys(node)
            case MergeNode():
                return _in_all([self.of(parent) for parent in node.parents])
            case StreamTableJoinNode():
                left, right = node.parents
                return {**_picked(self.of(left), node.joiner.key_columns), **self._joined(node.joiner, left, right)}
            case GlobalJoinNode():
                keys = _picked(self.of(node.parent), node.joiner.key_columns)
                return {**keys, **self._joined(node.joiner, node.parent, node.table)}
            case TableTableJoinNode() | StreamJoinNode():
                left, right = node.parents
                return {**self._joined_keys(node), **self._joined(node.joiner, left, right)}
            case ResponseJoinNode():
                left, right = node.others[0], node.parent.parents[0].parents[1]
                return {**_picked(self.of(left), node.joiner.key_columns), **self._joined(node.joiner, left, right)}
            case UpdatesRepartitionNode() if not isinstance(node, ChangeRepartitionNode):
                return {}
        return self.of(node.parents[0]) if isinstance(node, _SAME_COLUMNS) else {}

    def _computed(self, node: Node, by: Mapping[str, pl.Expr] | UserFunction) -> Origins:
        """The columns that expressions over the first parent's columns make."""
        if isinstance(by, UserFunction):
            return {}
        origins = self.of(node.parents[0])
        return {name: _of_columns(expression.meta.root_names(), origins) for name, expression in by.items()}

    def _folded(self, node: AggregateNode) -> Origins:
        """Aggregates of columns. Which record is the last one depends on reserved columns, what it holds does not."""
        if not isinstance(node.fold, ColumnFold):
            return {}
        origins = self.of(node.parent)
        used = {
            each.name: [root for lift in each.lift for root in lift.meta.root_names() if not root.startswith("_")]
            for each in node.fold.accumulators
        }
        return {name: _of_columns(roots, origins) for name, roots in used.items()}

    def _joined(self, joiner: Joiner, left: Node, right: Node) -> Origins:
        if joiner.function is not None:
            return {}
        others = self.of(right)
        of_right = {joiner.right_names[name]: others.get(name, frozenset()) for name in joiner.right.columns}
        values = {**_picked(self.of(left), joiner.left.columns), **of_right}
        return {name: found for name, found in values.items() if name not in joiner.key_columns}

    def _joined_keys(self, node: Node) -> Origins:
        """Of rows that come from any parent, whose keys match by place."""
        names = list(node.record.key_columns)
        sides = [
            {
                name: self.of(parent).get(own, frozenset())
                for name, own in zip(names, parent.record.key_columns, strict=True)
            }
            for parent in node.parents
        ]
        return _in_all(sides)


def _picked(origins: Origins, names: Iterable[str]) -> Origins:
    return {name: origins[name] for name in names if name in origins}


def _of_columns(names: Iterable[str], origins: Origins) -> frozenset[TopicColumn]:
    """Nothing if that of one is not known."""
    found = [origins.get(name, frozenset()) for name in names]
    return frozenset().union(*found) if all(found) else frozenset()


def _in_all(sides: Sequence[Origins]) -> Origins:
    """Of rows that come from any side: nothing where one does not know."""
    known = [name for name in sides[0] if all(side.get(name) for side in sides)]
    return {name: frozenset().union(*(side[name] for side in sides)) for name in known}
