"""Aggregations of cogrouped streams: several grouped streams with keys of one type, folded into one store (KIP-150).

Each stream has its own aggregator, or its own vectorized aggregates; records are folded in the order in which they
arrive, whichever stream they come from. Grouped streams are in ``grouped``, windows in ``windowing``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import polars as pl

from weir.pipelines.dsl.graph import (
    Graph,
    Materialized,
    check_store,
    places_of,
    returned_type,
    user_function,
)
from weir.pipelines.dsl.grouped import (
    Aggregating,
    Grouped,
    TableT,
    add_aggregation,
    check_aggregates,
    column_fold,
    repartition,
)
from weir.pipelines.dsl.windowing import EmitStrategy, Windowing
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.aggregates import Accumulator, Aggregate, Count, Sum
from weir.pipelines.operators.cogroup import INPUT, CogroupedValues, beside
from weir.pipelines.operators.fold import Fold, FunctionFold
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.source import source_schema
from weir.pipelines.topology.cogroups import CogroupNode
from weir.pipelines.topology.nodes import Node, RecordType

Aggregator = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True, kw_only=True)
class CogroupedInput:
    """One of the streams, and how its records are folded: by a function, or by vectorized aggregates."""

    node: Node
    needs_repartition: bool
    aggregator: Aggregator | None
    aggregates: Mapping[str, Aggregate | Count]


class Cogrouped(Aggregating[TableT]):
    """What cogrouped streams can be aggregated into; the store's name always comes first."""

    def __init__(self, graph: Graph, inputs: tuple[CogroupedInput, ...], windowing: Windowing | None = None) -> None:
        self._graph, self._inputs, self._windowing = graph, inputs, windowing

    def agg(self, store: str | Materialized, /) -> TableT:
        """Compute the aggregates that were named with the streams, one column each, in that order.

        While a stream has no record for a key, its aggregates are those of an empty input.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page")).group_by_key()
            >>> orders = builder.stream("orders", key=String("user"), value=Int64("cents")).group_by_key()
            >>> clicks.cogroup(clicks=Count()).cogroup(orders, spent=Sum("cents")).agg("users").to_delta("users_now")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_input("ann", "/docs")
            >>> driver.create_input_topic("orders").pipe_input("ann", 350)
            >>> driver.get_key_value_store("users").get("ann")
            {'clicks': 1, 'spent': 350}
        """
        if any(each.aggregator for each in self._inputs):
            raise TopologyError(
                f"agg({store!r}) needs named aggregates, and cogroup got a function; use aggregate(...), or name "
                "aggregates for each stream, for example cogroup(grouped, n=Count())"
            )
        accumulators: list[Accumulator] = []
        sources: list[dict[str, pl.Expr]] = []
        columns: dict[str, pl.DataType] = {}
        for index, each in enumerate(self._inputs):
            sources.append({})
            for name, aggregate in each.aggregates.items():
                schema = each.node.record.columns
                aggregate.bind(name, schema)  # raises if it does not fit the stream's own columns
                if isinstance(aggregate, Count):
                    inputs, aggregate = {"of": pl.lit(True)}, Sum("")
                else:
                    inputs = aggregate.inputs()
                named = {field: beside(index, name if field == "of" else f"{name}__{field}") for field in inputs}
                for field, column in named.items():
                    sources[-1][column] = inputs[field]
                    columns[column] = pl.DataFrame(schema=schema).select(inputs[field]).dtypes[0]
                accumulators.append(replace(aggregate, **named).bind(name, pl.Schema(columns)))
        fold, output = column_fold(check_store(store), list(self._inputs[0].node.record.key_columns), accumulators)
        return self._add(store, RowType(pl.Schema(columns)), sources, lambda name: (fold, output))

    def _aggregate(
        self, store: str | Materialized, initializer: Callable[[], Any], merger: Aggregator | None = None
    ) -> TableT:
        aggregators = [each.aggregator for each in self._inputs if each.aggregator]
        if len(aggregators) < len(self._inputs):
            raise TopologyError(
                f"aggregate({store!r}, ...) needs functions, and cogroup got named aggregates; use agg(...), or pass "
                "a function for each stream, for example cogroup(grouped, add)"
            )
        records = [each.node.record for each in self._inputs]
        values = CogroupedValues.of([record.value for record in records])

        def fold(name: str) -> tuple[Fold, RowType]:
            functions = [user_function(each, name, "key", "value", "aggregate") for each in aggregators]
            user_function(initializer, name)
            outputs = [returned_type(function, "value") for function in functions]
            for function, other in zip(functions, outputs, strict=True):
                if other != outputs[0]:
                    raise TopologyError(
                        f"{name}: {functions[0].name} and {function.name} return different types, but share one "
                        "store; annotate all aggregators with one type"
                    )

            def step(key: Any, item: tuple[int, Any], state: Any) -> Any:
                index, value = item
                return aggregators[index](key, value, initializer() if state is None else state)

            def merged(merger: Aggregator, key: Any, one: Any, other: Any) -> Any:
                return merger(key, initializer() if one is None else one, other)

            return FunctionFold(
                step=step,
                node=name,
                function=" or ".join(each.name for each in functions),
                value=values,
                key=records[0].key_type,
                state_type=outputs[0],
                merger=partial(merged, merger) if merger else None,
            ), outputs[0]

        sources = [
            {INPUT: pl.lit(index)} | {beside(index, name): pl.col(name) for name in record.value.columns}
            for index, record in enumerate(records)
        ]
        return self._add(store, values, sources, fold)

    def _add(
        self,
        store: str | Materialized,
        values: RowType,
        sources: list[dict[str, pl.Expr]],
        fold_of: Callable[[str], tuple[Fold, RowType]],
    ) -> TableT:
        graph, first = self._graph, self._inputs[0].node.record
        store_name = check_store(store)
        moving = sum(each.needs_repartition for each in self._inputs)
        parents = [
            repartition(graph, each.node, store_name if moving == 1 else f"{store_name}-{index}")
            if each.needs_repartition
            else each.node
            for index, each in enumerate(self._inputs)
        ]
        names = tuple(graph.new_name("COGROUPKSTREAM-AGGREGATE-") for _ in parents)
        name = graph.new_name("COGROUPKSTREAM-MERGE-")
        fold, output = fold_of(name)
        record = RecordType(key=first.key, value=values, is_windowed=first.is_windowed)
        columns = tuple(
            (
                *(
                    pl.col(theirs).alias(ours)
                    for ours, theirs in zip(first.key_columns, parent.record.key_columns, strict=True)
                ),
                *(
                    source.get(column, pl.lit(None)).cast(dtype).alias(column)
                    for column, dtype in values.columns.items()
                ),
                *(pl.col(column) for column in source_schema(pl.Schema())),
            )
            for parent, source in zip(parents, sources, strict=True)
        )
        node = graph.add(
            CogroupNode(
                name=names[0],
                parent=parents[0],
                others=tuple(parents[1:]),
                record=record,
                columns=columns,
                aggregate_names=names,
            )
        )
        return self._table(add_aggregation(graph, name, node, store, fold, output, self._windowing))

    def _with(
        self, grouped: Grouped[Any], aggregator: Aggregator | None, aggregates: Mapping[str, Aggregate | Count]
    ) -> tuple[CogroupedInput, ...]:
        """The streams and one more; raises ``TopologyError`` when it does not fit the others."""
        self._graph.check_meets(
            grouped._node if not self._inputs else self._inputs[0].node, grouped._graph, grouped._node
        )
        if (aggregator is None) == (not aggregates):
            raise TopologyError(
                "cogroup takes either one function of (key, value, aggregate) or named aggregates, for example "
                "n=Count(); pass one of the two"
            )
        check_aggregates(aggregates)
        for name in aggregates:
            if any(name in each.aggregates for each in self._inputs):
                raise TopologyError(f"cogroup has the aggregate {name!r} twice; each becomes a column, so rename one")
        record = grouped._node.record
        if self._inputs:
            first = self._inputs[0].node.record
            if (list(first.key_columns.dtypes()), first.is_windowed) != (
                list(record.key_columns.dtypes()),
                record.is_windowed,
            ):
                raise TopologyError(
                    f"cogroup got streams with the keys {dict(first.key_columns)} and "
                    f"{dict(record.key_columns)}; group all streams by keys of one type",
                    places=places_of(self._inputs[0].node, grouped._node),
                )
        return (
            *self._inputs,
            CogroupedInput(
                node=grouped._node,
                needs_repartition=grouped._needs_repartition,
                aggregator=aggregator,
                aggregates=aggregates,
            ),
        )


