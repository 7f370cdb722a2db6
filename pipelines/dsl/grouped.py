"""Aggregations of grouped streams, by key, and by key and window; and the edge that moves records to their groups.

How streams are grouped and windowed is in ``streams``, cogrouped streams are in ``cogrouped``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

import polars as pl

from weir.pipelines.dsl.graph import Graph, Materialized, check_store, returned_type, store_spec, user_function
from weir.pipelines.dsl.windowing import EmitStrategy, Windowing
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.aggregates import STORED, Accumulator, Aggregate, Count
from weir.pipelines.operators.fold import ColumnFold, Fold, FunctionFold
from weir.pipelines.operators.functions import KeyType, UserFunction
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.topology.nodes import AggregateNode, LateRecordsNode, Node, RepartitionNames, RepartitionNode

TableT = TypeVar("TableT")

_RUNNING_NAME = re.compile(r"KSTREAM.*-[0-9]{10}")
"""Names that Kafka Streams takes for made up, so that the nodes around a repartition get running numbers too."""


class Aggregating(ABC, Generic[TableT]):
    """What makes tables: ``KTable``, which leads back to streams; ``streams`` defines it and imports this module."""

    _graph: Graph

    @abstractmethod
    def _table(self, node: AggregateNode) -> TableT:
        """The table that ``node`` keeps."""


class Grouped(Aggregating[TableT]):
    """What a grouped stream can be aggregated into; the store's name always comes first."""

    _windowing: Windowing | None = None

    def __init__(self, graph: Graph, node: Node, *, needs_repartition: bool) -> None:
        self._graph, self._node, self._needs_repartition = graph, node, needs_repartition

    def agg(self, store: str | Materialized, /, **aggregates: Aggregate | Count) -> TableT:
        """Compute vectorized aggregates, one column each.

        Examples:
            >>> builder = StreamsBuilder()
            >>> flights = builder.stream("flights", key=String("carrier"), value=Int64("delay"))
            >>> flights.group_by_key().agg("delays", n=Count(), late=Sum(col("delay") > 15)).to_delta("delays_now")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("flights").pipe_key_value_list([("UA", 3), ("UA", 40)])
            >>> driver.get_key_value_store("delays").get("UA")
            {'n': 2, 'late': 1}
        """
        if not aggregates:
            raise TopologyError(
                f"agg({store!r}) computes nothing; name at least one aggregate, for example flights=Count()"
            )
        check_aggregates(aggregates)
        columns = self._node.record.columns
        accumulators = tuple(aggregate.bind(name, columns) for name, aggregate in aggregates.items())
        fold, output = column_fold(check_store(store), list(self._node.record.key_columns), accumulators)
        return self._add("KSTREAM-AGGREGATE-", store, lambda name: (fold, output))

    def count(self, store: str | Materialized, /) -> TableT:
        """Count the records, in the column ``count``.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> clicks.group_by("page").count("views").to_delta("views_now")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_key_value_list([("ann", "/docs"), ("bob", "/docs")])
            >>> driver.create_output_table("views_now").read_rows()
            [{'page': '/docs', 'count': 1}, {'page': '/docs', 'count': 2}]
        """
        accumulators = (Count().bind("count", self._node.record.columns),)
        output = RowType(pl.Schema({"count": pl.Int64()}), is_scalar=True)
        return self._add("KSTREAM-AGGREGATE-", store, lambda name: (ColumnFold(accumulators), output))

    def reduce(self, store: str | Materialized, reducer: Callable[[Any, Any], Any], /) -> TableT:
        """Fold the values of each key by ``reducer(reduced, value)``; the first value is the first result, without a
        call.

        Examples:
            >>> builder = StreamsBuilder()
            >>> bids = builder.stream("bids", key=String("item"), value=Int64("cents"))
            >>> bids.group_by_key().reduce("highest", max).to_delta("highest_bids")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("bids").pipe_key_value_list([("vase", 500), ("vase", 700), ("vase", 600)])
            >>> driver.get_key_value_store("highest").get("vase")
            700
        """
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

    def _add(self, prefix: str, store: str | Materialized, fold_of: Callable[[str], tuple[Fold, RowType]]) -> TableT:
        store_name = check_store(store)
        name = self._graph.new_name(prefix)
        fold, output = fold_of(name)
        parent = repartition(self._graph, self._node, store_name) if self._needs_repartition else self._node
        return self._table(add_aggregation(self._graph, name, parent, store, fold, output, self._windowing))


class GroupedByFunction(Grouped[TableT]):
    """Aggregation by plain functions, where states are never merged."""

    def aggregate(
        self,
        store: str | Materialized,
        initializer: Callable[[], Any],
        aggregator: Callable[[Any, Any, Any], Any],
        /,
    ) -> TableT:
        """Fold the records of each key by ``aggregator(key, value, aggregate)``, starting from ``initializer()``.

        A result of None deletes the row, and the next record starts again.

        Examples:
            >>> def longest(user: str, page: str, aggregate: int) -> int:
            ...     return max(aggregate, len(page))
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> clicks.group_by_key().aggregate("longest", lambda: 0, longest).to_delta("longest_now")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_key_value_list([("ann", "/docs"), ("ann", "/")])
            >>> driver.get_key_value_store("longest").get("ann")
            5
        """

        def fold(name: str) -> tuple[Fold, RowType]:
            function = user_function(aggregator, name, "key", "value", "aggregate")
            user_function(initializer, name)
            output = returned_type(function, "value")

            def step(key: Any, item: Any, state: Any) -> Any:
                return aggregator(key, item, initializer() if state is None else state)

            return self._function_fold(step, function, output), output

        return self._add("KSTREAM-AGGREGATE-", store, fold)


