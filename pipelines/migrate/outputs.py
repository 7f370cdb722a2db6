"""What tables of updates hold for a store's rows; otherwise they would only have the keys that are updated again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.tasks.operator_factory import operator_of
from weir.pipelines.tasks.output import sink_rows
from weir.pipelines.topology import SubTopology, TableSinkNode
from weir.pipelines.topology.nodes import (
    AggregateNode,
    ChildNode,
    ExpectNode,
    FilterNode,
    MapValuesNode,
    Node,
    TableNode,
    ToStreamNode,
)
from weir.pipelines.topology.topology import table_spec
from weir.state.engine.memory import MemoryStore
from weir.state.stores.specs import GONE, VALID_FROM
from weir.state.types import StoreKind, StoreSpec, TableSpec


def output_rows(
    sub_topology: SubTopology, store: StoreSpec, rows: pl.DataFrame
) -> Iterator[tuple[TableSpec, pl.DataFrame]]:
    """Each table of updates that a store's table leads to through nothing but filters and mappings, with its rows.

    ``rows`` has the store's key and value columns and ``_ts`` (Int64, ms); the result has the table's columns except
    ``_epoch``.
    """
    made = rows_after(sub_topology, store, rows)
    for node in sub_topology.nodes:
        if isinstance(node, TableSinkNode) and node.sink is None and node.is_updates and node.parent in made:
            yield table_spec(node), sink_rows(node, made[node.parent].filter(~pl.col("_deleted")))


def rows_after(
    sub_topology: SubTopology, store: StoreSpec, rows: pl.DataFrame, partition: int = 0
) -> Mapping[Node, pl.DataFrame]:
    """The rows of a store's table, as they are after the node that keeps it and after every filter and mapping behind
    it; those of a versioned store are the newest of each key. ``partition`` is that of the task."""
    made: dict[Node, pl.DataFrame] = {}
    with MemoryStore("migration", []).session() as session:
        epoch = Epoch(session=session, clocks={}, now_ms=0)
        for node in sub_topology.nodes:
            if isinstance(node, (AggregateNode, TableNode)) and node.store is store:
                forwarded = _current(store, rows).with_columns(
                    _partition=pl.lit(partition, pl.Int32()), _offset=pl.lit(0, pl.Int64()), _deleted=pl.lit(False)
                )
                made[node] = node.fold.finish(forwarded) if isinstance(node, AggregateNode) else forwarded
            elif not isinstance(node, ChildNode) or node.parent not in made:
                continue
            elif isinstance(node, (ToStreamNode, ExpectNode)):
                made[node] = made[node.parent]
            elif isinstance(node, (FilterNode, MapValuesNode)) and node.is_table:
                operator = operator_of(node)
                assert operator is not None
                made[node] = operator.process(made[node.parent], epoch)
    return made


def _current(store: StoreSpec, rows: pl.DataFrame) -> pl.DataFrame:
    if store.kind is not StoreKind.VERSIONED:
        return rows
    by = [name for name in store.key if name != VALID_FROM]
    newest = rows.sort(VALID_FROM).unique(by, keep="last", maintain_order=True)
    return newest.filter(~pl.col(GONE)).drop(VALID_FROM, GONE)
