"""Cogrouped streams: several grouped streams with keys of one type, folded into one store (KIP-150).

Each stream has its own aggregator, or its own vectorised aggregates; the records of all are taken in the order of their
arrival. Grouped streams are in ``grouped``, windows in ``windowing``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self, overload

import polars as pl

from weir.pipelines.dsl.graph import Graph, check_name, returned_type, user_function
from weir.pipelines.dsl.grouped import KGroupedStream, add_aggregation, check_aggregates, column_fold, repartition
from weir.pipelines.dsl.table import KTable
from weir.pipelines.dsl.windowing import EmitStrategy, Windowing
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.aggregates import Accumulator, Aggregate, Count, Sum
from weir.pipelines.operators.cogroup import INPUT, CogroupedValues, beside
from weir.pipelines.operators.fold import Fold, FunctionFold
from weir.pipelines.operators.session_windows import SessionWindows
from weir.pipelines.operators.sliding_windows import SlidingWindows
from weir.pipelines.operators.windows import TimeWindows, UnlimitedWindows
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.source import source_schema
from weir.pipelines.topology.cogroups import CogroupNode
from weir.pipelines.topology.nodes import Node, RecordType, Windows

Aggregator = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True, kw_only=True)
class _Input:
    """One of the streams, and how its records are folded: by a function, or by vectorised aggregates."""

    node: Node
    needs_repartition: bool
    aggregator: Aggregator | None
    aggregates: Mapping[str, Aggregate | Count]


class _Cogrouped:
    """What cogrouped streams can be folded into."""

    def __init__(self, graph: Graph, inputs: tuple[_Input, ...], windowing: Windowing | None = None) -> None:
        self._graph, self._inputs, self._windowing = graph, inputs, windowing

    def agg(self, store: str, /) -> KTable:
        """The aggregates that were named with the streams, a column each, in that order.

        Of a key that a stream has brought no record for, they are what they are of nothing.
        """
        if any(each.aggregator for each in self._inputs):
            raise TopologyError(
                f"agg({store!r}) folds by aggregates, and an aggregator was passed to cogroup; use "
                "aggregate(...), or name aggregates for each stream, as cogroup(grouped, n=Count())"
            )
        accumulators: list[Accumulator] = []
        sources: list[dict[str, pl.Expr]] = []
        columns: dict[str, pl.DataType] = {}
        for index, each in enumerate(self._inputs):
            sources.append({})
            for name, aggregate in each.aggregates.items():
                column, schema = beside(index, name), each.node.record.columns
                aggregate.bind(name, schema)  # raises what does not fit the stream's own columns
                if isinstance(aggregate, Count):
                    source, aggregate = pl.lit(True), Sum(column)
                else:
                    source, aggregate = aggregate.input(), replace(aggregate, of=column)
                sources[-1][column] = source
                columns[column] = pl.DataFrame(schema=schema).select(source).dtypes[0]
                accumulators.append(aggregate.bind(name, pl.Schema(columns)))
        fold, output = column_fold(store, list(self._inputs[0].node.record.key_columns), accumulators)
        return self._add(store, RowType(pl.Schema(columns)), sources, lambda name: (fold, output))

    def _aggregate(self, store: str, initializer: Callable[[], Any], merger: Aggregator | None = None) -> KTable:
        aggregators = [each.aggregator for each in self._inputs if each.aggregator]
        if len(aggregators) < len(self._inputs):
            raise TopologyError(
                f"aggregate({store!r}, ...) folds by functions, and aggregates were named in cogroup; "
                "use agg(...), or pass an aggregator for each stream, as cogroup(grouped, add)"
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
                        f"{name}: {functions[0].name} and {function.name} return different types, and "
                        "they share one store; annotate all aggregators with one type"
                    )

            def step(key: Any, item: tuple[int, Any], state: Any) -> Any:
                index, value = item
                return aggregators[index](key, value, initializer() if state is None else state)

            def merged(key: Any, one: Any, other: Any) -> Any:
                assert merger is not None
                return merger(key, initializer() if one is None else one, other)

            return FunctionFold(
                step=step,
                node=name,
                function=" or ".join(each.name for each in functions),
                value=values,
                key=records[0].key_type,
                state_type=outputs[0],
                merger=merged if merger else None,
            ), outputs[0]

        sources = [
            {INPUT: pl.lit(index)} | {beside(index, name): pl.col(name) for name in record.value.columns}
            for index, record in enumerate(records)
        ]
        return self._add(store, values, sources, fold)

    def _add(
        self,
        store: str,
        values: RowType,
        sources: list[dict[str, pl.Expr]],
        fold_of: Callable[[str], tuple[Fold, RowType]],
    ) -> KTable:
        graph, first = self._graph, self._inputs[0].node.record
        check_name("store", store)
        moving = sum(each.needs_repartition for each in self._inputs)
        parents = [
            repartition(graph, each.node, store if moving == 1 else f"{store}-{index}")
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
        return add_aggregation(graph, name, node, store, fold, output, self._windowing)


class CogroupedKStream(_Cogrouped):
    """Several grouped streams. Aggregating drops null keys and null values, and counts the dropped."""

    def cogroup(
        self, grouped: KGroupedStream, aggregator: Aggregator | None = None, /, **aggregates: Aggregate | Count
    ) -> CogroupedKStream:
        """One more stream, whose records are folded by ``aggregator`` or ``aggregates`` as for ``KGroupedStream``.

        Its key columns match those of the first stream by position and type.

        Raises:
            TopologyError: The keys differ in type, an aggregate has the name of another, or there is not one way to
                fold the records.
        """
        if not isinstance(grouped, KGroupedStream):
            raise TopologyError(
                f"cogroup got a {type(grouped).__name__}; pass a grouped stream, as stream.group_by_key()"
            )
        self._graph.check_meets(grouped._graph)
        if (aggregator is None) == (not aggregates):
            raise TopologyError("cogroup takes one function (key, value, aggregate), or named aggregates as n=Count()")
        check_aggregates(aggregates)
        for name in aggregates:
            if any(name in each.aggregates for each in self._inputs):
                raise TopologyError(f"cogroup has the aggregate {name!r} twice; each makes a column, rename one")
        record = grouped._node.record
        if self._inputs:
            first = self._inputs[0].node.record
            if (list(first.key_columns.dtypes()), first.is_windowed) != (
                list(record.key_columns.dtypes()),
                record.is_windowed,
            ):
                raise TopologyError(
                    f"cogroup brings together the keys {dict(first.key_columns)} and "
                    f"{dict(record.key_columns)}; group all streams by keys of one type"
                )
        return CogroupedKStream(
            self._graph,
            (
                *self._inputs,
                _Input(
                    node=grouped._node,
                    needs_repartition=grouped._needs_repartition,
                    aggregator=aggregator,
                    aggregates=aggregates,
                ),
            ),
        )

    def aggregate(self, store: str, initializer: Callable[[], Any], /) -> KTable:
        """Each stream's ``aggregator(key, value, aggregate)`` from ``initializer()`` on; None deletes the row."""
        return self._aggregate(store, initializer)

    @overload
    def windowed_by(
        self, windows: SessionWindows, *, retention: timedelta | None = None, idle_after: timedelta | None = None
    ) -> SessionWindowedCogroupedKStream: ...

    @overload
    def windowed_by(
        self,
        windows: TimeWindows | UnlimitedWindows | SlidingWindows,
        *,
        retention: timedelta | None = None,
        idle_after: timedelta | None = None,
    ) -> TimeWindowedCogroupedKStream: ...

    def windowed_by(
        self,
        windows: Windows,
        *,
        retention: timedelta | None = None,
        idle_after: timedelta | None = None,
    ) -> TimeWindowedCogroupedKStream | SessionWindowedCogroupedKStream:
        """Records by key and window, as ``KGroupedStream.windowed_by``; the streams share one stream time."""
        windowing = Windowing.of(windows, self._inputs[0].node.record, retention, idle_after)
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(self._graph, self._inputs, windowing)
        return TimeWindowedCogroupedKStream(self._graph, self._inputs, windowing)


