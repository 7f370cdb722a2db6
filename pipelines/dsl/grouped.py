"""Grouped streams: aggregations by key, and by key and window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, overload

import polars as pl

from weir.pipelines.dsl.graph import Graph, check_name, returned_type, store_spec, user_function
from weir.pipelines.dsl.table import KTable
from weir.pipelines.dsl.windowing import EmitStrategy, LateTo, Windowing
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.aggregates import STORED, Accumulator, Aggregate, Count
from weir.pipelines.operators.fold import ColumnFold, Fold, FunctionFold
from weir.pipelines.operators.functions import KeyType, UserFunction
from weir.pipelines.operators.session_windows import SessionWindows
from weir.pipelines.operators.sliding_windows import SlidingWindows
from weir.pipelines.operators.windows import TimeWindows, UnlimitedWindows
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.topology.nodes import AggregateNode, LateRecordsNode, Node, RecordType, RepartitionNode, Windows

if TYPE_CHECKING:
    from weir.pipelines.dsl.cogrouped import CogroupedKStream


class _Grouped:
    """What a grouped stream can be folded into; the store's name comes first everywhere."""

    _windowing: Windowing | None = None

    def __init__(self, graph: Graph, node: Node, *, needs_repartition: bool) -> None:
        self._graph, self._node, self._needs_repartition = graph, node, needs_repartition

    def agg(self, store: str, /, **aggregates: Aggregate | Count) -> KTable:
        """Vectorised aggregates, a column each: ``agg("hourly", flights=Count(), late=Sum(col("delay") > 15))``."""
        if not aggregates:
            raise TopologyError(f"agg({store!r}) computes nothing; name at least one aggregate, as flights=Count()")
        check_aggregates(aggregates)
        columns = self._node.record.columns
        accumulators = tuple(aggregate.bind(name, columns) for name, aggregate in aggregates.items())
        fold, output = column_fold(store, list(self._node.record.key_columns), accumulators)
        return self._add("KSTREAM-AGGREGATE-", store, lambda name: (fold, output))

    def count(self, store: str, /) -> KTable:
        """The number of records, in the column ``count``."""
        accumulators = (Count().bind("count", self._node.record.columns),)
        output = RowType(pl.Schema({"count": pl.Int64()}), is_scalar=True)
        return self._add("KSTREAM-AGGREGATE-", store, lambda name: (ColumnFold(accumulators), output))

    def reduce(self, store: str, reducer: Callable[[Any, Any], Any], /) -> KTable:
        """``reducer(reduced, value)`` over the values of a key; the first value is the first result, uncalled."""
        value = self._node.record.value

        def fold(name: str) -> tuple[Fold, RowType]:
            function = user_function(reducer, name, "reduced", "value")

            def step(key: Any, item: Any, state: Any) -> Any:
                return item if state is None else reducer(state, item)

            def merged(key: Any, one: Any, other: Any) -> Any:
                return other if one is None else reducer(one, other)

            return self._function_fold(step, function, value, merged), value

        return self._add("KSTREAM-REDUCE-", store, fold)

    def _function_fold(
        self,
        step: Callable[[Any, Any, Any], Any],
        function: UserFunction,
        state: RowType,
        merger: Callable[[Any, Any, Any], Any] | None = None,
    ) -> Fold:
        record = self._node.record
        return FunctionFold(
            step=step,
            node=function.node,
            function=function.name,
            value=record.value,
            key=KeyType(record.key, record.is_windowed),
            state_type=state,
            merger=merger,
        )

    def _add(self, prefix: str, store: str, fold_of: Callable[[str], tuple[Fold, RowType]]) -> KTable:
        check_name("store", store)
        name = self._graph.new_name(prefix)
        fold, output = fold_of(name)
        parent = repartition(self._graph, self._node, store) if self._needs_repartition else self._node
        return add_aggregation(self._graph, name, parent, store, fold, output, self._windowing)


