"""Joins: whether the two sides fit, what the results look like, and the nodes that a join adds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import polars as pl

from weir.pipelines.arguments import duration_text, not_negative_ms, to_ms
from weir.pipelines.dsl.graph import (
    Graph,
    Materialized,
    check_name,
    held_value,
    places_of,
    returned_type,
    store_options,
    store_spec,
    takes_arguments,
    user_function,
)
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.join_windows import JoinWindows
from weir.pipelines.operators.joiner import Joiner
from weir.pipelines.operators.stream_join import StreamSide
from weir.pipelines.operators.table_table_join import JoinKind
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.shapes import TIME
from weir.pipelines.store_options import StoreOptions
from weir.pipelines.topology.joins import (
    JoinBufferNode,
    StreamJoinNode,
    StreamTableJoinNode,
    TableTableJoinNode,
    be_looked_up,
    versioned_store,
)
from weir.pipelines.topology.nodes import Node, RecordType
from weir.state.stores.specs import key_value_spec

JoinFunction = Callable[..., Any]
JoinStores = str | Materialized | tuple[str | Materialized, str | Materialized]
"""What the names of the stores of a join of two streams begin with, or the names of the left and the right one; each
may have options."""

_SIDES = "the sides of a join"
SELECT_KEY = "give both sides key columns of the same types in the same order, with select_key(...)"


def add_stream_table_join(
    graph: Graph,
    stream: Node,
    table: Node,
    function: JoinFunction | None,
    *,
    name: str | None,
    is_left: bool,
    grace: timedelta | None,
    store: JoinStores | None,
) -> Node:
    """Raises ``TopologyError`` when the keys differ, the table cannot be looked up, or the grace does not fit it."""
    running_name = graph.new_name("KSTREAM-LEFTJOIN-" if is_left else "KSTREAM-JOIN-")
    name = running_name if name is None else check_name("join", name)
    be_looked_up(table)
    joiner, record = joiner_of(graph, name, stream, table, function)
    if grace is not None:
        stream = graph.add(_buffer(f"{name}-buffer", stream, table, grace, store))
    return graph.add(
        StreamTableJoinNode(name=name, parent=stream, others=(table,), record=record, joiner=joiner, is_left=is_left)
    )


def _buffer(name: str, stream: Node, table: Node, grace: timedelta, store: JoinStores | None) -> JoinBufferNode:
    """What holds the stream's records for ``grace``; raises ``TopologyError`` when the table has no such history."""
    grace_ms, versions, record = not_negative_ms(grace, "grace"), versioned_store(table), stream.record
    if versions is None or versions.retention_ms is None:
        raise TopologyError(
            f"grace= lets records wait for the table's row of their time, but {table.name} is not versioned; pass "
            "history_retention= to its table(...) or to_table(...)",
            places=places_of(table),
        )
    if grace_ms > versions.retention_ms:
        kept = duration_text(timedelta(milliseconds=versions.retention_ms))
        raise TopologyError(
            f"grace is {grace}, but the table {versions.name!r} keeps its history for only {kept}; "
            "keep it at least as long as the grace",
            places=places_of(table),
        )
    options = store_options("waiting records", store)
    spec = store_spec(name, options.name, record, record.beside_key)
    key = pl.Schema({"_at": TIME, **spec.key, "_seq": pl.Int64()})
    return JoinBufferNode(
        name=name,
        parent=stream,
        record=record,
        grace_ms=grace_ms,
        store=options.applied(key_value_spec(spec.name, key, held_value(stream, spec.value))),
    )


