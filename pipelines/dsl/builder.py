"""Where a topology begins: sources, and the nodes that streams and tables add through the builder."""

from __future__ import annotations

from datetime import timedelta

from pipelines.dsl.graph import Graph
from pipelines.dsl.stream import KStream
from pipelines.dsl.table import KTable, TtlClock, add_table
from pipelines.serdes.serde import Serde
from pipelines.topology.nodes import SourceNode
from pipelines.topology.topology import Topology


class StreamsBuilder:
    """Describes a topology; building runs nothing. Every method of a stream or table adds a node here."""

    def __init__(self) -> None:
        self._graph = Graph()

    def stream(self, topic: str, *, key: Serde, value: Serde) -> KStream:
        """The records of ``topic``, null keys and null values included.

        Raises:
            TopologyError: A schema does not fit, or the topic is read already.
        """
        return KStream(self._graph, self._source(topic, key, value), has_new_key=False)

    def table(self, topic: str, *, key: Serde, value: Serde, store: str,
              ttl: timedelta | None = None, ttl_by: TtlClock = "stream_time") -> KTable:
        """The newest value of each key of ``topic``, by offset; a null value deletes the row. Null keys are dropped.

        ``store`` names the state. With ``ttl`` a row goes from it that long after its last record, by the table's
        stream time or by the wall clock; no tombstone is forwarded.
        """
        return add_table(self._graph, self._source(topic, key, value), store, "KTABLE-SOURCE-", ttl=ttl,
                         ttl_by=ttl_by)

    def build(self) -> Topology:
        """The topology described so far.

        Raises:
            TopologyError: Two nodes claim one topic, store or table, or nothing is read.
        """
        return Topology(tuple(self._graph.nodes))

    def _source(self, topic: str, key: Serde, value: Serde) -> SourceNode:
        name = self._graph.new_name("KSTREAM-SOURCE-")
        record = self._graph.record(f"topic {topic!r}", key.row_type("key"), value.row_type("value"))
        return self._graph.add(SourceNode(name=name, record=record, topic=topic, key_serde=key, value_serde=value))
