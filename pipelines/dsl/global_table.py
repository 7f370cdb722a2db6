"""Global tables, and streams joined with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from weir.pipelines.dsl.graph import Graph, check_name, store_spec
from weir.pipelines.dsl.joins import JoinFunction, check_keys, joiner_of
from weir.pipelines.dsl.mapping import selected_key
from weir.pipelines.errors import TopologyError
from weir.pipelines.topology.global_tables import GlobalJoinNode, GlobalTableNode
from weir.pipelines.topology.nodes import Node, RecordType, SourceNode

KeySelector = str | pl.Expr | Callable[[Any, Any], Any] | Mapping[str, str | pl.Expr]


class GlobalKTable:
    """The newest value of each key of a whole topic, on every executor, for streams to join."""

    def __init__(self, graph: Graph, node: GlobalTableNode) -> None:
        self._graph, self._node = graph, node


def add_global_table(graph: Graph, source: SourceNode, store: str) -> GlobalKTable:
    name = graph.new_name("KTABLE-SOURCE-")
    record = source.record
    spec = store_spec(name, check_name("store", store), record, record.beside_key)
    return GlobalKTable(graph, graph.add(GlobalTableNode(name=name, record=record, source=source, store=spec)))


def add_global_join(
    graph: Graph,
    stream: Node,
    table: GlobalTableNode,
    function: JoinFunction | None,
    key: KeySelector | None,
    *,
    is_left: bool,
) -> Node:
    """Raises ``TopologyError`` when no key is selected, or one that is not the table's."""
    name = graph.new_name("KSTREAM-LEFTJOIN-")  # Kafka Streams gives the inner join this name too
    if key is None:
        raise TopologyError(
            f"{name} joins a global table; pass key= to name the table's row: a column, an expression, several by "
            "name, or a function of (key, value)"
        )
    columns = dict(key) if isinstance(key, Mapping) else {}
    selector, selected, _ = selected_key(name, stream, [] if columns else [key], columns)
    asked = RecordType(key=selected, value=stream.record.value)
    check_keys(
        name,
        asked,
        table.record,
        stream,
        table,
        "give key= columns of the same types in the same order as the table's key",
    )
    joiner, record = joiner_of(graph, name, stream, table, function, has_own_key=True)
    return graph.add(
        GlobalJoinNode(
            name=name,
            parent=stream,
            record=record,
            table=table,
            selector=selector,
            selected=asked,
            joiner=joiner,
            is_left=is_left,
        )
    )
