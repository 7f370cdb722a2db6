"""Where a topology begins: sources, and the nodes that streams and tables add through the builder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta

import polars as pl

from weir.pipelines.dsl.global_table import GlobalKTable, add_global_table
from weir.pipelines.dsl.graph import Graph
from weir.pipelines.dsl.streams import KStream, KTable
from weir.pipelines.dsl.table_operations import TtlClock, add_table
from weir.pipelines.dsl.windowing import idle_ms
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.aggregates import expression_dtype
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.serdes.timestamps import FailOnInvalidTimestamp, TimestampExtractor
from weir.pipelines.serdes.windowed import WindowedSerde
from weir.pipelines.topology.nodes import RecordType, SeveralTopicsNode, SourceNode
from weir.pipelines.topology.topology import Topology

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


class StreamsBuilder:
    """Describes a topology; building runs nothing. Every method of a stream or table adds a node here."""

    def __init__(self) -> None:
        self._graph = Graph()

    def stream(
        self,
        topic: str | Sequence[str],
        *,
        key: Serde,
        value: Serde,
        timestamp: TimestampExtractor | None = None,
        idle_after: timedelta | None = None,
    ) -> KStream:
        """The records of ``topic``, null keys and null values included.

        Several topics of one type make one stream: a task takes the oldest of the records that are next in them.

        ``timestamp`` says which time a record has; without it the record's own, and one without is bad input.

        With ``idle_after`` the wall clock closes windows and ends suppressions downstream while nothing arrives: after
        so much silence their stream time goes on with it, and what arrives then may be late. It does not while a run
        catches up, nor in a backfill.

        Raises:
            TopologyError: A schema does not fit, or the topic is read already.
        """
        topics = list(topic) if isinstance(topic, Sequence) and not isinstance(topic, str) else [topic]
        if not topics:
            raise TopologyError("the stream has no topic; name at least one")
        if len(topics) == 1:
            return KStream(self._graph, self._source(topics[0], key, value, timestamp, idle_after), has_new_key=False)
        name = self._graph.new_name("KSTREAM-SOURCE-")
        first, *others = (
            self._source(each, key, value, timestamp, idle_after, name=f"{name}-{each}") for each in topics
        )
        return KStream(
            self._graph,
            self._graph.add(SeveralTopicsNode(name=name, parent=first, others=tuple(others), record=first.record)),
            has_new_key=False,
        )

    def table(
        self,
        topic: str,
        *,
        key: Serde,
        value: Serde,
        store: str,
        ttl: timedelta | None = None,
        ttl_by: TtlClock = "stream_time",
        history_retention: timedelta | None = None,
        timestamp: TimestampExtractor | None = None,
        idle_after: timedelta | None = None,
    ) -> KTable:
        """The newest value of each key of ``topic``, by offset; a null value deletes the row. Null keys are dropped.

        ``store`` names the state. With ``ttl`` a row goes from it that long after its last record, by the table's
        stream time or by the wall clock; no tombstone is forwarded. ``timestamp`` and ``idle_after`` as for
        ``stream``.

        With ``history_retention`` the table is versioned (KIP-889, KIP-914): a row holds from its record's timestamp,
        whenever that arrives, and what held before is kept for so long of the table's stream time. A stream that joins
        it meets the row of each record's own time. A record older than the history is dropped and counted; one older
        than the newest of its key changes the history alone: no join of tables, no grouping and no output of the table.
        """
        source = self._source(topic, key, value, timestamp, idle_after)
        node = add_table(
            self._graph, source, store, "KTABLE-SOURCE-", ttl=ttl, ttl_by=ttl_by, history_retention=history_retention
        )
        return KTable(self._graph, node)

    def global_table(self, topic: str, *, key: Serde, value: Serde, store: str) -> GlobalKTable:
        """The newest value of each key of the whole ``topic``, of all its partitions, on every worker.

        It is loaded before the first record is processed and held in the workers' memory; its updates bring nothing
        about, and nothing aligns it in time with the streams that join it. It needs no equal number of partitions. It
        cannot be versioned.
        """
        return add_global_table(self._graph, self._source(topic, key, value, None, None, is_global=True), store)

    def build(self) -> Topology:
        """The topology described so far.

        Raises:
            TopologyError: Two nodes claim one topic, store or table, or nothing is read.
        """
        return Topology(tuple(self._graph.nodes))

    def _source(
        self,
        topic: str,
        key: Serde,
        value: Serde,
        timestamp: TimestampExtractor | None,
        idle_after: timedelta | None,
        *,
        is_global: bool = False,
        name: str = "",
    ) -> SourceNode:
        _check_topic(topic, key, value)
        name = name or self._graph.new_name("KSTREAM-SOURCE-")
        record = self._graph.record(
            f"topic {topic!r}", key.row_type("key"), value.row_type("value"), is_windowed=isinstance(key, WindowedSerde)
        )
        source = SourceNode(
            name=name,
            record=record,
            topic=topic,
            key_serde=key,
            value_serde=value,
            timestamp=_checked(topic, record, timestamp),
            idle_after_ms=idle_ms(idle_after),
        )
        return source if is_global else self._graph.add(source)


def _check_topic(topic: str, key: Serde, value: Serde) -> None:
    """Raises ``TopologyError`` for what is no topic of Kafka's, or no serde."""
    if not isinstance(topic, str):
        raise TopologyError(
            f'the topic is {topic!r}; name it, as "orders": topics are not found by a pattern, and '
            "stream alone reads several, as a list"
        )
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise TopologyError(
            f"the topic name {topic!r} is none that Kafka takes; use up to 249 letters, digits, dots, "
            "dashes and underscores, for topics are not found by a pattern"
        )
    for part, serde in (("key", key), ("value", value)):
        if isinstance(serde, type) or not hasattr(serde, "row_type"):
            raise TopologyError(
                f'topic {topic!r}: {part} is {serde!r}; pass a serde, as String("name") or Json(YourDataclass)'
            )


def _checked(topic: str, record: RecordType, timestamp: TimestampExtractor | None) -> TimestampExtractor:
    """The extractor of a source; raises ``TopologyError`` when it cannot give times of these records."""
    if timestamp is None:
        return FailOnInvalidTimestamp()
    if not isinstance(timestamp, TimestampExtractor):
        raise TopologyError(
            f"topic {topic!r}: timestamp is {timestamp!r}; pass an extractor, as "
            'FailOnInvalidTimestamp(of="ordered_at") or WallclockTimestampExtractor()'
        )
    if timestamp.of is not None:
        expression = pl.col(timestamp.of) if isinstance(timestamp.of, str) else timestamp.of
        dtype = expression_dtype(expression, record.columns, f"the timestamp of topic {topic!r}")
        if not (dtype.is_integer() or isinstance(dtype, (pl.Datetime, pl.Date))):
            raise TopologyError(
                f"topic {topic!r}: the timestamp has type {dtype}; it must be a datetime, a date, or "
                "an integer in milliseconds since 1970"
            )
    return timestamp