class CogroupedByFunction(Cogrouped[TableT]):
    """Aggregation by plain functions, where states are never merged."""

    def aggregate(self, store: str | Materialized, initializer: Callable[[], Any], /) -> TableT:
        """Fold each stream's records by its ``aggregator(key, value, aggregate)``, starting from ``initializer()``.

        A result of None deletes the row, and the next record starts again.

        Examples:
            >>> def bought(item: str, pieces: int, stock: int) -> int:
            ...     return stock + pieces
            >>> def sold(item: str, pieces: int, stock: int) -> int:
            ...     return stock - pieces
            >>> builder = StreamsBuilder()
            >>> purchases = builder.stream("purchases", key=String("item"), value=Int64("pieces")).group_by_key()
            >>> sales = builder.stream("sales", key=String("item"), value=Int64("pieces")).group_by_key()
            >>> purchases.cogroup(bought).cogroup(sales, sold).aggregate("stock", lambda: 0).to_delta("stock_now")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("purchases").pipe_input("tea", 10)
            >>> driver.create_input_topic("sales").pipe_input("tea", 3)
            >>> driver.get_key_value_store("stock").get("tea")
            7
        """
        return self._aggregate(store, initializer)


class CogroupedByWindow(Cogrouped[TableT]):
    """What all windows have in common."""

    _windowing: Windowing

    def emit_strategy(self, strategy: EmitStrategy) -> Self:
        """Say when the aggregation forwards a window; what it forwards when the window closes is final.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page")).group_by_key()
            >>> orders = builder.stream("orders", key=String("user"), value=Int64("cents")).group_by_key()
            >>> both = clicks.cogroup(clicks=Count()).cogroup(orders, spent=Sum("cents"))
            >>> minutes = both.windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1)))
            >>> minutes.emit_strategy(EmitStrategy.on_window_close()).agg("by_minute").to_delta("final")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_input("ann", "/docs", timestamp_ms=0)
            >>> driver.create_input_topic("orders").pipe_input("ann", 350, timestamp_ms=60_000)
            >>> driver.create_output_table("final").read_values_to_list()
            [{'clicks': 1, 'spent': 0}]
        """
        return type(self)(self._graph, self._inputs, self._windowing.emitting(strategy))