class GroupedByWindow(Grouped[TableT]):
    """What all windows have in common."""

    def __init__(self, graph: Graph, node: Node, needs_repartition: bool, windowing: Windowing) -> None:
        super().__init__(graph, node, needs_repartition=needs_repartition)
        self._windowing: Windowing = windowing

    def emit_strategy(self, strategy: EmitStrategy) -> Self:
        """Say when the aggregation forwards a window; what it forwards when the window closes is final.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> minutes = clicks.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1)))
            >>> minutes.emit_strategy(EmitStrategy.on_window_close()).count("by_minute").to_delta("final")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> for seconds in (0, 59, 60):
            ...     driver.create_input_topic("clicks").pipe_input("ann", "/", timestamp_ms=seconds * 1000)
            >>> driver.create_output_table("final").read_values_to_list()
            [2]
        """
        return type(self)(self._graph, self._node, self._needs_repartition, self._windowing.emitting(strategy))


class GroupedBySession(GroupedByWindow[TableT]):
    """Aggregation by plain functions, of sessions, whose states are merged."""

    def aggregate(
        self,
        store: str | Materialized,
        initializer: Callable[[], Any],
        aggregator: Callable[[Any, Any, Any], Any],
        merger: Callable[[Any, Any, Any], Any],
        /,
    ) -> TableT:
        """Fold the records of each session by ``aggregator(key, value, aggregate)``; a result of None deletes it.

        When a record joins sessions, they are merged in the order of their ends by ``merger(key, aggregate, other)``,
        starting from ``initializer()``; the aggregator then gets the merged state.

        Examples:
            >>> def add(user: str, page: str, pages: int) -> int:
            ...     return pages + 1
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> visits = SessionWindows.of_inactivity_gap_with_no_grace(timedelta(minutes=30))
            >>> sessions = clicks.group_by_key().windowed_by(visits)
            >>> sessions.aggregate("visits", lambda: 0, add, lambda user, one, other: one + other).to_delta("out")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> for minute in (0, 20, 120):
            ...     driver.create_input_topic("clicks").pipe_input("ann", "/", timestamp_ms=minute * 60_000)
            >>> driver.create_output_table("out").read_values_to_list()  # a tombstone, as the session has grown
            [1, None, 2, 1]
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
    """Raises ``TopologyError`` for anything but a vectorized aggregate."""
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, (Aggregate, Count)):
            raise TopologyError(
                f"{name} is {aggregate!r}; pass Count(), Sum(...) or another of the aggregates in docs/operators.md"
            )


def column_fold(store: str, key: Sequence[str], accumulators: Sequence[Accumulator]) -> tuple[Fold, RowType]:
    """The fold of vectorized aggregates and its result; raises ``TopologyError`` for a name that is taken."""
    names = [each.name for each in accumulators]
    state = [name for each in accumulators for name in each.state]
    for name in [*key, *state]:
        is_taken = state.count(name) > 1 or (name in key and name in state and name not in names)
        if is_taken or name.endswith(STORED):
            raise TopologyError(f"agg({store!r}): the column name {name!r} is reserved for Weir's own state; rename it")
    return ColumnFold(tuple(accumulators)), RowType(pl.Schema({each.name: each.output for each in accumulators}))


def add_aggregation(
    graph: Graph,
    name: str,
    parent: Node,
    store: str | Materialized,
    fold: Fold,
    output: RowType,
    windowing: Windowing | None,
) -> AggregateNode:
    """An aggregation of what ``parent`` forwards, kept in ``store``, windowed or not."""
    record = graph.record(
        name, parent.record.key, output, is_windowed=parent.record.is_windowed or windowing is not None, is_grouped=True
    )
    spec = store_spec(name, store, record, fold.state)
    if windowing is None:
        return graph.add(AggregateNode(name=name, parent=parent, record=record, store=spec, fold=fold, windows=None))
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
        key, value = parent.record.key, parent.record.value
        late = graph.record(late_to, key, value, is_windowed=True, shared=list(key.columns))
        windowing.late_to(graph.add(LateRecordsNode(name=late_to, parent=node, record=late)))
    return node


def repartition(
    graph: Graph,
    parent: Node,
    name: str,
    *,
    after: str = "",
    is_explicit: bool = False,
    partitions: int | None = None,
) -> RepartitionNode:
    """An edge that moves records to the task that owns their key; one that ``parent`` already has under this name and
    with as many partitions is shared. Either way it uses up three numbers, as in Kafka Streams, which may name it
    ``after`` something else."""
    topic, edge = f"{after or name}-repartition", f"{name}-repartition"
    sink, first, source = (graph.new_name(f"KSTREAM-{end}-") for end in ("SINK", "FILTER", "SOURCE"))
    for child in parent.children:
        if isinstance(child, RepartitionNode) and (child.name, child.partitions) == (edge, partitions):
            child.is_explicit |= is_explicit
            return child
    names = RepartitionNames.of(topic)
    if _RUNNING_NAME.fullmatch(after or name):
        names = RepartitionNames(topic=topic, sink=sink, source=source, filter=first)
    return graph.add(
        RepartitionNode(
            name=edge,
            parent=parent,
            record=parent.record,
            names=names,
            is_explicit=is_explicit,
            partitions=partitions,
        )
    )
