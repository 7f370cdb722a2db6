"""Filters, expectations and value mappers, which streams and tables share, stores for those of tables, other times, and
peeks."""

from __future__ import annotations

import re
from typing import Any, cast

import polars as pl

from weir.pipelines.dsl.graph import (
    Graph,
    Materialized,
    named_expressions,
    places_of,
    returned_type,
    store_spec,
    takes_arguments,
    unchanged_columns,
    user_function,
)
from weir.pipelines.errors import TopologyError
from weir.pipelines.expectations import ON_VIOLATION, OnViolation
from weir.pipelines.operators.aggregates import expression_dtype
from weir.pipelines.operators.functions import UserFunction
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.timestamps import is_time
from weir.pipelines.topology.nodes import (
    ExpectNode,
    FilterNode,
    KeptTableNode,
    MapValuesNode,
    Node,
    PeekNode,
    WithTimestampNode,
)

_EXPECTATION = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


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
        raise TopologyError(f"{name}: the predicate has type {dtype}; it must be true or false")
    return predicate


def add_expectation(
    graph: Graph, parent: Node, expectation: str, predicate: Any, on_violation: str, prefix: str, *, is_table: bool
) -> ExpectNode:
    """Its node has the name of the expectation and no running number, so that made-up names stay as they are.

    Raises:
        TopologyError: The name is invalid or taken, or ``predicate`` or ``on_violation`` is invalid.
    """
    if not isinstance(expectation, str) or not _EXPECTATION.fullmatch(expectation):
        raise TopologyError(
            f"an expectation is named {expectation!r}; use letters, digits and underscores, and begin with a letter"
        )
    others = [node for node in graph.nodes if isinstance(node, ExpectNode) and node.expectation == expectation]
    if others:
        raise TopologyError(
            f"the name {expectation!r} is given to two expectations; give each its own name, since their records are "
            "counted by it",
            places=places_of(*others),
        )
    if on_violation not in ON_VIOLATION:
        raise TopologyError(
            f"the expectation {expectation!r} got on_violation={on_violation!r}; it must be "
            '"count", "drop", "dead_letter" or "fail"'
        )
    name = f"{prefix}{expectation}"
    return graph.add(
        ExpectNode(
            name=name,
            parent=parent,
            record=parent.record,
            expectation=expectation,
            predicate=checked_predicate(name, parent, predicate),
            on_violation=cast(OnViolation, on_violation),
            is_table=is_table,
        )
    )


def add_map_values(graph: Graph, parent: Node, mapper: Any, columns: Any, prefix: str, *, is_table: bool) -> Node:
    name = graph.new_name(prefix)
    if (mapper is None) == (not columns):
        raise TopologyError(f"{name}: map_values takes either one function or columns; pass one of the two")
    if isinstance(mapper, pl.Expr):
        raise TopologyError(f"{name} got an expression without a name; name its column, as in map_values(n={mapper})")
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
