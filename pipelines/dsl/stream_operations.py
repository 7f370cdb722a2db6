"""Operations that turn a stream into another stream (filters, mappers, merges, repartitions), and its outputs.

Those that lead to a table or a grouped stream, and the joins, are in ``streams``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Self

import polars as pl

from weir.pipelines.arguments import what_it_is, whole_number
from weir.pipelines.dsl.batched_sinks import batched, http_endpoint, own_sink
from weir.pipelines.dsl.graph import Graph, check_name
from weir.pipelines.dsl.grouped import repartition
from weir.pipelines.dsl.mapping import add_flat_map, add_flat_map_values, add_map, add_select_key
from weir.pipelines.dsl.merging import add_merge
from weir.pipelines.dsl.partitions import partition_columns
from weir.pipelines.dsl.sinks import kafka_topic
from weir.pipelines.dsl.sql_sinks import sql_table
from weir.pipelines.dsl.stateless import add_expectation, add_filter, add_map_values, add_peek, add_with_timestamp
from weir.pipelines.errors import TopologyError
from weir.pipelines.expectations import OnViolation
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.sinks.http import BodyFormat
from weir.pipelines.sinks.own import Sink
from weir.pipelines.sinks.sink import Sink as OutsideSink
from weir.pipelines.sinks.sql import SqlMode
from weir.pipelines.topology.nodes import Node, TableSinkNode
from weir.state.commit.outbox import outbox_name


class StreamOperations:
    """What ``KStream`` can do without the other kinds; each method adds a node and returns what comes out of it."""

    def __init__(self, graph: Graph, node: Node, *, has_new_key: bool) -> None:
        self._graph, self._node = graph, node
        self._has_new_key = has_new_key
        """Whether the key has changed, so that the next grouping moves the records to the task that owns it."""
        graph.streams[node.name] = has_new_key

    @property
    def name(self) -> str:
        """The name of the node that forwards the records, as ``describe()`` shows it.

        Examples:
            >>> StreamsBuilder().stream("clicks", key=String("user"), value=String("page")).name
            'KSTREAM-SOURCE-0000000000'
        """
        return self._node.name

    def filter(self, predicate: pl.Expr | Callable[[Any, Any], bool]) -> Self:
        """Keep the records for which the predicate, an expression or a function of ``(key, value)``, is true.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> clicks.filter(col("page") != "/").to_delta("pages")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_key_value_list([("ann", "/"), ("bob", "/docs")])
            >>> driver.create_output_table("pages").read_rows()
            [{'user': 'bob', 'page': '/docs'}]
        """
        return self._then(add_filter(self._graph, self._node, predicate, "KSTREAM-FILTER-", is_table=False))

    def filter_not(self, predicate: pl.Expr | Callable[[Any, Any], bool]) -> Self:
        """Keep the records that ``filter`` with the same predicate would drop: where it is false or null.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> clicks.filter_not(lambda user, page: page == "/").to_delta("pages")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_key_value_list([("ann", "/"), ("bob", "/docs")])
            >>> driver.create_output_table("pages").read_rows()
            [{'user': 'bob', 'page': '/docs'}]
        """
        return self._then(
            add_filter(self._graph, self._node, predicate, "KSTREAM-FILTER-", is_table=False, is_negated=True)
        )

    def expect(
        self,
        name: str,
        predicate: pl.Expr | Callable[[Any, Any], bool],
        *,
        on_violation: OnViolation = "count",
    ) -> Self:
        """Expect the predicate, an expression or a function of ``(key, value)``, to be true for each record, and count
        by ``name`` for how many it is; null counts as false (docs/expectations.md).

        A record that violates it goes on with ``"count"``, and is dropped here with ``"drop"``. With ``"dead_letter"``
        the record of the topic, or of the repartition, that led to it is put aside and has no effect anywhere; with
        ``"fail"`` the run stops before it. The name is unique in the application.

        Raises:
            TopologyError: An argument is invalid, or the name is taken.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.expect("positive", col("cents") > 0, on_violation="drop").to_delta("sales")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("bob", -1)])
            >>> driver.create_output_table("sales").read_key_values_to_list()
            [('ann', 500)]
        """
        return self._then(
            add_expectation(self._graph, self._node, name, predicate, on_violation, "KSTREAM-EXPECT-", is_table=False)
        )

    def map(
        self,
        mapper: Callable[[Any, Any], tuple[Any, Any] | None] | None = None,
        /,
        *,
        key: str | Mapping[str, str | pl.Expr] | None = None,
        value: str | Mapping[str, str | pl.Expr] | None = None,
    ) -> Self:
        """Give each record a new key and a new value: ``key=`` and ``value=`` with columns, or one function of
        ``(key, value)`` that is annotated to return ``tuple[Key, Value]``.

        The key counts as changed, as after ``select_key``. A function that returns None in place of a pair sends
        nothing on; a value of None is a null value.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> clicks.map(key="page", value={"by": col("user").str.to_uppercase()}).to_delta("visits")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_input("ann", "/docs")
            >>> driver.create_output_table("visits").read_rows()
            [{'page': '/docs', 'by': 'ANN'}]
        """
        return self._then(add_map(self._graph, self._node, mapper, key, value), has_new_key=True)

    def flat_map(self, mapper: Callable[[Any, Any], Iterable[tuple[Any, Any]] | None], /) -> Self:
        """Turn each record into any number of records: a function of ``(key, value)`` that is annotated to return
        ``list[tuple[Key, Value]]`` or ``Iterator[...]``.

        They keep the record's time and place. The key counts as changed. None sends nothing on, as an empty list does.

        Examples:
            >>> def both_ways(one: str, other: str) -> list[tuple[str, str]]:
            ...     return [(one, other), (other, one)]
            >>> builder = StreamsBuilder()
            >>> friends = builder.stream("friends", key=String("one"), value=String("other"))
            >>> friends.flat_map(both_ways).to_delta("known")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("friends").pipe_input("ann", "bob")
            >>> driver.create_output_table("known").read_rows()
            [{'key': 'ann', 'value': 'bob'}, {'key': 'bob', 'value': 'ann'}]
        """
        return self._then(add_flat_map(self._graph, self._node, mapper), has_new_key=True)

    def flat_map_values(
        self, mapper: Callable[[Any], Iterable[Any] | None] | None = None, /, **columns: str | pl.Expr
    ) -> Self:
        """Turn each record into any number of values under its key: columns, exactly one of them a list, or a function
        of the value that is annotated to return ``list[Value]`` or ``Iterator[...]``.

        Each element of the list becomes a record; a null value, a null list and an empty list give none. So does None
        from a function.

        Examples:
            >>> builder = StreamsBuilder()
            >>> lines = builder.stream("lines", key=String("id"), value=String("text"))
            >>> lines.flat_map_values(word=col("text").str.split(" ")).to_delta("words")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("lines").pipe_input("1", "all streams")
            >>> driver.create_output_table("words").read_rows()
            [{'id': '1', 'word': 'all'}, {'id': '1', 'word': 'streams'}]
        """
        return self._then(add_flat_map_values(self._graph, self._node, mapper, columns))

    def map_values(self, mapper: Callable[[Any], Any] | None = None, /, **columns: str | pl.Expr) -> Self:
        """Replace the whole value: by columns, or by what a function of the value with a return type gives; None is a
        null value.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> clicks.map_values(page="page", depth=col("page").str.count_matches("/")).to_delta("depths")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_input("ann", "/docs/joins")
            >>> driver.create_output_table("depths").read_rows()
            [{'user': 'ann', 'page': '/docs/joins', 'depth': 2}]
        """
        return self._then(
            add_map_values(self._graph, self._node, mapper, columns, "KSTREAM-MAPVALUES-", is_table=False)
        )

    def select_key(self, *selector: str | pl.Expr | Callable[[Any, Any], Any], **columns: str | pl.Expr) -> Self:
        """Replace the key: by columns, or by what one function of ``(key, value)`` with a return type gives.

        The key counts as changed even if it stays equal, so the next grouping repartitions.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> clicks.select_key(section=col("page").str.slice(0, 5)).to_delta("visits")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_input("ann", "/docs/joins")
            >>> driver.create_output_table("visits").read_rows()
            [{'section': '/docs', 'page': '/docs/joins'}]
        """
        return self._then(add_select_key(self._graph, self._node, selector, columns), has_new_key=True)

    def with_timestamp(
        self, time: str | pl.Expr | Callable[..., Any], *, on_invalid: Literal["fail", "skip"] = "fail"
    ) -> Self:
        """Give each record another time: a column, an expression, or what a function of ``(key, value)``, or of
        ``(key, value, time)``, returns; a datetime, a date, or an integer in milliseconds since 1970.

        ``time`` is the time that the record has, in UTC. The records keep their order; stream time, windows and joins
        downstream go by the new times. An expression is null where the value is.

        A time that is null, negative or after the year 9999 is bad input: it stops the run, or with
        ``on_invalid="skip"`` the record is dropped and counted as ``invalid_timestamps``. It does not go to the dead
        letters, which have records as their topics have them; for those, give the source a ``timestamp``.

        Raises:
            TopologyError: The column, expression or function gives something else than times.

        Examples:
            >>> builder = StreamsBuilder()
            >>> visits = builder.stream("visits", key=String("user"), value=Int64("left_at_ms"))
            >>> hour = TimeWindows.of_size_with_no_grace(timedelta(hours=1))
            >>> by_end = visits.with_timestamp("left_at_ms").group_by_key().windowed_by(hour)
            >>> by_end.count("by_end").to_delta("counts")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("visits").pipe_input("ann", 3_700_000, timestamp_ms=3_500_000)
            >>> driver.create_output_table("counts").read_row()["window_start"].hour
            1
        """
        return self._then(add_with_timestamp(self._graph, self._node, time, on_invalid))

    def peek(self, action: Callable[[Any, Any], Any], /) -> Self:
        """Show each record to ``action(key, value)`` and pass it on unchanged.

        At least once: an epoch that is rolled back runs again and shows its records again.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> clicks.peek(lambda user, page: print(user, page)).to_delta("pages")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_input("ann", "/docs")
            ann /docs
        """
        return self._then(add_peek(self._graph, self._node, action, "KSTREAM-PEEK-"))

    def for_each(self, action: Callable[[Any, Any], Any], /) -> None:
        """Call ``action(key, value)`` for each record, at least once, as ``peek`` does; ends the stream.

        What it writes elsewhere is not part of a commit; a Delta table (``to_delta``) is.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> clicks.for_each(lambda user, page: print(user, page))
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_input("ann", "/docs")
            ann /docs
        """
        add_peek(self._graph, self._node, action, "KSTREAM-FOREACH-")

    def repartition(self, name: str, *, partitions: int | None = None) -> Self:
        """Move each record to the task that owns its key, whether the key has changed or not.

        What follows runs in as many tasks as before, or in ``partitions``. Records with a null key pass too.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> clicks.repartition("wide", partitions=8).to_delta("pages")
            >>> builder.build().partition_counts({"clicks": 2})
            {0: 2, 1: 8}
        """
        if partitions is not None:
            whole_number(partitions, f"repartition({name!r}): partitions", 1)
        node = repartition(
            self._graph, self._node, check_name("repartition", name), is_explicit=True, partitions=partitions
        )
        return self._then(node, has_new_key=False)

    def merge(self, other: Self) -> Self:
        """The records of both streams, which have the same columns; those of one topic partition stay in order.

        Where several topics meet in a task, it takes the oldest of the next records first.

        Examples:
            >>> builder = StreamsBuilder()
            >>> web, app = (builder.stream(topic, key=String("user"), value=String("page")) for topic in ("web", "app"))
            >>> web.merge(app).to_delta("pages")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("web").pipe_input("ann", "/docs")
            >>> driver.create_input_topic("app").pipe_input("bob", "/home")
            >>> driver.create_output_table("pages").read_rows()
            [{'user': 'ann', 'page': '/docs'}, {'user': 'bob', 'page': '/home'}]
        """
        if not isinstance(other, StreamOperations):
            raise TopologyError(
                f"merge got {what_it_is(other)}; pass a stream, for example builder.stream(...) or table.to_stream()"
            )
        self._graph.check_meets(self._node, other._graph, other._node)
        return self._then(
            add_merge(self._graph, self._node, other._node), has_new_key=self._has_new_key or other._has_new_key
        )

    def to_delta(
        self,
        table: str,
        *,
        mode: Literal["append"] = "append",
        headers: bool = False,
        partition_by: str | Sequence[str] = (),
    ) -> None:
        """Append every record to the Delta table ``table``: key columns, value columns, then ``_ts``, ``_epoch``,
        ``_seq`` and ``_deleted``; with ``headers``, also ``_headers``: a list of structs of ``key`` and ``value``.

        ``partition_by`` names columns of few different values, of text, whole numbers, dates or booleans: readers that
        filter by them read only the files of these values. Each epoch of a task writes a file for each partition that
        it has rows of, and compaction merges those of a partition. An empty text is null there, as in any Delta table.

        Raises:
            TopologyError: The mode is another one (``KTable.to_delta`` has ``mode="upsert"``), the stream has no
                headers, or a table cannot be partitioned by the columns.

        Examples:
            >>> builder = StreamsBuilder()
            >>> builder.stream("clicks", key=String("user"), value=String("page")).to_delta("pages")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_input("ann", "/docs")
            >>> driver.create_output_table("pages").read_rows()
            [{'user': 'ann', 'page': '/docs'}]
        """
        if mode != "append":
            raise TopologyError(
                f"the table {table!r} got mode={mode!r}, but every record of a stream counts; leave the mode out, or "
                f'make a table of the newest record per key first: to_table("{table}").to_delta("{table}", '
                'mode="upsert")'
            )
        if headers and not self._node.has_headers:
            raise TopologyError(
                f"the table {table!r} is to have headers, but the stream has none: read a topic that leads to it with "
                "builder.stream(..., headers=True), or leave headers= out"
            )
        name = self._graph.new_name("KSTREAM-SINK-")
        self._graph.add(
            TableSinkNode(
                name=name,
                parent=self._node,
                record=self._node.record,
                table=check_name("table", table),
                is_updates=False,
                partition_by=partition_columns(table, self._node.record, partition_by),
                keeps_headers=headers,
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
    ) -> None:
        """Write every record to a Kafka topic, exactly once for readers of committed records.

        ``topic`` is its name, or an expression or a function of ``(key, value)`` that gives each record one; the topics
        exist already. Without ``key`` and ``value``, text, bytes, numbers and booleans are written as Kafka's own
        serializers write them, and objects as JSON. ``partition`` is an expression for the partition's number; without
        it, and where it is null, the key decides, as in Java's producer. The record's time is kept, and so are its
        headers, if its topic is read with ``headers=True``; a tombstone has no value.

        Records wait in an outbox until they are published, beside the run and in the order of each task. ``name`` is
        that of the sink in ``weir sink`` and in its progress: by default that of the topic.

        Raises:
            TopologyError: A serde does not fit the columns, or the sink needs a name.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> clicks.filter(col("page") != "/").to("pages")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_key_value_list([("ann", "/"), ("bob", "/docs")])
            >>> driver.create_output_topic("pages").read_key_values_to_list()
            [('bob', '/docs')]
        """
        self._add_sink(
            kafka_topic(
                self._node.record,
                topic,
                key=key,
                value=value,
                partition=partition,
                name=name,
                has_headers=self._node.has_headers,
            )
        )

    def to_http(
        self,
        url: str,
        *,
        name: str,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        max_records: int = 500,
        max_bytes: int = 1 << 20,
        format: BodyFormat = "json",
        timeout: timedelta = timedelta(seconds=30),
    ) -> None:
        """Send every record to an HTTP endpoint in batches, one request each, at least once and in the order of each
        task.

        A body is a JSON array of objects (``format="json"``), or one object a line (``"ndjson"``): the columns of key
        and value, then ``_ts``, the record's time, and ``_deleted``, whether it is a tombstone. It has at most
        ``max_records`` rows and ``max_bytes`` bytes, or a single row that is larger. ``timeout`` is for connecting, and
        for each wait for an answer. A header's value ``env:NAME`` is that of an environment variable of the run.

        The header ``Idempotency-Key`` is the same whenever the same rows are sent again: after a crash, a connection
        that breaks, or an answer 408, 425, 429 or 5xx, after a pause, which ``Retry-After`` may lengthen. 2xx means
        delivered. After any other answer the batch is put aside (``weir sink``), and the next one follows.

        Raises:
            TopologyError: An argument is invalid.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> clicks.to_http(
            ...     "https://example.org/clicks", name="hook", headers={"Authorization": "env:HOOK_TOKEN"}
            ... )
            >>> with TopologyTestDriver(Application("example", builder)) as driver:
            ...     driver.create_input_topic("clicks").pipe_input("ann", "/docs", timestamp_ms=0)
            ...     [(row["user"], row["page"]) for row in driver.read_sink("hook")]
            [('ann', '/docs')]
        """
        endpoint = http_endpoint(
            url, method=method, headers={} if headers is None else headers, format=format, timeout=timeout
        )
        self._add_sink(batched(self._node.record, endpoint, name=name, max_records=max_records, max_bytes=max_bytes))

    def to_sink(self, sink: Sink, *, name: str, max_records: int = 500, max_bytes: int = 1 << 20) -> None:
        """Give every record to a sink of your own in batches, at least once and in the order of each task.

        A batch has rows of one epoch: at most ``max_records``, and ``max_bytes`` as JSON, or a single row that is
        larger. A batch that is sent again, after a crash or a failure, has the same rows and the same key.

        Raises:
            TopologyError: An argument is invalid.

        Examples:
            >>> class Print(Sink):
            ...     def send(self, batch: Batch) -> None:
            ...         print(batch.rows.to_dicts())
            >>> builder = StreamsBuilder()
            >>> builder.stream("clicks", key=String("user"), value=String("page")).to_sink(Print(), name="printed")
            >>> with TopologyTestDriver(Application("example", builder)) as driver:
            ...     driver.create_input_topic("clicks").pipe_input("ann", "/docs", timestamp_ms=0)
            ...     [(row["user"], row["page"]) for row in driver.read_sink("printed")]
            [('ann', '/docs')]
        """
        self._add_sink(
            batched(self._node.record, own_sink(sink), name=name, max_records=max_records, max_bytes=max_bytes)
        )

    def to_sql(
        self,
        table: str,
        *,
        mode: SqlMode = "append",
        key: str | Sequence[str] | None = None,
        url: str | None = None,
        name: str | None = None,
        schema: str | None = None,
    ) -> None:
        """Write every record to a table of PostgreSQL or SQLite, exactly once: key columns, then value columns.

        With ``mode="append"`` each record is a row; that of a tombstone has nulls for the value. With ``mode="upsert"``
        the table has the newest row for each ``key``, by default that of the records, and a tombstone deletes it.
        ``url`` is a SQLAlchemy URL, or ``env:NAME`` for that of an environment variable of the run; without it the
        setting ``sql_url`` counts (``WEIR_SQL_URL``). ``schema`` is that of the table in the database, and ``name``
        that of the sink in ``weir sink``, by default the table's. The table is made if it is missing, and gets columns
        that it lacks (docs/sinks.md).

        Raises:
            TopologyError: An argument is invalid.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> clicks.to_sql("clicks", url="sqlite:////tmp/shop.db")
            >>> with TopologyTestDriver(Application("example", builder)) as driver:
            ...     driver.create_input_topic("clicks").pipe_input("ann", "/docs")
            ...     driver.read_sink("clicks")
            [{'user': 'ann', 'page': '/docs', '_deleted': False}]
        """
        record = self._node.record
        self._add_sink(sql_table(record, table, mode=mode, key=key, url=url, name=name, schema=schema))

    def _add_sink(self, sink: OutsideSink) -> None:
        self._graph.add(
            TableSinkNode(
                name=self._graph.new_name("KSTREAM-SINK-"),
                parent=self._node,
                record=self._node.record,
                table=outbox_name(sink.name),
                is_updates=False,
                sink=sink,
            )
        )

    def _then(self, node: Node, *, has_new_key: bool | None = None) -> Self:
        """The stream of ``node``; its key counts as changed if this one's does, unless ``has_new_key`` is given."""
        return type(self)(self._graph, node, has_new_key=self._has_new_key if has_new_key is None else has_new_key)
