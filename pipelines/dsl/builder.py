"""Where a topology begins: sources, and the nodes that streams and tables add through the builder."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from weir.pipelines.dsl.global_table import GlobalKTable, add_global_table
from weir.pipelines.dsl.graph import Graph, Materialized
from weir.pipelines.dsl.shared_stores import add_state_store, check_connected
from weir.pipelines.dsl.sources import Topics, add_source, add_topics
from weir.pipelines.dsl.streams import KStream, KTable
from weir.pipelines.dsl.table_operations import TtlClock, add_table
from weir.pipelines.dsl.topology_builder import TopologyBuilder
from weir.pipelines.processors.stores import StoreDeclaration
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.serdes.timestamps import TimestampExtractor
from weir.pipelines.topology.topology import Topology


class StreamsBuilder:
    """Describes a topology and runs nothing. Every method of a stream or table adds a node here."""

    def __init__(self) -> None:
        self._graph = Graph()

    def stream(
        self,
        topic: Topics,
        *,
        key: Serde,
        value: Serde,
        timestamp: TimestampExtractor | None = None,
        idle_after: timedelta | None = None,
        headers: bool = False,
        priority: int = 1,
    ) -> KStream:
        """The records of ``topic``, including null keys and null values.

        Several topics of one type make one stream: a task always takes the oldest of the topics' next records. With a
        compiled pattern they are all topics whose whole name it matches, without the brokers' own; a run goes on with
        those that appear later, from their beginning.

        ``timestamp`` says where a record's time comes from, by default from the record itself; a record that has no
        time is bad input.

        With ``idle_after`` the wall clock closes windows and ends suppressions downstream while nothing arrives: after
        that much idle time, their stream time advances with the clock, and later arrivals may be late. This happens
        neither while a run catches up nor in a backfill.

        With ``headers`` the records have their headers, which go with them through the program: processors see them
        and set others (``record.headers``), and ``to(...)`` writes them. Reading them takes time, so by default they
        are left where they are.

        Where several topics are behind, ``priority`` shares out a slot's time: a task that reads a topic of priority 3
        gets three times what one of priority 1 gets, as long as it has that much to read. It changes no results.

        Raises:
            TopologyError: A schema does not fit, the name is not a valid topic name, or the priority is none.

        Examples:
            >>> @dataclass(frozen=True)
            ... class Click:
            ...     page: str
            ...     ms: int | None
            >>> builder = StreamsBuilder()
            >>> builder.stream("clicks", key=String("user"), value=Json(Click)).to_delta("pages")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_input("ann", Click("/docs", 12))
            >>> driver.create_output_table("pages").read_rows()
            [{'user': 'ann', 'page': '/docs', 'ms': 12}]

            All topics that match a pattern; a test names those that there are:

            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream(re.compile("clicks-.*"), key=String("user"), value=String("page"))
            >>> clicks.to_delta("pages")
            >>> driver = TopologyTestDriver(Application("example", builder), topics=["clicks-eu", "clicks-us"])
            >>> driver.create_input_topic("clicks-eu").pipe_input("ann", "/docs")
            >>> driver.create_output_table("pages").read_rows()
            [{'user': 'ann', 'page': '/docs'}]
        """
        node = add_topics(self._graph, topic, key, value, timestamp, idle_after, headers=headers, priority=priority)
        return KStream(self._graph, node, has_new_key=False)

    def table(
        self,
        topic: str,
        *,
        key: Serde,
        value: Serde,
        store: str | Materialized,
        ttl: timedelta | None = None,
        ttl_by: TtlClock = "stream_time",
        history_retention: timedelta | None = None,
        timestamp: TimestampExtractor | None = None,
        idle_after: timedelta | None = None,
        headers: bool = False,
        priority: int = 1,
    ) -> KTable:
        """The newest value of each key of ``topic``, by offset; a null value deletes the row. Null keys are dropped.

        ``store`` names the state, or is a ``Materialized``. With ``ttl`` the store drops a row that long after its last
        record, by the table's stream time or by the wall clock, and forwards no tombstone. ``timestamp``,
        ``idle_after``, ``headers`` and ``priority`` work as for ``stream``: an update has the headers of its record.

        With ``history_retention`` the table is versioned (KIP-889, KIP-914): a row is valid from its record's
        timestamp, whenever the record arrives, and earlier rows are kept for that much of the table's stream time. A
        stream that joins the table finds the row that was valid at each record's own time. A record older than the
        history is dropped and counted; one older than the newest of its key changes only the history and is not seen
        by joins of tables, groupings and outputs.

        Examples:
            >>> builder = StreamsBuilder()
            >>> stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
            >>> stock.to_delta("stock_now")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("stock").pipe_key_value_list([("tea", 2), ("salt", 1), ("tea", None)])
            >>> store = driver.get_key_value_store("stock")
            >>> store.get("salt"), store.get("tea")
            (1, None)
        """
        source = add_source(self._graph, topic, key, value, timestamp, idle_after, headers=headers, priority=priority)
        node = add_table(
            self._graph, source, store, "KTABLE-SOURCE-", ttl=ttl, ttl_by=ttl_by, history_retention=history_retention
        )
        return KTable(self._graph, node)

    def global_table(self, topic: str, *, key: Serde, value: Serde, store: str) -> GlobalKTable:
        """The newest value of each key of the whole ``topic``, with all its partitions, on every executor.

        It is loaded before the first record is processed, once for all workers of an executor. Its updates produce no
        results, and it is not aligned in time with the streams that join it. Its number of partitions may differ from
        theirs. It cannot be versioned. ``StateReader`` answers for it by the name of its ``store``.

        Examples:
            >>> builder = StreamsBuilder()
            >>> prices = builder.global_table("prices", key=String("item_id"), value=Int64("cents"), store="prices")
            >>> orders = builder.stream("orders", key=String("order"), value=String("item"))
            >>> orders.join(prices, key="item").to_delta("priced")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("prices").pipe_input("tea", 350)
            >>> driver.create_input_topic("orders").pipe_input("1", "tea")
            >>> driver.create_output_table("priced").read_rows()
            [{'order': '1', 'item': 'tea', 'cents': 350}]
        """
        return add_global_table(
            self._graph, add_source(self._graph, topic, key, value, None, None, is_global=True), store
        )

    def add_state_store(self, declaration: StoreDeclaration) -> Self:
        """Declare a store that processors share: ``process(..., stores=["name"])`` connects each of them to it.

        Processors that share a store are in one sub-topology, whose topics need equal numbers of partitions, and see
        each other's writes as if one record after another passed through the whole sub-topology. So between them,
        records are not processed as columns.

        Raises:
            TopologyError: Another store has the name. ``build`` raises it when no processor is connected to the store.

        Examples:
            >>> class Learn(Processor[str, int, None, None]):
            ...     def init(self, context):
            ...         self.prices = context.state_store("prices")
            ...     def process(self, record):
            ...         self.prices.put(record.key, record.value)
            >>> class Price(FixedKeyProcessor[str, int, int]):
            ...     def init(self, context):
            ...         self.context, self.prices = context, context.state_store("prices")
            ...     def process(self, record):
            ...         self.context.forward(record.with_value(record.value * self.prices.get(record.key)))
            >>> builder = StreamsBuilder().add_state_store(KeyValueStore("prices", key=str, value=int))
            >>> prices = builder.stream("prices", key=String("item"), value=Int64("cents"))
            >>> _ = prices.process(Learn, stores=["prices"])
            >>> orders = builder.stream("orders", key=String("item"), value=Int64("pieces"))
            >>> orders.process_values(Price, stores=["prices"]).to_delta("amounts")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("prices").pipe_input("tea", 350)
            >>> driver.create_input_topic("orders").pipe_input("tea", 2)
            >>> driver.create_output_table("amounts").read_key_values_to_list()
            [('tea', 700)]
        """
        add_state_store(self._graph, declaration)
        return self

    @property
    def topology(self) -> TopologyBuilder:
        """The same topology by its nodes: see ``weir.TopologyBuilder``.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> _ = builder.topology.add_sink("pages", "pages", clicks)
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_input("ann", "/docs")
            >>> driver.create_output_table("pages").read_rows()
            [{'user': 'ann', 'page': '/docs'}]
        """
        return TopologyBuilder(self._graph)

    def build(self) -> Topology:
        """The topology described so far.

        Raises:
            TopologyError: Two nodes claim one topic, store or table, a store is connected to no processor, or nothing
                is read.

        Examples:
            >>> builder = StreamsBuilder()
            >>> builder.stream("clicks", key=String("user"), value=String("page")).to_delta("pages")
            >>> print(builder.build().describe())
            Topologies:
               Sub-topology: 0
                Source: KSTREAM-SOURCE-0000000000 (topics: [clicks])
                  --> KSTREAM-SINK-0000000001
                Sink: KSTREAM-SINK-0000000001 (table: pages)
                  <-- KSTREAM-SOURCE-0000000000
        """
        check_connected(self._graph)
        return Topology(tuple(self._graph.nodes))