class CogroupedBySession(CogroupedByWindow[TableT]):
    """Aggregation by plain functions, of sessions, whose states are merged."""

    def aggregate(self, store: str | Materialized, initializer: Callable[[], Any], merger: Aggregator, /) -> TableT:
        """Fold each stream's records by its aggregator over the merged session.

        Sessions are merged in the order of their ends by ``merger(key, aggregate, other)``, starting from
        ``initializer()``.

        Examples:
            >>> def add(user: str, value: str, actions: int) -> int:
            ...     return actions + 1
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page")).group_by_key()
            >>> orders = builder.stream("orders", key=String("user"), value=String("item")).group_by_key()
            >>> visits = SessionWindows.of_inactivity_gap_with_no_grace(timedelta(minutes=30))
            >>> both = clicks.cogroup(add).cogroup(orders, add).windowed_by(visits)
            >>> both.aggregate("visits", lambda: 0, lambda user, one, other: one + other).to_delta("out")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_input("ann", "/docs", timestamp_ms=0)
            >>> driver.create_input_topic("orders").pipe_input("ann", "tea", timestamp_ms=60_000)
            >>> driver.create_output_table("out").read_values_to_list()  # a tombstone, as the session has grown
            [1, None, 2]
        """
        user_function(merger, f"aggregate({store!r}, ...)", "key", "aggregate", "other")
        return self._aggregate(store, initializer, merger)