def add_stream_join(
    graph: Graph,
    left: Node,
    right: Node,
    function: JoinFunction | None,
    windows: JoinWindows | None,
    store: JoinStores | None,
    kind: JoinKind,
    *,
    name: str | None,
    retention: timedelta | None,
) -> Node:
    """Raises ``TopologyError`` when the keys differ, windows or the store's name are missing, or the retention is
    shorter than the windows need."""
    if not isinstance(windows, JoinWindows):
        raise TopologyError(
            f"a join of two streams got windows={windows!r}; pass "
            "JoinWindows.of_time_difference_and_grace(...) or of_time_difference_with_no_grace(...)"
        )
    suffixes = (
        "outer-this-join" if kind == "outer" else "this-join",
        "other-join" if kind == "inner" else "outer-other-join",
    )
    side_stores, shared = _join_stores(store, suffixes)
    retention_ms = _kept_ms(windows, retention)
    this_prefix = "KSTREAM-OUTERTHIS-" if kind == "outer" else "KSTREAM-JOINTHIS-"
    other_prefix = "KSTREAM-JOINOTHER-" if kind == "inner" else "KSTREAM-OUTEROTHER-"
    prefixes = ("KSTREAM-WINDOWED-", "KSTREAM-WINDOWED-", this_prefix, other_prefix, "KSTREAM-MERGE-")
    parts = [graph.new_name(prefix) for prefix in prefixes]  # used up whatever the name is, as in Kafka Streams
    if name is not None:
        parts = [f"{name}-{suffix}" for suffix in ("this-windowed", "other-windowed", *suffixes, "merge")]
    merge = parts[-1]
    joiner, record = joiner_of(graph, merge, left, right, function)
    names = ({column: column for column in left.record.value.columns}, joiner.right_names)
    sides = []
    for index, (node, pair_names, options) in enumerate(zip((left, right), names, side_stores, strict=True)):
        values = {
            known: node.record.value.columns[column]
            for column, known in pair_names.items()
            if known not in left.record.key_columns
        }
        spec = key_value_spec(
            options.name,
            pl.Schema({**left.record.key_columns, "_at": TIME, "_seq": pl.Int64()}),
            pl.Schema(values),
            ttl_ms=retention_ms,
        )
        reach = (windows.before_ms, windows.after_ms)[:: -1 if index else 1]
        sides.append(
            StreamSide(
                store=options.applied(spec),
                key=tuple(node.record.key_columns),
                names=pair_names,
                back_ms=reach[0],
                on_ms=reach[1],
                is_outer=kind == "outer" or (kind == "left" and not index),
            )
        )
    held = (
        None
        if kind == "inner"
        else shared.applied(
            key_value_spec(
                f"{shared.name}-{kind}-shared-join-store",
                pl.Schema({"_at": TIME, "_is_left": pl.Boolean(), **left.record.key_columns, "_seq": pl.Int64()}),
                joiner.pair_values,
            )
        )
    )
    return graph.add(
        StreamJoinNode(
            name=merge,
            parent=left,
            others=(right,),
            record=record,
            joiner=joiner,
            windows=windows,
            left=sides[0],
            right=sides[1],
            held=held,
            windowed_names=(parts[0], parts[1]),
            join_names=(parts[2], parts[3]),
        )
    )


def repartition_names(store: JoinStores | None, name: str | None) -> tuple[str, str]:
    """The names of the repartitions in front of a join of two streams, left before right."""
    given = (name, name) if name is not None else store if isinstance(store, tuple) else (store, store)
    left, right = (each.name if isinstance(each, Materialized) else each for each in (given[0], given[-1]))
    return f"{left}-left", f"{right}-right"


def _join_stores(
    store: JoinStores | None, suffixes: tuple[str, str]
) -> tuple[tuple[StoreOptions, StoreOptions], StoreOptions]:
    """The names and options of the stores of both sides, and of the store of waiting records, whose name begins so."""
    if store is None:
        raise TopologyError('a join of two streams keeps both sides; name that state with store="..."')
    if not isinstance(store, tuple):
        both = store_options(_SIDES, store)
        left, right = (replace(both, name=f"{both.name}-{suffix}-store") for suffix in suffixes)
        return (left, right), both
    if len(store) != 2:
        raise TopologyError(
            f"the two sides of the join got {len(store)} stores, {store!r}; pass two names, or one that begins the "
            "names of both"
        )
    left, right = (store_options(_SIDES, each) for each in store)
    return (left, right), left