class _GroupedByFunction(_Grouped):
    """Aggregation by plain functions, where no states are merged."""

    def aggregate(
        self, store: str, initializer: Callable[[], Any], aggregator: Callable[[Any, Any, Any], Any], /
    ) -> KTable:
        """``aggregator(key, value, aggregate)`` from ``initializer()`` on; None deletes the row and begins anew."""

        def fold(name: str) -> tuple[Fold, RowType]:
            function = user_function(aggregator, name, "key", "value", "aggregate")
            user_function(initializer, name)
            output = returned_type(function, "value")

            def step(key: Any, item: Any, state: Any) -> Any:
                return aggregator(key, item, initializer() if state is None else state)

            return self._function_fold(step, function, output), output

        return self._add("KSTREAM-AGGREGATE-", store, fold)


class KGroupedStream(_GroupedByFunction):
    """Records by key. Aggregating drops null keys and null values, and counts the dropped."""

    @overload
    def windowed_by(
        self,
        windows: SessionWindows,
        *,
        retention: timedelta | None = None,
        late_to: LateTo | None = None,
        idle_after: timedelta | None = None,
    ) -> SessionWindowedKStream: ...

    @overload
    def windowed_by(
        self,
        windows: TimeWindows | UnlimitedWindows | SlidingWindows,
        *,
        retention: timedelta | None = None,
        late_to: LateTo | None = None,
        idle_after: timedelta | None = None,
    ) -> TimeWindowedKStream: ...

    def windowed_by(
        self,
        windows: Windows,
        *,
        retention: timedelta | None = None,
        late_to: LateTo | None = None,
        idle_after: timedelta | None = None,
    ) -> TimeWindowedKStream | SessionWindowedKStream:
        """Records by key and window.

        ``retention`` keeps windows in the store beyond their close, to be queried: from their start, sessions and
        sliding windows from their end. ``late_to`` gets the stream of the records that are late, with the bounds of
        the closed window, one for each such window: ``late_to=lambda late: late.to_delta("late_clicks")``.

        With ``idle_after`` the wall clock closes windows while nothing arrives: after so much silence stream time goes
        on with it, and what arrives then may be late. It does not while a run catches up, nor in a backfill.

        Raises:
            TopologyError: The retention is shorter than the windows are open.
        """
        windowing = Windowing.of(windows, self._node.record, retention, idle_after, late_to)
        if isinstance(windows, SessionWindows):
            return SessionWindowedKStream(self._graph, self._node, self._needs_repartition, windowing)
        return TimeWindowedKStream(self._graph, self._node, self._needs_repartition, windowing)

    def cogroup(
        self, aggregator: Callable[[Any, Any, Any], Any] | None = None, /, **aggregates: Aggregate | Count
    ) -> CogroupedKStream:
        """Begin an aggregation of several grouped streams that share one store and one result a key.

        This one's records are folded by ``aggregator(key, value, aggregate)``, a function annotated with what it
        returns, or by vectorised aggregates of its columns, ``clicks=Count()``. Further streams join by ``cogroup`` of
        what this returns.
        """
        from weir.pipelines.dsl.cogrouped import CogroupedKStream

        return CogroupedKStream(self._graph, ()).cogroup(self, aggregator, **aggregates)


class _Windowed(_Grouped):
    """What is the same for all windows."""

    def __init__(self, graph: Graph, node: Node, needs_repartition: bool, windowing: Windowing) -> None:
        super().__init__(graph, node, needs_repartition=needs_repartition)
        self._windowing: Windowing = windowing

    def emit_strategy(self, strategy: EmitStrategy) -> Self:
        """When the aggregation forwards a window; what is forwarded on its close is final."""
        return type(self)(self._graph, self._node, self._needs_repartition, self._windowing.emitting(strategy))


class TimeWindowedKStream(_Windowed, _GroupedByFunction):
    """Records by key and time window. Aggregating drops null keys; null values are folded, and counted by ``count``.

    Sliding windows drop null values too.
    """


