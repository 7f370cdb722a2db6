"""The topology test driver: the operators and stores of a run, without Spark and without a broker.

Every piped record is an epoch of its own that runs to the end and commits, except within ``one_epoch``. So no update is
collapsed into a later one, and what a record causes passes through all sub-topologies before the next record. Time
moves only by hand.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any

import polars as pl

from weir.pipelines.application import Application
from weir.pipelines.arguments import not_negative_ms, what_it_is
from weir.pipelines.errors import BadInputError, OperatorError, ProcessingError, TopologyError
from weir.pipelines.expectations import ExpectationCounts, expectation_counts
from weir.pipelines.processors.list_store import ListStore
from weir.pipelines.serdes.headers import Headers, headers_column, headers_of
from weir.pipelines.serdes.registry import connect_serdes
from weir.pipelines.serdes.source import RAW_SCHEMA, BadRecord, RawRecords, decode_source
from weir.pipelines.serdes.timestamps import UNKNOWN_MS
from weir.pipelines.sinks.batched import BatchedSink
from weir.pipelines.sinks.dead_letters import dead_letter_records
from weir.pipelines.sinks.kafka import KafkaTopic
from weir.pipelines.sinks.sql import SqlTable
from weir.pipelines.tasks.dead_letters import letter_id, with_known_headers
from weir.pipelines.tasks.global_tables import GlobalTables
from weir.pipelines.tasks.order import Part, with_keys
from weir.pipelines.tasks.run_metrics import MetricsLevel, Reading, RunMetrics
from weir.pipelines.testing.stores import (
    ReadOnlyKeyValueStore,
    ReadOnlyListStore,
    ReadOnlySessionStore,
    ReadOnlyVersionedStore,
    ReadOnlyWindowStore,
    dictionaries,
)
from weir.pipelines.testing.streams import TestInputTopic, TestOutputTable, encode_part, misfit, time_to_ms
from weir.pipelines.testing.task import GENERATION, Task
from weir.pipelines.testing.topics import TestOutputTopic, TestRecord, records_of
from weir.pipelines.topology.foreign_key import ResponseJoinNode
from weir.pipelines.topology.nodes import Node, RecordType, SourceNode
from weir.pipelines.topology.processors import ProcessorNode
from weir.state.frames import framed
from weir.state.stores.typed import TypedStore
from weir.state.types import IsolationLevel, StoreKind, StoreSpec

__tracebackhide__ = True  # pytest shows the test's own lines
MOCK_REGISTRY = {"url": "mock://tests"}


@dataclass(frozen=True)
class _Records:
    """Records of a topic, shaped as a consumer delivers them."""

    topic: str
    partition: int
    frame: pl.DataFrame


class TopologyTestDriver:
    """Runs an application's topology in memory; closing the driver, or leaving its ``with`` block, stops it: what it
    has sent can still be read, and whatever else is asked of it raises ``RuntimeError``.

    Examples:
        >>> builder = StreamsBuilder()
        >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
        >>> orders.group_by_key().count("orders_of").to_delta("customers")
        >>> with TopologyTestDriver(Application("shop", builder)) as driver:
        ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 700)])
        ...     driver.create_output_table("customers").read_key_values_to_list()
        [('ann', 1), ('ann', 2)]
    """

    def __init__(
        self,
        application: Application,
        *,
        topics: Sequence[str] = (),
        initial_wall_clock: datetime = datetime(1970, 1, 1, tzinfo=UTC),
        schema_registry: Mapping[str, str] = MOCK_REGISTRY,
    ) -> None:
        """``topics`` are those that there are for the program's patterns. Serdes that need a schema registry get one in
        memory, unless ``schema_registry`` names another by its client properties.

        Raises:
            LookupError: None of ``topics`` matches a pattern.
        """
        if not isinstance(application, Application):
            raise TopologyError(
                f'the driver runs an Application, but got {what_it_is(application)}; pass Application("name", builder)'
            )
        application = application.over(None, topics)
        for pattern in application.topology.open_patterns:
            raise LookupError(
                f"no topic matches the pattern {pattern!r}; name those that the test pipes records into, as in "
                'TopologyTestDriver(application, topics=["..."])'
            )
        connect_serdes(application.topology.serdes(), schema_registry)
        self._application = application
        self._topology = application.topology
        self._now_ms = time_to_ms(initial_wall_clock)
        self._offsets: Counter[str] = Counter()
        self._piped: dict[str, list[tuple[Any, ...]]] = {}
        """Of the epoch that is next, by topic, each record as ``_raw`` takes it."""
        self._is_one_epoch = self._is_closed = False
        self._partition_times: dict[str, int] = {}
        self._outputs = {
            sink.table: (sink.record, deque[pl.DataFrame]()) for sink in self._topology.sinks if sink.sink is None
        }
        self._sinks = {sink.table: sink.sink for sink in self._topology.sinks if sink.sink is not None}
        self._sent: dict[str, deque[TestRecord]] = defaultdict(deque)
        self._to_take_back: deque[tuple[str, bytes | None, bytes | None, int, Headers]] = deque()
        """What has been sent to topics that the program reads: topic, key, value, time, headers."""
        self._takes_back = False
        self._rows_sent: dict[str, list[dict[str, Any]]] = {
            sink.name: [] for sink in self._sinks.values() if isinstance(sink, BatchedSink | SqlTable)
        }
        self._counts: Counter[str] = Counter()
        self._gauges: dict[int, dict[str, int]] = {}
        self._metrics = RunMetrics(lambda: self._now_ms / 1000, MetricsLevel.DEBUG)
        self.dead_letters: list[BadRecord] = []
        """Records that could not be read or processed and were put aside, oldest first (``on_error`` and
        ``on_processing_error`` of the application)."""
        self._global_topics = {table.source.topic: table.source for table in self._topology.global_tables}
        self._read_topics = {
            *self._global_topics,
            *(source.topic for sub_topology in self._topology.sub_topologies for source in sub_topology.sources),
        }
        self._global_tables = GlobalTables(self._topology, application.error_handling)
        self._tasks = {
            sub_topology.index: Task(sub_topology, self._global_tables, application.error_handling, self._with_headers)
            for sub_topology in self._topology.sub_topologies
        }

    def __enter__(self) -> TopologyTestDriver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._free()

    def close(self) -> None:
        """Stop: processors are closed, and what they then forward can still be read; the stores are freed. Closing
        again does nothing.

        Examples:
            >>> builder = StreamsBuilder()
            >>> builder.stream("orders", key=String("customer"), value=Int64("cents")).to_delta("all_orders")
            >>> driver = TopologyTestDriver(Application("shop", builder))
            >>> driver.close()
        """
        try:
            self._run({index: [] for index in self._tasks}, stops=True)
        finally:
            self._free()

    def _free(self) -> None:
        for task in self._tasks.values():
            task.close()
        self._tasks, self._is_closed = {}, True

    def _require_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(
                "the driver is closed: make another TopologyTestDriver, or use this one within its `with` block"
            )

    def restart(self, *, killed: bool = False) -> None:
        """Go on as the next run does: with the stores, timers and clocks of the last epoch, and with new processors.

        The old ones are closed first, and what they then forward is processed, unless the run was ``killed``. Stores in
        memory keep what they hold, as after a run has rebuilt them.

        Examples:
            >>> class Remember(Processor[str, int, None, None]):
            ...     stores = (ListStore("cents_of", key=str, value=int),)
            ...     def init(self, context):
            ...         self.cents_of, self.seen = context.state_store("cents_of"), 0
            ...     def process(self, record):
            ...         self.seen += 1  # lost at a restart
            ...         self.cents_of.append(record.key, self.seen)
            >>> builder = StreamsBuilder()
            >>> remembered = builder.stream("orders", key=String("customer"), value=Int64("cents")).process(Remember)
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     orders = driver.create_input_topic("orders")
            ...     orders.pipe_key_value_list([("ann", 500), ("ann", 700)])
            ...     driver.restart(killed=True)
            ...     orders.pipe_input("ann", 200)
            ...     driver.get_list_store("cents_of").get("ann")
            [1, 2, 1]
        """
        self._require_open()
        if not killed:
            self._run({index: [] for index in self._tasks}, stops=True)
        for task in self._tasks.values():
            task.restart()
        self._take_back()

    @contextmanager
    def one_epoch(self) -> Iterator[None]:
        """What is piped within the block is processed as one epoch, at its end, as a run processes what it reads at
        once: in the order of time across topics, and tables and aggregations send on the newest update per key.

        Records for global tables are taken at once. If the block raises an error, its records are forgotten.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.group_by_key().count("orders_of").to_delta("customers")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     with driver.one_epoch():
            ...         driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 700)])
            ...     driver.create_output_table("customers").read_key_values_to_list()
            [('ann', 2)]
        """
        self._require_open()
        if self._is_one_epoch:
            raise RuntimeError("one_epoch() is within another one; end that block first")
        self._is_one_epoch = True
        try:
            yield
        except BaseException:
            self._piped = {}
            raise
        finally:
            self._is_one_epoch = False
        self._process_piped()

    @property
    def counts(self) -> dict[str, int]:
        """Totals over all tasks since the start, 0 where nothing was counted: ``records_in``, ``rows_out``,
        ``late_records``, ``null_keys``, ``null_values``, ``expired_records``, ``out_of_order_records``,
        ``invalid_timestamps``, ``dead_letters``, ``failed_records`` (left out, not put aside),
        ``retries``.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.group_by_key().count("orders_of").to_delta("customers")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), (None, 700)])
            ...     driver.counts["records_in"], driver.counts["rows_out"], driver.counts["null_keys"]
            (2, 1, 1)
        """
        names = (
            "records_in",
            "rows_out",
            "late_records",
            "null_keys",
            "null_values",
            "expired_records",
            "out_of_order_records",
            "invalid_timestamps",
            "dead_letters",
            "failed_records",
            "retries",
        )
        return {name: self._counts[name] for name in names}

    @property
    def expectations(self) -> dict[str, ExpectationCounts]:
        """By expectation of the program, how many records passed, failed and were dropped since the start.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.expect("positive", col("cents") > 0, on_violation="drop").to_delta("sales")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("bob", -1)])
            ...     driver.expectations["positive"]
            ExpectationCounts(passed=1, failed=1, dropped=1)
        """
        counted = expectation_counts(self._counts)
        return {name: counted.get(name, ExpectationCounts()) for name in self._topology.expectations}

    @property
    def open_windows(self) -> int:
        """How many windows the stores hold now.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents")).group_by_key()
            >>> hourly = orders.windowed_by(TimeWindows.of_size_with_no_grace(timedelta(hours=1))).count("hourly")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("bob", 700)])
            ...     driver.open_windows
            2
        """
        return sum(gauges["open_windows"] for gauges in self._gauges.values())

    def metrics(self) -> list[Reading]:
        """Metrics under Kafka Streams' names; rates, averages and maxima cover the last minute of the wall clock.

        Examples:
            >>> builder = StreamsBuilder()
            >>> builder.stream("orders", key=String("customer"), value=Int64("cents")).to_delta("all_orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_input("ann", 500)
            ...     {reading.name: reading.value for reading in driver.metrics()}["process-total"]
            1.0
        """
        return self._metrics.readings()

    def create_input_topic(
        self, topic: str, *, start: datetime | None = None, auto_advance: timedelta = timedelta(0)
    ) -> TestInputTopic:
        """A topic to pipe records into. With ``start`` it has its own time, which ``auto_advance`` moves after each
        record.

        Raises:
            LookupError: The topology does not read ``topic``.

        Examples:
            >>> builder = StreamsBuilder()
            >>> builder.stream("orders", key=String("customer"), value=Int64("cents")).to_delta("all_orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     nine = datetime(2026, 1, 1, 9, tzinfo=UTC)
            ...     topic = driver.create_input_topic("orders", start=nine, auto_advance=timedelta(minutes=5))
            ...     topic.pipe_key_value_list([("ann", 500), ("bob", 700)])
            ...     [record.timestamp.minute for record in driver.create_output_table("all_orders").read_records()]
            [0, 5]
        """
        self._require_open()
        topics = (*self._topology.topics(), *self._global_topics)
        if topic not in topics:
            raise LookupError(f"the topology does not read {topic!r}; it reads {', '.join(topics)}")
        return TestInputTopic(
            partial(self._pipe, topic),
            None if start is None else time_to_ms(start),
            not_negative_ms(auto_advance, "auto_advance"),
        )

    def create_output_table(self, table: str) -> TestOutputTable:
        """The rows written to ``table``, so far and from now on; raises ``LookupError`` when nothing writes it.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.filter(col("cents") > 600).to_delta("large_orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("bob", 700)])
            ...     driver.create_output_table("large_orders").read_rows()
            [{'customer': 'bob', 'cents': 700}]
        """
        if table not in self._outputs:
            known = ", ".join(self._outputs) or "no tables"
            raise LookupError(f"the topology does not write the table {table!r}; {self._other_call(table, known)}")
        return TestOutputTable(table, *self._outputs[table])

    def create_output_topic(self, topic: str) -> TestOutputTopic:
        """The records sent to ``topic``, so far and from now on, read with the serdes that wrote them.

        Raises:
            LookupError: Nothing writes the topic.

        Examples:
            >>> builder = StreamsBuilder()
            >>> builder.stream("orders", key=String("customer"), value=Int64("cents")).to("all-orders")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("bob", 700)])
            ...     driver.create_output_topic("all-orders").read_key_values_to_list()
            [('ann', 500), ('bob', 700)]
        """
        topics = [sink.topic for sink in self._topology.outside_sinks if isinstance(sink, KafkaTopic)]
        known = [each for each in topics if isinstance(each, str)]
        if topic not in known and len(known) == len(topics):
            written = ", ".join(known) or "no topics"
            raise LookupError(f"the topology does not write the topic {topic!r}; {self._other_call(topic, written)}")
        return TestOutputTopic(topic, self._sent[topic])

    def read_sink(self, name: str) -> list[dict[str, Any]]:
        """The rows that have gone to a sink of ``to_sql``, ``to_http`` or ``to_sink`` since it was last read, oldest
        first: what the target gets of each. The driver connects to nothing and calls no sinks.

        Raises:
            LookupError: There is no such sink.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> orders.to_http("https://example.org/orders", name="shop")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("bob", 700)])
            ...     [(row["customer"], row["cents"]) for row in driver.read_sink("shop")]
            [('ann', 500), ('bob', 700)]
        """
        if name not in self._rows_sent:
            known = ", ".join(self._rows_sent) or "none"
            raise LookupError(
                f"the topology has no sink {name!r} of to_sql, to_http or to_sink; {self._other_call(name, known)}"
            )
        rows, self._rows_sent[name] = self._rows_sent[name], []
        return rows

    def _other_call(self, name: str, known: str) -> str:
        """The way out where a call does not read an output of this name, but reads the ``known`` ones."""
        if name in self._outputs:
            return f"it is a table: call create_output_table({name!r})"
        if name in self._rows_sent:
            return f"it is a sink: call read_sink({name!r})"
        for sink in self._topology.outside_sinks:
            if isinstance(sink, KafkaTopic) and name in (sink.name, sink.topic):
                topic = repr(sink.topic) if isinstance(sink.topic, str) else "the name of one of its topics"
                return f"it is a sink to Kafka: call create_output_topic({topic})"
        return f"it has {known}"

    def advance_wall_clock_time(self, duration: timedelta) -> None:
        """Move the wall clock forward; event time stays where it is.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents")).group_by_key()
            >>> windows = TimeWindows.of_size_with_no_grace(timedelta(hours=1))
            >>> hourly = orders.windowed_by(windows, idle_after=timedelta(minutes=1)).count("hourly")
            >>> hourly.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_delta("hours")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_input("ann", 500)
            ...     hours = driver.create_output_table("hours")
            ...     hours.is_empty()
            ...     driver.advance_wall_clock_time(timedelta(hours=2))  # an idle topic, so the window closes
            ...     hours.read_value()
            True
            1
        """
        self._require_open()
        self._now_ms += not_negative_ms(duration, "duration")
        for index in self._tasks:
            self._run({index: []})
        self._take_back()

    def advance_stream_time(self, to: datetime) -> None:
        """Move stream time to ``to`` without a record, wherever it has begun and is not beyond: windows close, and
        timers and punctuations are called.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents")).group_by_key()
            >>> hourly = orders.windowed_by(TimeWindows.of_size_with_no_grace(timedelta(hours=1))).count("hourly")
            >>> hourly.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_delta("hours")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     nine = datetime(2026, 1, 1, 9, tzinfo=UTC)
            ...     driver.create_input_topic("orders", start=nine).pipe_input("ann", 500)
            ...     driver.advance_stream_time(nine + timedelta(hours=1))
            ...     driver.create_output_table("hours").read_value()
            1
        """
        self._require_open()
        self._run({index: [] for index in self._tasks}, end_time_ms=time_to_ms(to))
        self._take_back()

    def get_key_value_store(self, name: str) -> ReadOnlyKeyValueStore:
        """A key-value store; raises ``LookupError`` when none has that name, or it is internal to a join.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents"))
            >>> table = orders.group_by_key().agg("spent", orders=Count(), cents=Sum("cents"))
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 700)])
            ...     driver.get_key_value_store("spent").get("ann")
            {'orders': 2, 'cents': 1200}
        """
        return ReadOnlyKeyValueStore(*self._view(name, StoreKind.KEY_VALUE))

    def get_window_store(self, name: str) -> ReadOnlyWindowStore:
        """A window store; raises ``LookupError`` when none has that name.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents")).group_by_key()
            >>> hourly = orders.windowed_by(TimeWindows.of_size_with_no_grace(timedelta(hours=1))).count("hourly")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     nine = datetime(2026, 1, 1, 9, tzinfo=UTC)
            ...     driver.create_input_topic("orders", start=nine).pipe_key_value_list([("ann", 500), ("ann", 700)])
            ...     driver.get_window_store("hourly").fetch("ann", nine)
            2
        """
        return ReadOnlyWindowStore(*self._view(name, StoreKind.WINDOW))

    def get_session_store(self, name: str) -> ReadOnlySessionStore:
        """A session store; raises ``LookupError`` when none has that name.

        Examples:
            >>> builder = StreamsBuilder()
            >>> orders = builder.stream("orders", key=String("customer"), value=Int64("cents")).group_by_key()
            >>> gap = SessionWindows.of_inactivity_gap_with_no_grace(timedelta(minutes=30))
            >>> visits = orders.windowed_by(gap).count("visits")
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 700)])
            ...     [(visit.key, count) for visit, count in driver.get_session_store("visits").fetch("ann")]
            [('ann', 2)]
        """
        return ReadOnlySessionStore(*self._view(name, StoreKind.SESSION))

    def get_versioned_store(self, name: str) -> ReadOnlyVersionedStore:
        """A versioned store; raises ``LookupError`` when none has that name.

        Examples:
            >>> builder = StreamsBuilder()
            >>> day = timedelta(days=1)
            >>> prices = builder.table(
            ...     "prices", key=String("item"), value=Int64("cents"), store="prices", history_retention=day
            ... )
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("prices").pipe_input("tea", 300)
            ...     driver.get_versioned_store("prices").get("tea")
            300
        """
        return ReadOnlyVersionedStore(*self._view(name, StoreKind.VERSIONED))

    def get_list_store(self, name: str) -> ReadOnlyListStore:
        """A list store of a processor; raises ``LookupError`` when none has that name.

        Examples:
            >>> class Remember(Processor[str, int, None, None]):
            ...     stores = (ListStore("cents_of", key=str, value=int),)
            ...     def init(self, context):
            ...         self.cents_of = context.state_store("cents_of")
            ...     def process(self, record):
            ...         self.cents_of.append(record.key, record.value)
            >>> builder = StreamsBuilder()
            >>> remembered = builder.stream("orders", key=String("customer"), value=Int64("cents")).process(Remember)
            >>> with TopologyTestDriver(Application("shop", builder)) as driver:
            ...     driver.create_input_topic("orders").pipe_key_value_list([("ann", 500), ("ann", 700)])
            ...     driver.get_list_store("cents_of").get("ann")
            [500, 700]
        """
        self._require_open()
        known = {
            declared.name: (task, declared)
            for task in self._tasks.values()
            for node in task.sub_topology.nodes
            for declared in (node.connected if isinstance(node, ProcessorNode) else ())
            if isinstance(declared, ListStore)
        }
        if name not in known:
            raise LookupError(_no_store("list", name, known))
        task, declared = known[name]
        key, value = declared.types()
        return ReadOnlyListStore(partial(self._read, task, declared.spec()), RecordType(key=key, value=value))

    def _pipe(self, topic: str, key: Any, value: Any, time_ms: int | None, headers: Headers) -> None:
        self._require_open()
        source = self._global_topics.get(topic) or self._topology.source(topic)
        piped = (
            encode_part(topic, "key", source.key_serde, source.key, key),
            encode_part(topic, "value", source.value_serde, source.value, value),
            self._now_ms if time_ms is None else time_ms,
            self._offsets[topic],
            headers,
            key,
            value,
        )
        self._offsets[topic] += 1
        if topic in self._global_topics:
            raw = _raw(source, [piped])
            for bad in decode_source(source, raw, now_ms=self._now_ms, partition_time_ms=UNKNOWN_MS).bad:
                _require_bytes(source, bad, [piped])
            self._global_tables.take(raw, self._now_ms)
            return
        self._piped.setdefault(topic, []).append(piped)
        if not self._is_one_epoch:
            self._process_piped()

    def _process_piped(self) -> None:
        try:
            self._run_piped()
        finally:
            self._piped = {}
        self._take_back()

    def _take_back(self) -> None:
        """Read what the program has sent to topics that it reads, as the next epoch of a run does."""
        if self._takes_back:
            return
        self._takes_back = True
        try:
            while self._to_take_back:
                self._pipe(*self._to_take_back.popleft())
        finally:
            self._takes_back = False
            self._to_take_back.clear()

    def _run_piped(self) -> None:
        parts, dropped = defaultdict[int, list[Part]](list), defaultdict[int, Counter[str]](Counter)
        raws = {topic: _raw(self._topology.source(topic), piped) for topic, piped in self._piped.items()}
        for topic, raw in raws.items():
            source = self._topology.source(topic)
            (sub_topology,) = (each for each in self._topology.sub_topologies if source in each.sources)
            before_ms = self._partition_times.get(topic, UNKNOWN_MS)
            decoded = decode_source(source, raw, now_ms=self._now_ms, partition_time_ms=before_ms)
            left_out = dropped[sub_topology.index]
            left_out["invalid_timestamps"] += len(decoded.skipped)
            for bad in self._with_headers(decoded.bad):
                _require_bytes(source, bad, self._piped[topic])
                match self._application.error_handling.decide(bad):
                    case "fail":
                        raise BadInputError(bad.topic, bad.partition, bad.offset, bad.reason)
                    case "dead_letter":
                        self._put_aside([bad])
                        left_out["dead_letters"] += 1
                    case "continue":
                        left_out["failed_records"] += 1
            self._counts["records_in"] += raw.frame.height
            times = decoded.frame.get_column("_ts")
            self._partition_times[topic] = max(before_ms, *times) if len(times) else before_ms
            merge_ms = None if before_ms == UNKNOWN_MS else before_ms
            frame = with_keys(decoded.frame, self._topology.topic_ranks[topic], 0, merge_ms)
            parts[sub_topology.index].append(
                Part(input=topic, rank=sub_topology.ranks[topic], partition=0, frame=frame)
            )
        for counts in dropped.values():
            self._counts.update(counts)
        self._run(parts, raws, dropped)

    def _run(
        self,
        parts: Mapping[int, list[Part]],
        raws: Mapping[str, RawRecords] = MappingProxyType({}),
        dropped: Mapping[int, Mapping[str, int]] = MappingProxyType({}),
        *,
        end_time_ms: int | None = None,
        stops: bool = False,
    ) -> None:
        """Run the tasks that have ``parts``, and each that rows reach, in the order of the sub-topologies, until none
        are on their way; ``dropped`` counts what each task's topics had and it does not get."""
        waiting, dropped = dict(parts), dict(dropped)
        while waiting:
            index, task = next((index, task) for index, task in self._tasks.items() if index in waiting)
            order = task.sub_topology.inputs.index
            try:
                output, dead = task.run(
                    sorted(waiting.pop(index), key=lambda part: order(part.input)),
                    self._now_ms,
                    raws,
                    end_time_ms=end_time_ms,
                    stops=stops,
                )
            except ProcessingError as error:  # it says which node and record, so Weir's own lines say nothing more
                is_of_expression = isinstance(error, OperatorError)  # with the words of its cause, a call by Weir
                raise error.with_traceback(None) from None if is_of_expression else error.__cause__
            self._put_aside(self._with_headers(dead))
            self._counts.update(output.counts)
            counts = Counter(output.counts) + Counter(dropped.pop(index, {}))
            self._metrics.epoch(f"{index}_0", output.metrics, counts)
            self._gauges[index] = output.gauges
            for table, rows in output.sinks.items():
                match self._sinks.get(table):
                    case None:
                        self._outputs[table][1].extend(rows.iter_slices(1))
                    case KafkaTopic() as sink:
                        self._send(sink, rows)
                    case BatchedSink() as sink:
                        self._rows_sent[sink.name] += dictionaries(sink.rows(rows))
                    case SqlTable() as sink:
                        self._rows_sent[sink.name] += dictionaries(rows)
            for edge in task.sub_topology.edges_out:
                if edge.name in output.edges:
                    rank = self._tasks[edge.target].sub_topology.ranks[edge.name]
                    part = Part(input=edge.name, rank=rank, partition=0, frame=output.edges[edge.name], batch="epoch")
                    waiting.setdefault(edge.target, []).append(part)

    def _put_aside(self, bad: Sequence[BadRecord]) -> None:
        self.dead_letters += bad
        if bad and (sink := self._topology.dead_letters) is not None:
            self._send(sink, dead_letter_records(sink, bad, [letter_id(record, GENERATION) for record in bad]))

    def _send(self, sink: KafkaTopic, rows: pl.DataFrame) -> None:
        for topic, record in records_of(sink, rows):
            self._sent[topic].append(record)
        if self._read_topics.intersection(rows.get_column("topic")):
            sent = rows.select("topic", "key", "value", "time_ms", "headers").iter_rows()
            self._to_take_back += [(*each, headers_of(cell)) for *each, cell in sent if each[0] in self._read_topics]

    def _with_headers(self, bad: Sequence[BadRecord]) -> list[BadRecord]:
        """With the headers of records that the program reads without them, as a run reads them once more."""
        if not bad:
            return []
        piped = {
            (topic, 0, offset): headers for topic, each in self._piped.items() for *_, offset, headers, _, _ in each
        }
        return with_known_headers(bad, piped)

    def _view(self, name: str, kind: StoreKind) -> tuple[Callable[[], pl.DataFrame], RecordType]:
        """How to read a store, and the type of the records that it holds."""
        self._require_open()
        for task in self._tasks.values():
            for node in task.sub_topology.nodes:
                for store in node.stores:
                    if store.name == name and store.kind is kind:
                        if node.is_join or isinstance(node, ResponseJoinNode):
                            raise LookupError(
                                f"the store {name!r} is internal to the join {node.name}; "
                                "read the join's results instead"
                            )
                        return partial(self._read, task, store), _record_of(node, store)
        known = [
            store.name for task in self._tasks.values() for store in task.sub_topology.stores if store.kind is kind
        ]
        raise LookupError(_no_store(kind.replace("_", "-"), name, known))

    def _read(self, task: Task, spec: StoreSpec) -> pl.DataFrame:
        self._require_open()
        with task.store.reader(IsolationLevel.READ_COMMITTED) as reader:
            typed = TypedStore(spec, reader)
            keys, rows = typed.scan()
            decoded = typed.decode(keys)
        if not keys:
            return pl.DataFrame(schema={**spec.key, **spec.value, "_ts": pl.Int64()})
        rows = pl.concat([decoded, rows], how="horizontal")
        if (slices := task.sub_topology.slices_in(spec.name, task.clocks)) is not None:
            rows = slices.open_windows(spec.name, rows, task.clocks)
        return self._topology.finish(spec.name, rows)


