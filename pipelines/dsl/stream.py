"""Streams: each record is a fact of its own. Tables are in ``table``, grouped and windowed streams in ``grouped``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import polars as pl

from pipelines.dsl.graph import (
    Graph,
    check_name,
    named_expressions,
    returned_type,
    unchanged_columns,
    user_function,
)
from pipelines.dsl.grouped import KGroupedStream, repartition
from pipelines.dsl.stateless import add_filter, add_map_values
from pipelines.dsl.table import KTable, TtlClock, add_table
from pipelines.operators.functions import UserFunction
from pipelines.serdes.row_type import RowType
from pipelines.topology.nodes import Node, SelectKeyNode, TableSinkNode


class KStream:
    """A stream of records; methods add a node and return what comes out of it."""

    def __init__(self, graph: Graph, node: Node, *, has_new_key: bool) -> None:
        self._graph, self._node = graph, node
        self._has_new_key = has_new_key
        """The key was chosen anew, so the next grouping moves the records to the task that owns it."""

    def filter(self, predicate: pl.Expr | Callable[[Any, Any], bool]) -> KStream:
        """The records for which the predicate is true: an expression, or a function of ``(key, value)``."""
        return KStream(self._graph, add_filter(self._graph, self._node, predicate, "KSTREAM-FILTER-", is_table=False),
                       has_new_key=self._has_new_key)

    def map_values(self, mapper: Callable[[Any], Any] | None = None, /, **columns: str | pl.Expr) -> KStream:
        """The whole new value: columns by name and expression, or a function of the value with a return type."""
        return KStream(self._graph,
                       add_map_values(self._graph, self._node, mapper, columns, "KSTREAM-MAPVALUES-", is_table=False),
                       has_new_key=self._has_new_key)

    def select_key(self, *selector: str | pl.Expr | Callable[[Any, Any], Any], **columns: str | pl.Expr) -> KStream:
        """A new key: columns by name and expression, or one function of ``(key, value)`` with a return type.

        The key counts as changed even if it stays equal, so the next grouping repartitions.
        """
        name = self._graph.new_name("KSTREAM-KEY-SELECT-")
        record = self._node.record
        expressions: dict[str, pl.Expr] | UserFunction
        if len(selector) == 1 and not columns and not isinstance(selector[0], (str, pl.Expr)):
            expressions = user_function(selector[0], name)
            key, shared = returned_type(expressions, "key"), []
        else:
            expressions, key = named_expressions(name, record.columns, selector, columns)
            shared = unchanged_columns(expressions)
            if len(shared) == 1 and len(key.columns) == 1:
                key = RowType(key.columns, is_scalar=True)
        node = SelectKeyNode(name=name, parent=self._node, selector=expressions,
                             record=self._graph.record(name, key, record.value, shared=shared))
        return KStream(self._graph, self._graph.add(node), has_new_key=True)

    def group_by_key(self) -> KGroupedStream:
        """Records by their key; moves them only if the key was chosen anew."""
        return KGroupedStream(self._graph, self._node, needs_repartition=self._has_new_key)

    def group_by(self, *selector: str | pl.Expr | Callable[[Any, Any], Any],
                 **columns: str | pl.Expr) -> KGroupedStream:
        """Records by a new key, as ``select_key`` and ``group_by_key`` after another."""
        return self.select_key(*selector, **columns).group_by_key()

    def to_table(self, store: str, *, ttl: timedelta | None = None, ttl_by: TtlClock = "stream_time") -> KTable:
        """The newest value of each key; a null value deletes the row, null keys are dropped.

        ``ttl`` and ``ttl_by`` as for ``StreamsBuilder.table``.
        """
        check_name("store", store)
        name = self._graph.new_name("KSTREAM-TOTABLE-")
        parent = repartition(self._graph, self._node, store) if self._has_new_key else self._node
        return add_table(self._graph, parent, store, name=name, ttl=ttl, ttl_by=ttl_by)

    def to_delta(self, table: str) -> None:
        """Append every record to the Delta table ``table``: key columns, value columns, ``_ts`` and the rest."""
        name = self._graph.new_name("KSTREAM-SINK-")
        self._graph.add(TableSinkNode(name=name, parent=self._node, record=self._node.record,
                                      table=check_name("table", table), is_updates=False))
