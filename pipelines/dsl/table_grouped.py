"""Aggregations of grouped tables, which take a row's old value out of its group when the row changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from weir.pipelines.dsl.graph import Graph, Materialized, check_store, returned_type, store_spec, user_function
from weir.pipelines.dsl.grouped import Aggregating, TableT
from weir.pipelines.dsl.mapping import selected_key
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.aggregates import STORED, Aggregate, Count
from weir.pipelines.operators.changes import ChangedRows, adding_and_subtracting, bind_signed
from weir.pipelines.operators.fold import ColumnFold, Fold, FunctionFold
from weir.pipelines.operators.functions import UserFunction
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.topology.joins import be_looked_up
from weir.pipelines.topology.nodes import Node, RepartitionNames
from weir.pipelines.topology.table_groups import ChangeAggregateNode, ChangeRepartitionNode, ChangeSelectNode


class GroupedTable(Aggregating[TableT]):
    """What a grouped table can be aggregated into; the store's name always comes first."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self._graph, self._node = graph, node

    def agg(self, store: str | Materialized, /, **aggregates: Aggregate | Count) -> TableT:
        """Compute ``Count()``, ``Sum(...)`` and ``Mean(...)`` over the rows that each group has now, one column each.

        Examples:
            >>> builder = StreamsBuilder()
            >>> homes = builder.table("homes", key=String("person"), value=String("town"), store="homes")
            >>> homes.group_by("town").agg("towns", people=Count()).to_delta("towns_now")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> moves = [("ann", "Oslo"), ("bob", "Oslo"), ("ann", "Bergen")]
            >>> driver.create_input_topic("homes").pipe_key_value_list(moves)
            >>> driver.get_key_value_store("towns").get("Oslo")
            {'people': 1}
        """
        if not aggregates:
            raise TopologyError(
                f"agg({store!r}) computes nothing; name at least one aggregate, for example towns=Count()"
            )
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, (Aggregate, Count)):
                raise TopologyError(f"{name} is {aggregate!r}; pass Count(), Sum(...) or Mean(...)")
            if name.endswith(STORED):
                raise TopologyError(
                    f"agg({store!r}): the column name {name!r} is reserved for Weir's own state; rename it"
                )
        columns = self._node.record.columns
        accumulators = tuple(bind_signed(aggregate, name, columns) for name, aggregate in aggregates.items())
        output = RowType(pl.Schema({each.name: each.output for each in accumulators}))
        return self._add("KTABLE-AGGREGATE-", store, lambda name: (ColumnFold(accumulators), output))

    def count(self, store: str | Materialized, /) -> TableT:
        """Count the rows that each group has now, in the column ``count``.

        Examples:
            >>> builder = StreamsBuilder()
            >>> homes = builder.table("homes", key=String("person"), value=String("town"), store="homes")
            >>> homes.group_by("town").count("people").to_delta("people_now")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> moves = [("ann", "Oslo"), ("bob", "Oslo"), ("ann", "Bergen")]
            >>> driver.create_input_topic("homes").pipe_key_value_list(moves)
            >>> driver.create_output_table("people_now").read_key_values_to_list()
            [('Oslo', 1), ('Oslo', 2), ('Oslo', 1), ('Bergen', 1)]
        """
        accumulators = (bind_signed(Count(), "count", self._node.record.columns),)
        output = RowType(pl.Schema({"count": pl.Int64()}), is_scalar=True)
        return self._add("KTABLE-AGGREGATE-", store, lambda name: (ColumnFold(accumulators), output))

    def reduce(
        self, store: str | Materialized, adder: Callable[[Any, Any], Any], subtractor: Callable[[Any, Any], Any], /
    ) -> TableT:
        """Fold the rows of each group: ``adder(reduced, value)`` for a row that enters the group,
        ``subtractor(reduced, value)`` for a row that leaves it.

        The first row of a group is its first result, without a call.

        Examples:
            >>> @dataclass(frozen=True)
            ... class Stay:
            ...     town: str
            ...     nights: int
            >>> def more(one: Stay, other: Stay) -> Stay:
            ...     return Stay(one.town, one.nights + other.nights)
            >>> def less(one: Stay, other: Stay) -> Stay:
            ...     return Stay(one.town, one.nights - other.nights)
            >>> builder = StreamsBuilder()
            >>> stays = builder.table("stays", key=String("id"), value=Json(Stay), store="stays")
            >>> stays.group_by(by=col("town")).reduce("nights", more, less).to_delta("nights_now")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> changes = [("1", Stay("Oslo", 2)), ("2", Stay("Oslo", 3)), ("1", Stay("Oslo", 5))]
            >>> driver.create_input_topic("stays").pipe_key_value_list(changes)
            >>> driver.get_key_value_store("nights").get("Oslo")
            {'town': 'Oslo', 'nights': 8}
        """
        value = self._node.record.value

        def fold(name: str) -> tuple[Fold, RowType]:
            function, _ = (user_function(each, name, "reduced", "value") for each in (adder, subtractor))
            return self._function_fold(
                lambda key, item, state: item if state is None else adder(state, item),
                lambda key, item, state: subtractor(state, item),
                function,
                value,
            ), value

        return self._add("KTABLE-REDUCE-", store, fold)

    def aggregate(
        self,
        store: str | Materialized,
        initializer: Callable[[], Any],
        adder: Callable[[Any, Any, Any], Any],
        subtractor: Callable[[Any, Any, Any], Any],
        /,
    ) -> TableT:
        """Fold the rows of each group: ``adder(key, value, aggregate)`` for a row that enters the group, starting from
        ``initializer()``, and ``subtractor`` with the same arguments for a row that leaves it.

        A result of None deletes the group's row.

        Examples:
            >>> def add(town: str, nights: int, total: int) -> int:
            ...     return total + 1
            >>> def subtract(town: str, nights: int, total: int) -> int | None:
            ...     return total - 1 or None
            >>> builder = StreamsBuilder()
            >>> stays = builder.table("stays", key=String("id"), value=Int64("nights"), store="stays")
            >>> stays.group_by("nights").aggregate("lengths", lambda: 0, add, subtract).to_delta("lengths_now")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("stays").pipe_key_value_list([("1", 2), ("1", 3)])
            >>> driver.create_output_table("lengths_now").read_key_values_to_list()
            [(2, 1), (2, None), (3, 1)]
        """

        def fold(name: str) -> tuple[Fold, RowType]:
            function, _ = (user_function(each, name, "key", "value", "aggregate") for each in (adder, subtractor))
            user_function(initializer, name)
            output = returned_type(function, "value")
            return self._function_fold(
                lambda key, item, state: adder(key, item, initializer() if state is None else state),
                subtractor,
                function,
                output,
            ), output

        return self._add("KTABLE-AGGREGATE-", store, fold)

    def _function_fold(
        self,
        add: Callable[[Any, Any, Any], Any],
        subtract: Callable[[Any, Any, Any], Any],
        function: UserFunction,
        state: RowType,
    ) -> Fold:
        record = self._node.record
        changed = ChangedRows(
            record.value.columns, record.value.is_scalar, record.value.python_type, record.value.declared
        )
        return FunctionFold(
            step=adding_and_subtracting(add, subtract),
            node=function.node,
            function=function.name,
            key=record.key_type,
            value=changed,
            state_type=state,
        )

    def _add(self, prefix: str, store: str | Materialized, fold_of: Callable[[str], tuple[Fold, RowType]]) -> TableT:
        store_name = check_store(store)
        sink, source = (self._graph.new_name(prefix) for prefix in ("KSTREAM-SINK-", "KSTREAM-SOURCE-"))
        topic = f"{store_name}-repartition"
        name = self._graph.new_name(prefix)
        fold, output = fold_of(name)
        moved_rows = self._graph.add(
            ChangeRepartitionNode(
                name=topic,
                parent=self._node,
                record=self._node.record,
                names=RepartitionNames(topic=topic, sink=sink, source=source),
            )
        )
        record = self._graph.record(name, self._node.record.key, output, is_grouped=True)
        spec = store_spec(name, store, record, fold.state)
        return self._table(
            self._graph.add(
                ChangeAggregateNode(name=name, parent=moved_rows, record=record, store=spec, fold=fold, windows=None)
            )
        )


def add_table_group(graph: Graph, table: Node, selector: Sequence[Any], columns: Mapping[str, Any]) -> Node:
    """The rows of ``table`` by another key; raises ``TopologyError`` when its rows cannot be looked up."""
    name = graph.new_name("KTABLE-SELECT-")
    be_looked_up(table)
    expressions, key, shared = selected_key(name, table, selector, columns)
    return graph.add(
        ChangeSelectNode(
            name=name,
            parent=table,
            selector=expressions,
            record=graph.record(name, key, table.record.value, shared=shared),
        )
    )