def _no_store(kind: str, name: str, known: Collection[str]) -> str:
    others = f"the topology has {', '.join(known)}" if known else "the topology has no store of this kind"
    return f"there is no {kind} store {name!r}; {others}"


def _raw(source: SourceNode, piped: Sequence[tuple[Any, ...]]) -> _Records:
    """Records, each as key, value, time, offset, headers, and what was piped as key and value."""
    columns = zip(RAW_SCHEMA.items(), zip(*piped, strict=True), strict=False)
    frame = framed([pl.Series(name, items, dtype=dtype) for (name, dtype), items in columns])
    if source.has_headers:
        frame = frame.with_columns(headers_column([record[4] for record in piped]).alias("headers"))
    return _Records(topic=source.topic, partition=0, frame=frame)


def _require_bytes(source: SourceNode, bad: BadRecord, piped: Sequence[tuple[Any, ...]]) -> None:
    """Raise ``TypeError`` if what cannot be read of one of the records was piped as an object."""
    part, _, reason = bad.reason.partition(": ")
    (record,) = (each for each in piped if each[3] == bad.offset)
    item = {"key": record[5], "value": record[6]}.get(part, b"")
    if not isinstance(item, bytes):
        raise misfit(bad.topic, part, source.key if part == "key" else source.value, item, reason)


def _record_of(node: Node, store: StoreSpec) -> RecordType:
    """The type of the records that a store of ``node`` holds; raises ``LookupError`` if the store is internal."""
    if not isinstance(node, ProcessorNode):
        return node.record
    for declared in node.connected:
        if declared.name == store.name:
            key, value = declared.types()
            if isinstance(declared, ListStore):
                raise LookupError(f"the store {store.name!r} holds lists; call get_list_store({store.name!r})")
            return RecordType(key=key, value=value, is_windowed=store.kind in (StoreKind.WINDOW, StoreKind.SESSION))
    raise LookupError(f"the store {store.name!r} holds the timers of {node.name}, which only the processor sees")
