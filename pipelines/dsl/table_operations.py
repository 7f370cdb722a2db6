"""Operations that turn a table into another table (filters, mappers, joins, suppressions), its output, and new tables.

Those that lead to a stream or a grouped table are in ``streams``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, Self, get_args

import polars as pl

from weir.pipelines.arguments import positive_ms, what_it_is
from weir.pipelines.dsl.foreign_key import ForeignKey, add_foreign_key_join
from weir.pipelines.dsl.graph import Graph, Materialized, check_name, held_value, store_spec
from weir.pipelines.dsl.joins import JoinFunction, add_table_table_join
from weir.pipelines.dsl.partitions import partition_columns
from weir.pipelines.dsl.sinks import kafka_topic
from weir.pipelines.dsl.sql_sinks import sql_table
from weir.pipelines.dsl.stateless import add_expectation, add_filter, add_kept, add_map_values
from weir.pipelines.dsl.suppressed import StrictBufferConfig, Suppressed
from weir.pipelines.errors import TopologyError
from weir.pipelines.expectations import OnViolation
from weir.pipelines.operators.suppression_order import BufferLimits
from weir.pipelines.operators.table_table_join import JoinKind
from weir.pipelines.place import Place
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.sinks.sink import Sink as OutsideSink
from weir.pipelines.sinks.sql import SqlMode
from weir.pipelines.topology.joins import NewestToStreamNode, versioned_store
from weir.pipelines.topology.lineage import FINAL_RESULTS, SUPPRESSION, operator_of
from weir.pipelines.topology.nodes import (
    AggregateNode,
    ExpectNode,
    KeptTableNode,
    Node,
    SuppressNode,
    TableNode,
    TableSinkNode,
    ToStreamNode,
    Windows,
)
from weir.state.commit.outbox import outbox_name
from weir.state.stores.specs import VALID_FROM, buffer_spec, key_value_spec, versioned_spec
from weir.state.types import StoreClock

TtlClock = Literal["stream_time", "wall_clock"]
DEFAULT_REFRESH = timedelta(seconds=5)


class TableOperations:
    """What ``KTable`` can do without the other kinds; each method adds a node and returns what comes out of it."""

    def __init__(self, graph: Graph, node: Node, *, windows: Windows | None = None, is_final: bool = False) -> None:
        self._graph, self._node = graph, node
        self._windows = windows
        self._is_final = is_final
        """Whether each row comes once and is never updated: it is a fact."""
        self._kept: Node | None = None
        """What keeps final results that are looked up."""

    def filter(
        self, predicate: pl.Expr | Callable[[Any, Any], bool], *, store: str | Materialized | None = None
    ) -> Self:
        """Keep the rows for which the predicate is true; a row that no longer passes becomes a tombstone.

        The predicate, an expression or a function of ``(key, value)``, never sees a tombstone. With ``store`` the rows
        that pass are kept under that name, where they can be queried, and joins look them up there; without it they are
        filtered again out of the table's rows whenever they are looked up.

        Examples:
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> stock.filter(col("pieces") > 0).to_delta("available")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("stock").pipe_key_value_list([("tea", 2), ("tea", 0)])
            >>> driver.create_output_table("available").read_key_values_to_list()
            [('tea', 2), ('tea', None)]
        """
        node = add_filter(self._graph, self._node, predicate, "KTABLE-FILTER-", is_table=True)
        return self._then(add_kept(self._graph, node, store))

    def filter_not(
        self, predicate: pl.Expr | Callable[[Any, Any], bool], *, store: str | Materialized | None = None
    ) -> Self:
        """Keep the rows for which the predicate is false or null, with tombstones and ``store`` as in ``filter``.

        Examples:
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> stock.filter_not(lambda item, pieces: pieces == 0).to_delta("available")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("stock").pipe_key_value_list([("tea", 2), ("tea", 0)])
            >>> driver.create_output_table("available").read_key_values_to_list()
            [('tea', 2), ('tea', None)]
        """
        node = add_filter(self._graph, self._node, predicate, "KTABLE-FILTER-", is_table=True, is_negated=True)
        return self._then(add_kept(self._graph, node, store))

    def expect(
        self,
        name: str,
        predicate: pl.Expr | Callable[[Any, Any], bool],
        *,
        on_violation: OnViolation = "count",
        store: str | Materialized | None = None,
    ) -> Self:
        """Expect the predicate to be true for each update, as ``KStream.expect`` does; tombstones pass unjudged and
        uncounted.

        With ``"drop"`` an update that violates it is as if it had not come: the key keeps the row that it had.
        ``store`` keeps those rows, and is required; final results, which come once, need none. With ``"dead_letter"``
        the record that led to the update is put aside, and the table before it keeps its row too. With ``store`` the
        rows can be queried.

        Raises:
            TopologyError: An argument is invalid, the name is taken, or the table cannot do without what violates it.

        Examples:
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> valid = stock.expect("not_negative", col("pieces") >= 0, on_violation="drop", store="valid_stock")
            >>> valid.to_delta("valid")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("stock").pipe_key_value_list([("tea", 2), ("tea", -1)])
            >>> driver.create_output_table("valid").read_key_values_to_list()
            [('tea', 2)]
        """
        node = add_expectation(self._graph, self._node, name, predicate, on_violation, "KTABLE-EXPECT-", is_table=True)
        if on_violation == "dead_letter" and self._is_final:
            raise TopologyError(
                f"the expectation {name!r} puts records aside, but final results come of time, not of a record; write "
                'on_violation="drop", or put the expectation before the windows'
            )
        if on_violation == "drop" and not self._is_final:
            if versioned_store(self._node) is not None:
                raise TopologyError(
                    f"the expectation {name!r} drops updates of a versioned table, which is looked up by time; put it "
                    "on the stream: builder.stream(...).expect(...).to_table(...)"
                )
            if store is None:
                raise TopologyError(
                    f"the expectation {name!r} drops updates, so the rows before them have to be kept; name a store "
                    'for them, as in expect(..., on_violation="drop", store="valid"), or put the expectation on the '
                    "stream: builder.stream(...).expect(...).to_table(...)"
                )
        return self._then(add_kept(self._graph, node, store))

    def map_values(
        self,
        mapper: Callable[[Any], Any] | None = None,
        /,
        **columns: str | pl.Expr | Materialized | None,
    ) -> Self:
        """Replace the whole value, as ``KStream.map_values`` does; tombstones pass unmapped.

        ``store="name"`` keeps the new rows, as in ``filter``; an expression, ``store=col("shop")``, makes a column.

        Raises:
            TopologyError: ``store`` is the name of a column.

        Examples:
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> stock.map_values(is_low=col("pieces") < 5).to_delta("low")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("stock").pipe_input("tea", 2)
            >>> driver.create_output_table("low").read_rows()
            [{'item': 'tea', 'is_low': True}]
        """
        store = columns.get("store")
        if isinstance(store, pl.Expr):
            store = None
        else:
            columns.pop("store", None)
        if isinstance(store, str) and store in self._node.record.columns:
            raise TopologyError(
                f"map_values got store={store!r}, and the table has a column of that name; for a column of it write "
                f"store=col({store!r}), to keep the rows give the store another name"
            )
        node = add_map_values(self._graph, self._node, mapper, columns, "KTABLE-MAPVALUES-", is_table=True)
        return self._then(add_kept(self._graph, node, store))

    def join(
        self,
        other: Self,
        joiner: JoinFunction | None = None,
        /,
        *,
        foreign_key: ForeignKey | None = None,
        store: str | Materialized | None = None,
    ) -> Self:
        """The keys that both tables have, with the columns of both values, or with what ``joiner(value, other)`` or
        ``joiner(key, value, other)`` returns.

        Where both tables have a column of the same name, the other table's gets the suffix ``_right``. An update of
        either table updates the result, with the later time of the two rows.

        With ``foreign_key`` each row is joined with the row of the other table that it names: by a column, an
        expression, several columns by name, or a function of ``(value)`` or ``(key, value)``. The result has this
        table's keys, the tables may have different numbers of partitions, and ``store`` names the state: which row
        names which key. A row that names nothing has no result. While rows travel between the tables, a result may be
        outdated.

        Examples:
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> prices = builder.table("prices", key=String("item"), value=Int64("cents"), store="prices")
            >>> stock.join(prices).to_delta("offers")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("stock").pipe_input("tea", 2)
            >>> driver.create_input_topic("prices").pipe_input("tea", 350)
            >>> driver.create_output_table("offers").read_rows()
            [{'item': 'tea', 'pieces': 2, 'cents': 350}]

            By foreign key:

            >>> builder = StreamsBuilder()
            >>> orders = builder.table("orders", key=String("order"), value=String("buyer"), store="orders")
            >>> cities = builder.table("cities", key=String("customer"), value=String("city"), store="cities")
            >>> orders.join(cities, foreign_key="buyer", store="buyers").to_delta("shipping")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("cities").pipe_input("ann", "Oslo")
            >>> driver.create_input_topic("orders").pipe_input("17", "ann")
            >>> driver.create_output_table("shipping").read_rows()
            [{'order': '17', 'buyer': 'ann', 'city': 'Oslo'}]
        """
        return self._join(other, joiner, "inner", foreign_key, store)

    def left_join(
        self,
        other: Self,
        joiner: JoinFunction | None = None,
        /,
        *,
        foreign_key: ForeignKey | None = None,
        store: str | Materialized | None = None,
    ) -> Self:
        """The keys of this table, with nulls where the other table has no row; otherwise like ``join``.

        Examples:
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> prices = builder.table("prices", key=String("item"), value=Int64("cents"), store="prices")
            >>> stock.left_join(prices).to_delta("offers")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("stock").pipe_input("tea", 2)
            >>> driver.create_output_table("offers").read_rows()
            [{'item': 'tea', 'pieces': 2, 'cents': None}]
        """
        return self._join(other, joiner, "left", foreign_key, store)

    def outer_join(self, other: Self, joiner: JoinFunction | None = None, /) -> Self:
        """The keys that either table has, with nulls for a missing row; otherwise like ``join``.

        Examples:
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> prices = builder.table("prices", key=String("item"), value=Int64("cents"), store="prices")
            >>> stock.outer_join(prices).to_delta("offers")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("prices").pipe_input("tea", 350)
            >>> driver.create_output_table("offers").read_rows()
            [{'item': 'tea', 'pieces': None, 'cents': 350}]
        """
        return self._join(other, joiner, "outer")

    def _join(
        self,
        other: Self,
        joiner: JoinFunction | None,
        kind: JoinKind,
        foreign_key: ForeignKey | None = None,
        store: str | Materialized | None = None,
    ) -> Self:
        if not isinstance(other, TableOperations):
            raise TopologyError(
                f"a table cannot join {what_it_is(other)}; pass a table, for example builder.table(...) or "
                'stream.to_table("name")'
            )
        self._graph.check_meets(self._node, other._graph, other._node)
        if foreign_key is not None:
            return type(self)(
                self._graph,
                add_foreign_key_join(
                    self._graph, self._looked_up(), other._looked_up(), joiner, kind, foreign_key, store
                ),
            )
        if store is not None:
            raise TopologyError(
                f"store={store!r} names the state of a join by foreign key, and a join by equal keys keeps none; "
                "leave it out, or pass foreign_key="
            )
        sides = self._looked_up(), other._looked_up()
        return type(self)(self._graph, add_table_table_join(self._graph, *sides, joiner, kind))

    def _looked_up(self) -> Node:
        """The node whose rows joins and groupings look up: final results, which leave their windows' store, are kept in
        one of their own from the first time on."""
        if not self._is_final:
            return self._node
        if self._kept is None:
            name, parent = self._graph.new_name("KSTREAM-TOTABLE-"), self._add_to_stream()
            self._kept = add_table(self._graph, parent, self._graph.new_name(f"{FINAL_RESULTS}-"), name=name)
            self._kept.keeps_final_results = True
        return self._kept

    def suppress(self, suppressed: Suppressed) -> Self:
        """Hold updates back; what a suppression until the window closes forwards is final (KIP-328).

        A versioned table cannot be suppressed.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> minutes = clicks.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1)))
            >>> final = Suppressed.until_window_closes(BufferConfig.unbounded())
            >>> minutes.count("clicks_by_minute").suppress(final).to_delta("final")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> topic, table = driver.create_input_topic("clicks"), driver.create_output_table("final")
            >>> for seconds in (0, 30, 59):
            ...     topic.pipe_input("ann", "/", timestamp_ms=seconds * 1000)
            >>> table.read_values_to_list()
            []
            >>> topic.pipe_input("ann", "/", timestamp_ms=60_000)  # closes the first window
            >>> table.read_values_to_list()
            [3]
        """
        if not isinstance(suppressed, Suppressed):
            raise TopologyError(
                f"suppress got {suppressed!r}; pass Suppressed.until_window_closes(...) or "
                "Suppressed.until_time_limit(...)"
            )
        if (versions := versioned_store(self._node)) is not None:
            raise TopologyError(
                f"the table {versions.name!r} is versioned, and a suppression cannot hold back updates that may arrive "
                "out of order; suppress a table without history_retention=, for example the one that "
                '.to_stream().to_table("name") makes'
            )
        judged = self._node.parent if isinstance(self._node, KeptTableNode) else self._node
        if suppressed.limit_ms is None and isinstance(judged, ExpectNode):
            raise TopologyError(
                f"the expectation {judged.expectation!r} stands between the windows and their suppression, which then "
                "could not be evaluated together; judge the final results: .suppress(...).expect(...)",
                places=[Place.of_call(), judged.place],
            )
        records, size = suppressed.buffer.limits
        limits = BufferLimits(records=records, bytes=size, is_strict=isinstance(suppressed.buffer, StrictBufferConfig))
        delay_ms = suppressed.limit_ms if suppressed.limit_ms is not None else self._closes_after_ms()
        name = suppressed.name or self._graph.new_name("KTABLE-SUPPRESS-")
        if suppressed.name is None:
            store_name = self._graph.new_name(f"{SUPPRESSION}-")
        else:
            store_name = name if operator_of(name) == SUPPRESSION else f"{name}-store"
        record = self._node.record
        spec = store_spec(name, store_name, record, record.beside_key)
        is_final = suppressed.limit_ms is None
        if is_final and isinstance(self._node, AggregateNode):
            self._node.keep_headers()
        buffer = buffer_spec(spec.name, spec.key, held_value(self._node, spec.value))
        node = SuppressNode(
            name=name,
            parent=self._node,
            record=record,
            delay_ms=delay_ms,
            is_final=is_final,
            limits=limits,
            windows=self._windows if is_final else None,
            idle_after_ms=suppressed.idle_after_ms,
            is_named=suppressed.name is not None,
            restarts=suppressed.restarts,
            store=suppressed.options.applied(buffer) if suppressed.options else buffer,
        )
        return type(self)(
            self._graph,
            self._graph.add(node),
            windows=None if is_final else self._windows,
            is_final=is_final or self._is_final,
        )

    def _closes_after_ms(self) -> int:
        """How long after their end the table's windows close; raises ``TopologyError`` when they do not."""
        if self._is_final:
            raise TopologyError("the results are final already; leave the suppression out")
        if self._windows is None:
            raise TopologyError(
                "suppress until the window closes needs a windowed table; put .windowed_by(...) before the aggregation"
            )
        if self._windows.closes_after_ms is None:
            raise TopologyError("unlimited windows never close; use Suppressed.until_time_limit(...)")
        return self._windows.closes_after_ms

    def to_delta(
        self,
        table: str,
        *,
        emit: Literal["newest", "record"] = "newest",
        mode: Literal["append", "upsert"] = "append",
        refresh: timedelta | None = None,
        partition_by: str | Sequence[str] = (),
    ) -> None:
        """Append the updates to the Delta table ``table``: the newest per key and epoch, and each final result once.

        With ``emit="record"`` every update becomes a row, as if the records were evaluated one by one. An update of a
        versioned table that is older than the newest row of its key does not change the table's current rows, and is
        left out.

        With ``mode="upsert"`` the Delta table has one row per key instead, the newest, and none for a deleted key, so
        any reader of Delta sees the table as it is: key columns, value columns and ``_ts``. It follows the commits in
        the background, at most every ``refresh`` (5 seconds), and at the end of a run it has them all (docs/sql.md).

        ``partition_by`` is that of ``KStream.to_delta``; it goes with ``mode="append"``.

        Raises:
            TopologyError: The results are final, so each key is written once already; ``refresh``, ``emit`` or
                ``partition_by`` do not go with the mode; or a table cannot be partitioned by the columns.

        Examples:
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> stock.to_delta("stock_now")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("stock").pipe_key_value_list([("tea", 2), ("tea", 7)])
            >>> driver.create_output_table("stock_now").read_rows()
            [{'item': 'tea', 'pieces': 2}, {'item': 'tea', 'pieces': 7}]
        """
        _check_emit(emit)
        refresh_ms = self._refresh_ms(table, emit, mode, refresh)
        partitions = partition_columns(table, self._node.record, partition_by)
        if partitions and refresh_ms is not None:
            raise TopologyError(
                f'the table {table!r} got mode="upsert" and partition_by=: its rows move as their keys are updated; '
                'leave partition_by out, or use mode="append", whose readers take the newest row of each key'
            )
        parent = self._add_updates()
        name = self._graph.new_name("KSTREAM-SINK-")
        self._graph.add(
            TableSinkNode(
                name=name,
                parent=parent,
                record=self._node.record,
                table=check_name("table", table),
                is_updates=not self._is_final,
                keeps_all=emit == "record",
                refresh_ms=refresh_ms,
                partition_by=partitions,
            )
        )

    def to(
        self,
        topic: str | pl.Expr | Callable[[Any, Any], str],
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        partition: pl.Expr | None = None,
        name: str | None = None,
        emit: Literal["newest", "record"] = "newest",
    ) -> None:
        """Write the updates to a Kafka topic: the newest per key and epoch, as Kafka Streams with its record cache, and
        each final result once.

        With ``emit="record"`` every update is written, as by ``to_stream().to(...)``. Otherwise as ``KStream.to``.

        Raises:
            TopologyError: As ``KStream.to``.

        Examples:
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> stock.to("stock-now")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("stock").pipe_key_value_list([("tea", 2), ("tea", None)])
            >>> driver.create_output_topic("stock-now").read_key_values_to_list()
            [('tea', 2), ('tea', None)]
        """
        _check_emit(emit)
        parent = self._add_updates()
        sink = kafka_topic(
            self._node.record,
            topic,
            key=key,
            value=value,
            partition=partition,
            name=name,
            has_headers=parent.has_headers,
        )
        self._add_sink(parent, sink, collapses=emit == "newest")

    def to_sql(
        self,
        table: str,
        *,
        mode: SqlMode = "upsert",
        key: str | Sequence[str] | None = None,
        url: str | None = None,
        name: str | None = None,
        schema: str | None = None,
    ) -> None:
        """Keep a table of PostgreSQL or SQLite like this one: a row for each key, and none for a deleted key.

        With ``mode="append"`` each update becomes a row instead. Otherwise as ``KStream.to_sql``.

        Raises:
            TopologyError: An argument is invalid, or ``key`` has columns that a deleted row lacks.

        Examples:
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> stock.to_sql("stock", url="sqlite:////tmp/shop.db")
            >>> with TopologyTestDriver(Application("example", builder)) as driver:
            ...     driver.create_input_topic("stock").pipe_key_value_list([("tea", 2), ("tea", None)])
            ...     [(row["item"], row["pieces"], row["_deleted"]) for row in driver.read_sink("stock")]
            [('tea', 2, False), ('tea', None, True)]
        """
        sink = sql_table(self._node.record, table, mode=mode, key=key, url=url, name=name, schema=schema, is_table=True)
        self._add_sink(self._add_updates(), sink, collapses=sink.key == tuple(self._node.record.key_columns))

    def _add_updates(self) -> Node:
        """The updates as sinks get them: of a versioned table, those that are the newest of their key."""
        return self._add_to_stream(ToStreamNode if versioned_store(self._node) is None else NewestToStreamNode)

    def _add_sink(self, parent: Node, sink: OutsideSink, *, collapses: bool) -> None:
        """A sink outside the warehouse; with ``collapses`` it gets the newest update of each key and epoch."""
        self._graph.add(
            TableSinkNode(
                name=self._graph.new_name("KSTREAM-SINK-"),
                parent=parent,
                record=self._node.record,
                table=outbox_name(sink.name),
                is_updates=collapses and not self._is_final,
                sink=sink,
            )
        )

    def _refresh_ms(self, table: str, emit: str, mode: str, refresh: timedelta | None) -> int | None:
        """How often a table of upserts is refreshed at most; None for one that is appended to."""
        if mode not in ("append", "upsert"):
            raise TopologyError(f'mode is {mode!r}; it must be "append" or "upsert"')
        if mode == "append":
            if refresh is not None:
                raise TopologyError(
                    f"the table {table!r} got refresh=, but commits append to it themselves; leave refresh= out, or "
                    'add mode="upsert"'
                )
            return None
        if self._is_final:
            raise TopologyError(
                f"the results in {table!r} are final, so each is written once and the table has one row per key "
                f'already; leave the mode out: to_delta("{table}")'
            )
        if emit == "record":
            raise TopologyError(f'the table {table!r} keeps the newest row per key; leave emit="record" out')
        return positive_ms(DEFAULT_REFRESH if refresh is None else refresh, "refresh")

    def _add_to_stream(self, kind: type[ToStreamNode] = ToStreamNode) -> Node:
        name = self._graph.new_name("KTABLE-TOSTREAM-")
        return self._graph.add(kind(name=name, parent=self._node, record=self._node.record))

    def _then(self, node: Node) -> Self:
        return type(self)(self._graph, node, windows=self._windows, is_final=self._is_final)


