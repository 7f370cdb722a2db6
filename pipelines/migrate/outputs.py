"""What tables of updates hold for a store's rows; otherwise they would only have the keys that are updated again."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.tasks.operator_factory import operator_of
from weir.pipelines.tasks.output import sink_rows
from weir.pipelines.topology import SubTopology, TableSinkNode
from weir.pipelines.topology.nodes import (
    AggregateNode,
    ChildNode,
    FilterNode,
    MapValuesNode,
    Node,
    TableNode,
    ToStreamNode,
)
from weir.pipelines.topology.topology import table_spec
from weir.state.engine.memory import MemoryStore
from weir.state.types import StoreSpec, TableSpec


def output_rows(
    sub_topology: SubTopology, store: StoreSpec, rows: pl.DataFrame
) -> Iterator[tuple[TableSpec, pl.DataFrame]]:
    """Each table of updates that a store's table leads to through nothing but filters and mappings, with its rows.

    ``rows`` has the store's key and value columns and ``_ts`` (Int64, ms); the result has the table's columns except
    ``_epoch``.
    """
    made: dict[Node, pl.DataFrame] = {}
    with MemoryStore("migration", []).session() as session:
        epoch = Epoch(session=session, clocks={}, now_ms=0)
        for node in sub_topology.nodes:
            if isinstance(node, (AggregateNode, TableNode)) and node.store is store:
                forwarded = rows.with_columns(
                    _partition=pl.lit(0, pl.Int32()), _offset=pl.lit(0, pl.Int64()), _deleted=pl.lit(False)
                )
                made[node] = node.fold.finish(forwarded) if isinstance(node, AggregateNode) else forwarded
            elif not isinstance(node, ChildNode) or node.parent not in made:
                continue
            elif isinstance(node, TableSinkNode) and node.is_updates:
                yield table_spec(node), sink_rows(node, made[node.parent].filter(~pl.col("_deleted")))
            elif isinstance(node, ToStreamNode):
                made[node] = made[node.parent]
            elif isinstance(node, (FilterNode, MapValuesNode)) and node.is_table:
                operator = operator_of(node)
                assert operator is not None
                made[node] = operator.process(made[node.parent], epoch)
