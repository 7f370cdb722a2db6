"""Filters and value mappers, which streams and tables share, stores for those of tables, other times, and peeks."""

from __future__ import annotations

from typing import Any

import polars as pl

from weir.pipelines.dsl.graph import (
    Graph,
    Materialized,
    named_expressions,
    returned_type,
    store_spec,
    takes_arguments,
    unchanged_columns,
    user_function,
)
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.aggregates import expression_dtype
from weir.pipelines.operators.functions import UserFunction
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.timestamps import is_time
from weir.pipelines.topology.nodes import (
    FilterNode,
    KeptTableNode,
    MapValuesNode,
    Node,
    PeekNode,
    WithTimestampNode,
)


def add_filter(
    graph: Graph, parent: Node, predicate: Any, prefix: str, *, is_table: bool, is_negated: bool = False
) -> Node:
    name = graph.new_name(prefix)
    return graph.add(
        FilterNode(
            name=name,
            parent=parent,
            record=parent.record,
            is_table=is_table,
            predicate=checked_predicate(name, parent, predicate),
            is_negated=is_negated,
        )
    )


def checked_predicate(name: str, parent: Node, predicate: Any) -> pl.Expr | UserFunction:
    """What node ``name`` decides by on the records of ``parent``; raises ``TopologyError`` for anything else."""
    if not isinstance(predicate, pl.Expr):
        return user_function(predicate, name, "key", "value")
    dtype = expression_dtype(predicate, parent.record.columns, name)
    if dtype != pl.Boolean():
        raise TopologyError(f"{name}: the predicate has type {dtype}; filter needs true or false")
    return predicate


def add_map_values(graph: Graph, parent: Node, mapper: Any, columns: Any, prefix: str, *, is_table: bool) -> Node:
    name = graph.new_name(prefix)
    if (mapper is None) == (not columns):
        raise TopologyError(f"{name}: map_values takes either one function or columns; pass one of the two")
    record, shared = parent.record, []
    if mapper is None:
        mapper, value = named_expressions(name, record, (), columns)
        shared = unchanged_columns(mapper)
    else:
        mapper = user_function(mapper, name, "value")
        value = returned_type(mapper, "value")
    return graph.add(
        MapValuesNode(
            name=name,
            parent=parent,
            mapper=mapper,
            is_table=is_table,
            record=graph.record(name, record.key, value, is_windowed=record.is_windowed, shared=shared),
        )
    )


def add_kept(graph: Graph, parent: Node, store: str | Materialized | None) -> Node:
    """``parent``, a filter or mapping of a table, with its rows in ``store``; itself if it keeps none."""
    if store is None:
        return parent
    record = parent.record
    spec = store_spec(parent.name, store, record, record.beside_key)
    return graph.add(KeptTableNode(name=f"{parent.name}-kept", parent=parent, record=record, store=spec))


def add_with_timestamp(graph: Graph, parent: Node, time: Any, on_invalid: str) -> Node:
    """Raises ``TopologyError`` for what gives no times, or another ``on_invalid``."""
    name = graph.new_name("KSTREAM-PROCESSVALUES-")
    if on_invalid not in ("fail", "skip"):
        raise TopologyError(f'{name}: on_invalid is {on_invalid!r}; it must be "fail" or "skip"')
    takes_time = takes_arguments(time, 3)
    if isinstance(time, str):
        time = pl.col(time)
    if isinstance(time, pl.Expr):
        result = RowType(pl.Schema({"time": expression_dtype(time, parent.record.columns, name)}), is_scalar=True)
    else:
        time = user_function(time, name, "key", "value", *["time"] * takes_time)
        result = returned_type(time, "time")
    columns = list(result.columns.values())
    if not (result.is_scalar and is_time(columns[0])):
        found = columns[0] if result.is_scalar else "a row"
        raise TopologyError(
            f"{name}: the timestamp has type {found}; it must be a datetime, a date, or an integer in milliseconds "
            "since 1970"
        )
    return graph.add(
        WithTimestampNode(
            name=name,
            parent=parent,
            record=parent.record,
            time=time,
            takes_time=takes_time,
            result=result,
            skips_invalid=on_invalid == "skip",
        )
    )


def add_peek(graph: Graph, parent: Node, action: Any, prefix: str) -> Node:
    name = graph.new_name(prefix)
    return graph.add(
        PeekNode(name=name, parent=parent, record=parent.record, action=user_function(action, name, "key", "value"))
    )