def add_table(
    graph: Graph,
    parent: Node,
    store: str | Materialized,
    prefix: str = "",
    *,
    name: str = "",
    ttl: timedelta | None = None,
    ttl_by: TtlClock = "stream_time",
    history_retention: timedelta | None = None,
) -> TableNode:
    """A table of the records of ``parent``, named ``name`` or ``prefix`` and the next number."""
    name = name or graph.new_name(prefix)
    record = parent.record
    spec = store_spec(name, store, record, record.beside_key)
    if history_retention is not None:
        if ttl is not None:
            raise TopologyError(
                f"the table {spec.name!r} got both ttl= and history_retention=; a versioned table drops rows when "
                "their history ends, so leave ttl= out"
            )
        if VALID_FROM in record.columns:
            raise TopologyError(
                f"the table {spec.name!r} is versioned, and {VALID_FROM!r} is where its store keeps the time from "
                "which a row is valid; rename the column"
            )
        kept = versioned_spec(
            spec.name, spec.key, spec.value, history_ms=positive_ms(history_retention, "history_retention")
        )
        spec = replace(
            kept,
            supplier=spec.supplier,
            is_logged=spec.is_logged,
            is_rebuilt=spec.is_rebuilt,
            is_in_memory=spec.is_in_memory,
        )
    elif ttl is not None:
        if ttl_by not in get_args(TtlClock):
            raise TopologyError(f"ttl_by is {ttl_by!r}; it must be one of {', '.join(get_args(TtlClock))}")
        kept = key_value_spec(
            spec.name, spec.key, spec.value, ttl_ms=positive_ms(ttl, "ttl"), expires_by=StoreClock(ttl_by)
        )
        spec = replace(
            kept,
            supplier=spec.supplier,
            is_logged=spec.is_logged,
            is_rebuilt=spec.is_rebuilt,
            is_in_memory=spec.is_in_memory,
        )
    return graph.add(TableNode(name=name, parent=parent, record=record, store=spec))


def _check_emit(emit: str) -> None:
    if emit not in ("newest", "record"):
        raise TopologyError(f'emit is {emit!r}; it must be "newest" or "record"')
