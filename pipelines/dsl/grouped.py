"""Grouped streams: aggregations by key, and by key and window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from pipelines.dsl.graph import Graph, check_name, returned_type, store_spec, user_function
from pipelines.dsl.table import KTable
from pipelines.errors import TopologyError
from pipelines.operators.aggregates import STORED, Aggregate, Count
from pipelines.operators.fold import ColumnFold, Fold, FunctionFold
from pipelines.operators.functions import KeyType, UserFunction
from pipelines.operators.windows import TimeWindows
from pipelines.serdes.row_type import RowType
from pipelines.topology.nodes import AggregateNode, Node, RepartitionNode
from state.types import StoreKind


class _Grouped:
    """What a grouped stream can be folded into; the store's name comes first everywhere."""

    _windows: TimeWindows | None = None

    def __init__(self, graph: Graph, node: Node, *, needs_repartition: bool) -> None:
        self._graph, self._node, self._needs_repartition = graph, node, needs_repartition

    def agg(self, store: str, /, **aggregates: Aggregate | Count) -> KTable:
        """Vectorised aggregates, a column each: ``agg("hourly", flights=Count(), late=Sum(col("delay") > 15))``."""
        if not aggregates:
            raise TopologyError(f"agg({store!r}) computes nothing; name at least one aggregate, as flights=Count()")
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, (Aggregate, Count)):
                raise TopologyError(f"{name} is {aggregate!r}; pass Count(), Sum(...), Min(...), Max(...), Mean(...), "
                                    "First(...) or Last(...)")
        columns = self._node.record.columns
        accumulators = tuple(aggregate.bind(name, columns) for name, aggregate in aggregates.items())
        key, state = list(self._node.record.key_columns), [name for each in accumulators for name in each.state]
        for name in [*key, *state]:
            is_taken = state.count(name) > 1 or (name in key and name in state and name not in aggregates)
            if is_taken or name.endswith(STORED):
                raise TopologyError(f"agg({store!r}): the column {name!r} is one that Weir makes for itself; rename it")
        output = RowType(pl.Schema({each.name: each.output for each in accumulators}))
        return self._add("KSTREAM-AGGREGATE-", store, lambda name: (ColumnFold(accumulators), output))

    def count(self, store: str, /) -> KTable:
        """The number of records, in the column ``count``."""
        accumulators = (Count().bind("count", self._node.record.columns),)
        output = RowType(pl.Schema({"count": pl.Int64()}), is_scalar=True)
        return self._add("KSTREAM-AGGREGATE-", store, lambda name: (ColumnFold(accumulators), output))

    def reduce(self, store: str, reducer: Callable[[Any, Any], Any], /) -> KTable:
        """``reducer(reduced, value)`` over the values of a key; the first value is the first result, uncalled."""
        value = self._node.record.value

        def fold(name: str) -> tuple[Fold, RowType]:
            function = user_function(reducer, name)

            def step(key: Any, item: Any, state: Any) -> Any:
                return item if state is None else reducer(state, item)

            return self._function_fold(step, function, value), value

        return self._add("KSTREAM-REDUCE-", store, fold)

    def aggregate(self, store: str, initializer: Callable[[], Any], aggregator: Callable[[Any, Any, Any], Any],
                  /) -> KTable:
        """``aggregator(key, value, aggregate)`` from ``initializer()`` on; None deletes the row and begins anew."""
        def fold(name: str) -> tuple[Fold, RowType]:
            function = user_function(aggregator, name)
            user_function(initializer, name)
            output = returned_type(function, "value")

            def step(key: Any, item: Any, state: Any) -> Any:
                return aggregator(key, item, initializer() if state is None else state)

            return self._function_fold(step, function, output), output

        return self._add("KSTREAM-AGGREGATE-", store, fold)

    def _function_fold(self, step: Callable[[Any, Any, Any], Any], function: UserFunction, state: RowType) -> Fold:
        record = self._node.record
        return FunctionFold(step=step, node=function.node, function=function.name, value=record.value,
                            key=KeyType(record.key, record.is_windowed), state_type=state)

    def _add(self, prefix: str, store: str, fold_of: Callable[[str], tuple[Fold, RowType]]) -> KTable:
        check_name("store", store)
        name = self._graph.new_name(prefix)
        fold, output = fold_of(name)
        parent = repartition(self._graph, self._node, store) if self._needs_repartition else self._node
        record = self._graph.record(name, parent.record.key, output,
                                    is_windowed=parent.record.is_windowed or self._windows is not None)
        kind = StoreKind.KEY_VALUE if self._windows is None else StoreKind.WINDOW
        spec = store_spec(name, store, record, fold.state, kind=kind)
        node = AggregateNode(name=name, parent=parent, record=record, store=spec, fold=fold, windows=self._windows)
        return KTable(self._graph, self._graph.add(node), windows=self._windows)


class KGroupedStream(_Grouped):
    """Records by key. Aggregating drops null keys and null values, and counts the dropped."""

    def windowed_by(self, windows: TimeWindows) -> TimeWindowedKStream:
        """Records by key and window."""
        if not isinstance(windows, TimeWindows):
            raise TopologyError(f"windowed_by got {windows!r}; pass TimeWindows.of_size_and_grace(...) or "
                                "TimeWindows.of_size_with_no_grace(...)")
        if self._node.record.is_windowed:
            raise TopologyError("the key is windowed already; choose a new key with group_by(...) before windowed_by")
        return TimeWindowedKStream(self._graph, self._node, self._needs_repartition, windows)


class TimeWindowedKStream(_Grouped):
    """Records by key and time window. Aggregating drops null keys; null values are folded, and counted by ``count``."""

    def __init__(self, graph: Graph, node: Node, needs_repartition: bool, windows: TimeWindows) -> None:
        super().__init__(graph, node, needs_repartition=needs_repartition)
        self._windows = windows


def repartition(graph: Graph, parent: Node, name: str) -> RepartitionNode:
    """An edge that moves records to the task that owns their key; takes three numbers, as Kafka Streams does."""
    for prefix in ("KSTREAM-SINK-", "KSTREAM-FILTER-", "KSTREAM-SOURCE-"):
        graph.new_name(prefix)
    return graph.add(RepartitionNode(name=f"{name}-repartition", parent=parent, record=parent.record))