def _kept_ms(windows: JoinWindows, retention: timedelta | None) -> int:
    """How long each side is kept; raises ``TopologyError`` when that is shorter than the windows need."""
    if retention is None:
        return windows.retention_ms
    retention_ms = to_ms(retention, "retention")
    if retention_ms < windows.retention_ms:
        raise TopologyError(
            f"retention is {duration_text(retention)}, but the join needs its records for "
            f"{timedelta(milliseconds=windows.retention_ms)}, which is before + after + grace; keep them at least "
            "that long, or leave the retention out"
        )
    return retention_ms


def add_table_table_join(graph: Graph, left: Node, right: Node, function: JoinFunction | None, kind: JoinKind) -> Node:
    """Raises ``TopologyError`` when the keys differ, or a table cannot be looked up."""
    name, this_name, other_name = (
        graph.new_name(prefix) for prefix in ("KTABLE-MERGE-", "KTABLE-JOINTHIS-", "KTABLE-JOINOTHER-")
    )
    be_looked_up(left, right)
    joiner, record = joiner_of(graph, name, left, right, function)
    return graph.add(
        TableTableJoinNode(
            name=name,
            parent=left,
            others=(right,),
            record=record,
            joiner=joiner,
            kind=kind,
            this_name=this_name,
            other_name=other_name,
        )
    )


def joiner_of(
    graph: Graph,
    name: str,
    left_node: Node,
    right_node: Node,
    function: JoinFunction | None,
    *,
    has_own_key: bool = False,
) -> tuple[Joiner, RecordType]:
    """What makes results from pairs, and the results' columns under the left side's key.

    With ``has_own_key`` the two sides do not meet under that key.
    """
    left, right = left_node.record, right_node.record
    if not has_own_key:
        check_keys(name, left, right, left_node, right_node)
    right_names: dict[str, str] = {}
    for column in right.value.columns:
        free = pair_name = f"{column}_right" if column in left.columns else column
        while free in (*left.columns, *right_names.values()):
            free = f"{free}_right"
        if free != pair_name and function is None:
            raise TopologyError(
                f"{name}: both sides have a column {column!r}, and the other side's would be called {pair_name!r}, "
                "a name that is taken; rename one with map_values(...)",
                places=places_of(left_node, right_node),
            )
        right_names[column] = free
    takes_key = takes_arguments(function, 3)
    call = None if function is None else user_function(function, name, *["key"] * takes_key, "value", "other")
    if call is None:
        columns = {
            **left.value.columns,
            **{right_names[column]: dtype for column, dtype in right.value.columns.items()},
        }
        kept = {column: column for column in left.value.columns}
        declared = {**left.value.declared_as(kept), **right.value.declared_as(right_names)}
        result = RowType(pl.Schema(columns), declared=declared)
        shared = [column for column in left.value.columns if column in left.key_columns]
    else:
        result, shared = returned_type(call, "value"), []
    record = graph.record(name, left.key, result, is_windowed=left.is_windowed, shared=shared)
    joiner = Joiner(
        key=left.key_type,
        key_columns=tuple(left.key_columns),
        left=left.value,
        right=right.value,
        right_names=right_names,
        function=call,
        result=result,
        takes_key=takes_key,
    )
    return joiner, record


def check_keys(
    name: str, left: RecordType, right: RecordType, left_node: Node, right_node: Node, way_out: str = SELECT_KEY
) -> None:
    """Raises ``TopologyError`` unless both sides' key columns have the same types in the same order; the nodes are the
    sides that it names, and ``way_out`` says what to do."""
    if list(left.key_columns.values()) != list(right.key_columns.values()):
        raise TopologyError(
            f"{name} joins the key {_key(left)} with the key {_key(right)}; {way_out}",
            places=places_of(left_node, right_node),
        )


def _key(record: RecordType) -> str:
    return "(" + ", ".join(f"{name}: {dtype}" for name, dtype in record.key_columns.items()) + ")"
