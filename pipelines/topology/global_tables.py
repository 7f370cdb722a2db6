"""Global tables, which are whole topics that every executor has, and the joins with them. They generate no tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from weir.pipelines.operators.functions import UserFunction
from weir.pipelines.operators.joiner import Joiner
from weir.pipelines.topology.nodes import ChildNode, Node, RecordType, SourceNode
from weir.state.types import StoreSpec


@dataclass(eq=False, kw_only=True)
class GlobalTableNode(Node):
    """The newest value of each key of a whole topic."""

    source: SourceNode
    """The topic; its source is not part of any sub-topology."""
    store: StoreSpec


@dataclass(eq=False, kw_only=True)
class GlobalJoinNode(ChildNode):
    """Joins each record of a stream with the row of a global table whose key it names."""

    table: GlobalTableNode
    selector: Mapping[str, pl.Expr] | UserFunction
    selected: RecordType
    joiner: Joiner
    is_left: bool
