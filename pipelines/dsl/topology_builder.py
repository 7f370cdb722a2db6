"""A topology by its nodes: sources, processors, sinks and stores with names of their own, as in Kafka Streams."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Self

from weir.pipelines.dsl.graph import Graph, check_name
from weir.pipelines.dsl.merging import check_same_columns
from weir.pipelines.dsl.processing import add_processor
from weir.pipelines.dsl.shared_stores import add_state_store, connect
from weir.pipelines.dsl.sources import Topics, add_topics
from weir.pipelines.dsl.streams import KStream
from weir.pipelines.errors import TopologyError
from weir.pipelines.processors.stores import StoreDeclaration
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.serdes.timestamps import TimestampExtractor
from weir.pipelines.topology.nodes import Node, SourceNode, TableSinkNode
from weir.pipelines.topology.processors import ProcessorNode


class TopologyBuilder:
    """Adds nodes to the topology of a ``StreamsBuilder``, each under a name and below the nodes that it names.

    Streams of the builder can be parents, by their ``name`` or as they are, and what is added returns a stream, with
    which the program goes on as it likes. A parent is added before its children.

    Examples:
        >>> class Split(Processor[str, int, str, int]):
        ...     def init(self, context):
        ...         self.context = context
        ...     def process(self, record):
        ...         self.context.forward(record, child="large" if record.value > 100 else "small")
        >>> builder = StreamsBuilder()
        >>> topology = builder.topology
        >>> orders = topology.add_source("orders", "orders", key=String("user"), value=Int64("cents"))
        >>> sized = topology.add_processor("by-size", Split, "orders")
        >>> _ = topology.add_sink("large", "large_orders", "by-size")
        >>> _ = topology.add_sink("small", "small_orders", sized)
        >>> print(builder.build().describe())
        Topologies:
           Sub-topology: 0
            Source: orders (topics: [orders])
              --> by-size
            Processor: by-size (stores: [])
              --> large, small
              <-- orders
            Sink: large (table: large_orders)
              <-- by-size
            Sink: small (table: small_orders)
              <-- by-size
        >>> driver = TopologyTestDriver(Application("example", builder))
        >>> driver.create_input_topic("orders").pipe_key_value_list([("ann", 250), ("bob", 5)])
        >>> driver.create_output_table("large_orders").read_key_values_to_list()
        [('ann', 250)]
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def add_source(
        self,
        name: str,
        topic: Topics,
        *,
        key: Serde,
        value: Serde,
        timestamp: TimestampExtractor | None = None,
        idle_after: timedelta | None = None,
        headers: bool = False,
    ) -> KStream:
        """Read ``topic``, several or those that match a pattern, as ``StreamsBuilder.stream`` does.

        Raises:
            TopologyError: The name is taken, a schema does not fit, or the topic's name is not valid.

        Examples:
            >>> builder = StreamsBuilder()
            >>> clicks = builder.topology.add_source("clicks", "clicks", key=String("user"), value=String("page"))
            >>> clicks.name
            'clicks'
        """
        self._graph.check_new("source", name)
        source = add_topics(self._graph, topic, key, value, timestamp, idle_after, name=name, headers=headers)
        return KStream(self._graph, source, has_new_key=False)

    def add_processor(
        self,
        name: str,
        supplier: Callable[[], Any],
        *parents: str | KStream,
        stores: tuple[StoreDeclaration | str, ...] | list[StoreDeclaration | str] = (),
    ) -> KStream:
        """Pass the records of all ``parents``, which have the same columns, to a processor, as ``KStream.process`` and
        ``KStream.process_values`` do; which of the two, its class says.

        A record that reaches it in several ways does so parent by parent, as it comes through them.

        Raises:
            TopologyError: The name is taken, a parent or store is missing, the parents' columns differ, or the supplier
                makes no processor of their records.

        Examples:
            >>> class Length(FixedKeyProcessor[str, str, int]):
            ...     def init(self, context):
            ...         self.context = context
            ...     def process(self, record):
            ...         self.context.forward(record.with_value(len(record.value)))
            >>> builder = StreamsBuilder()
            >>> web, app = (builder.stream(topic, key=String("user"), value=String("page")) for topic in ("web", "app"))
            >>> builder.topology.add_processor("lengths", Length, web, app.name).to_delta("lengths")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("web").pipe_input("ann", "/docs")
            >>> driver.create_input_topic("app").pipe_input("bob", "/")
            >>> driver.create_output_table("lengths").read_key_values_to_list()
            [('ann', 5), ('bob', 1)]
        """
        nodes = self._parents(name, parents)
        node = add_processor(self._graph, nodes, supplier, stores=stores, name=name)
        has_new_key = not node.is_fixed_key or any(self._graph.streams[parent.name] for parent in nodes)
        return KStream(self._graph, node, has_new_key=has_new_key)

    def add_sink(self, name: str, table: str, *parents: str | KStream) -> Self:
        """Append every record of all ``parents``, which have the same columns, to the Delta table ``table``, as
        ``KStream.to_delta`` does.

        Raises:
            TopologyError: The name is taken, a parent is missing, or the parents' columns differ.

        Examples:
            >>> builder = StreamsBuilder()
            >>> web, app = (builder.stream(topic, key=String("user"), value=String("page")) for topic in ("web", "app"))
            >>> _ = builder.topology.add_sink("pages", "pages", web, app)
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("web").pipe_input("ann", "/docs")
            >>> driver.create_output_table("pages").read_rows()
            [{'user': 'ann', 'page': '/docs'}]
        """
        self._graph.check_new("sink", name)
        parent, *others = self._parents(name, parents)
        for other in others:
            check_same_columns(f"the sink {name!r} takes", parent, other)
        self._graph.add(
            TableSinkNode(
                name=name,
                parent=parent,
                others=tuple(others),
                record=parent.record,
                table=check_name("table", table),
                is_updates=False,
            )
        )
        return self

    def add_state_store(self, declaration: StoreDeclaration, *processors: str | KStream) -> Self:
        """Declare a store that processors share, and connect ``processors`` to it.

        Raises:
            TopologyError: Another store has the name, or a processor is missing.

        Examples:
            >>> class Count(FixedKeyProcessor[str, str, int]):
            ...     def init(self, context):
            ...         self.context, self.seen = context, context.state_store("seen")
            ...     def process(self, record):
            ...         self.seen.put(record.key, (self.seen.get(record.key) or 0) + 1)
            ...         self.context.forward(record.with_value(self.seen.get(record.key)))
            >>> builder = StreamsBuilder()
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> builder.topology.add_processor("count", Count, clicks).to_delta("counts")
            >>> _ = builder.topology.add_state_store(KeyValueStore("seen", key=str, value=int), "count")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_key_value_list([("ann", "/"), ("ann", "/docs")])
            >>> driver.create_output_table("counts").read_key_values_to_list()
            [('ann', 1), ('ann', 2)]
        """
        store = add_state_store(self._graph, declaration)
        for processor in processors:
            self.connect_processor_and_state_stores(processor, store.name)
        return self

    def connect_processor_and_state_stores(self, processor: str | KStream, *stores: str) -> Self:
        """Let a processor, added here or with a ``name`` in the DSL, open stores that are declared on their own.

        Raises:
            TopologyError: There is no such processor or store.

        Examples:
            >>> class Count(FixedKeyProcessor[str, str, int]):
            ...     def init(self, context):
            ...         self.context, self.seen = context, context.state_store("seen")
            ...     def process(self, record):
            ...         self.seen.put(record.key, (self.seen.get(record.key) or 0) + 1)
            ...         self.context.forward(record.with_value(self.seen.get(record.key)))
            >>> builder = StreamsBuilder().add_state_store(KeyValueStore("seen", key=str, value=int))
            >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
            >>> clicks.process_values(Count, name="count").to_delta("counts")
            >>> _ = builder.topology.connect_processor_and_state_stores("count", "seen")
            >>> driver = TopologyTestDriver(Application("example", builder))
            >>> driver.create_input_topic("clicks").pipe_input("ann", "/")
            >>> driver.create_output_table("counts").read_key_values_to_list()
            [('ann', 1)]
        """
        connect(self._graph, processor.name if isinstance(processor, KStream) else processor, stores)
        return self

    def _parents(self, name: str, parents: tuple[str | KStream, ...]) -> list[Node]:
        if not parents:
            raise TopologyError(f"{name!r} has no parent; name the nodes whose records it gets")
        found = list(dict.fromkeys(self._parent(name, parent) for parent in parents))
        if len(found) < len(parents):
            raise TopologyError(f"{name!r} names a parent twice; name each once")
        return found

    def _parent(self, name: str, parent: str | KStream) -> Node:
        if isinstance(parent, KStream):
            self._graph.check_meets(parent._node, parent._graph, parent._node)
            parent = parent.name
        if parent not in self._graph.streams:
            for node in self._graph.nodes:
                if isinstance(node, SourceNode) and node.topic == parent and node.name in self._graph.streams:
                    raise TopologyError(
                        f"{name!r} names the topic {parent!r} as its parent; name the node that reads it, "
                        f"{node.name!r}, or pass its stream",
                        places=[node.place],
                    )
            known = ", ".join(map(repr, self._graph.streams)) or "none"
            raise TopologyError(
                f"{name!r} names the parent {parent!r}, which is no stream of this topology; its streams are {known}; "
                "add the parent first, and of a table pass table.to_stream()"
            )
        node = self._graph.node(parent)
        if isinstance(node, ProcessorNode) and not node.forwards:
            raise TopologyError(
                f"{name!r} names the parent {parent!r}, whose types say that it forwards nothing; give the types of "
                "the key and value that it forwards",
                places=[node.place],
            )
        return node