class _WindowedCogrouped(_Cogrouped):
    """What is the same for all windows."""

    _windowing: Windowing

    def emit_strategy(self, strategy: EmitStrategy) -> Self:
        """When the aggregation forwards a window; what is forwarded on its close is final."""
        return type(self)(self._graph, self._inputs, self._windowing.emitting(strategy))


class TimeWindowedCogroupedKStream(_WindowedCogrouped):
    """Several grouped streams by key and time window; null keys and values as in ``TimeWindowedKStream``."""

    def aggregate(self, store: str, initializer: Callable[[], Any], /) -> KTable:
        """Each stream's ``aggregator(key, value, aggregate)`` from ``initializer()`` on; None deletes the row."""
        return self._aggregate(store, initializer)


class SessionWindowedCogroupedKStream(_WindowedCogrouped):
    """Several grouped streams by key and session, which records of all of them make; else as
    ``SessionWindowedKStream``."""

    def aggregate(self, store: str, initializer: Callable[[], Any], merger: Aggregator, /) -> KTable:
        """Each stream's aggregator over the merged session; sessions are merged, by their ends, as
        ``merger(key, aggregate, other)`` from ``initializer()`` on."""
        user_function(merger, f"aggregate({store!r}, ...)", "key", "aggregate", "other")
        return self._aggregate(store, initializer, merger)