class SessionWindowedKStream(_Windowed):
    """Records by key and session. Aggregating drops null keys; null values are folded, and counted by ``count``.

    When a record changes the bounds of sessions or merges them, a tombstone goes out for each before the new one.
    """

    def aggregate(
        self,
        store: str,
        initializer: Callable[[], Any],
        aggregator: Callable[[Any, Any, Any], Any],
        merger: Callable[[Any, Any, Any], Any],
        /,
    ) -> KTable:
        """``aggregator(key, value, aggregate)`` over the merged session, None deletes it.

        Sessions are merged, by their ends, as ``merger(key, aggregate, other)`` from ``initializer()`` on.
        """

        def fold(name: str) -> tuple[Fold, RowType]:
            function = user_function(aggregator, name, "key", "value", "aggregate")
            user_function(initializer, name)
            user_function(merger, name, "key", "aggregate", "other")
            output = returned_type(function, "value")

            def step(key: Any, item: Any, state: Any) -> Any:
                return aggregator(key, item, initializer() if state is None else state)

            def merged(key: Any, one: Any, other: Any) -> Any:
                return merger(key, initializer() if one is None else one, other)

            return self._function_fold(step, function, output, merged), output

        return self._add("KSTREAM-AGGREGATE-", store, fold)


def check_aggregates(aggregates: Mapping[str, Any]) -> None:
    """Raises ``TopologyError`` for what is no vectorised aggregate."""
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, (Aggregate, Count)):
            raise TopologyError(
                f"{name} is {aggregate!r}; pass Count(), Sum(...), Min(...), Max(...), Mean(...), "
                "First(...), Last(...), ApproxDistinct(...), ApproxQuantiles(...) or Collect(...)"
            )


def column_fold(store: str, key: Sequence[str], accumulators: Sequence[Accumulator]) -> tuple[Fold, RowType]:
    """The fold of vectorised aggregates and its result; raises ``TopologyError`` for a name that is taken."""
    names = [each.name for each in accumulators]
    state = [name for each in accumulators for name in each.state]
    for name in [*key, *state]:
        is_taken = state.count(name) > 1 or (name in key and name in state and name not in names)
        if is_taken or name.endswith(STORED):
            raise TopologyError(f"agg({store!r}): the column {name!r} is one that Weir makes for itself; rename it")
    return ColumnFold(tuple(accumulators)), RowType(pl.Schema({each.name: each.output for each in accumulators}))


def add_aggregation(
    graph: Graph, name: str, parent: Node, store: str, fold: Fold, output: RowType, windowing: Windowing | None
) -> KTable:
    """An aggregation of what ``parent`` forwards, kept in ``store``, in windows or not."""
    record = graph.record(
        name, parent.record.key, output, is_windowed=parent.record.is_windowed or windowing is not None, is_grouped=True
    )
    spec = store_spec(name, store, record, fold.state)
    if windowing is None:
        return KTable(
            graph,
            graph.add(AggregateNode(name=name, parent=parent, record=record, store=spec, fold=fold, windows=None)),
        )
    late_to = graph.new_name("KSTREAM-LATE-") if windowing.late_to else None
    node = graph.add(
        AggregateNode(
            name=name,
            parent=parent,
            record=record,
            store=windowing.store(spec),
            fold=fold,
            windows=windowing.windows,
            is_final=windowing.is_final,
            late_to=late_to,
            idle_after_ms=windowing.idle_after_ms,
        )
    )
    if windowing.late_to and late_to:
        _add_late(graph, late_to, node, parent.record, windowing.late_to)
    return KTable(graph, node, windows=windowing.windows, is_final=windowing.is_final)


def _add_late(graph: Graph, name: str, node: Node, record: RecordType, late_to: LateTo) -> None:
    from weir.pipelines.dsl.stream import KStream

    late = graph.record(name, record.key, record.value, is_windowed=True, shared=list(record.key.columns))
    late_to(KStream(graph, graph.add(LateRecordsNode(name=name, parent=node, record=late)), has_new_key=False))


def repartition(
    graph: Graph, parent: Node, name: str, *, is_explicit: bool = False, partitions: int | None = None
) -> RepartitionNode:
    """An edge that moves records to the task that owns their key; takes three numbers, as Kafka Streams does."""
    for prefix in ("KSTREAM-SINK-", "KSTREAM-FILTER-", "KSTREAM-SOURCE-"):
        graph.new_name(prefix)
    return graph.add(
        RepartitionNode(
            name=f"{name}-repartition",
            parent=parent,
            record=parent.record,
            is_explicit=is_explicit,
            partitions=partitions,
        )
    )
