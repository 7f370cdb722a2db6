"""Sources: topics, with their serdes and timestamps, as nodes of a topology."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta

import polars as pl

from weir.pipelines.dsl.graph import Graph
from weir.pipelines.dsl.windowing import idle_ms
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.aggregates import expression_dtype
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.serdes.timestamps import FailOnInvalidTimestamp, TimestampExtractor, is_time
from weir.pipelines.serdes.windowed import WindowedSerde
from weir.pipelines.topic_names import TOPIC_NAME, is_topic_name
from weir.pipelines.topology.nodes import Node, RecordType, SeveralTopicsNode, SourceNode

MOST_PRIORITY = 1000


Topics = str | re.Pattern[str] | Sequence[str]
"""What a stream reads: a topic, all topics whose whole name a pattern matches, or several topics."""


def add_topics(
    graph: Graph,
    topics: Topics,
    key: Serde,
    value: Serde,
    timestamp: TimestampExtractor | None,
    idle_after: timedelta | None,
    *,
    name: str = "",
    headers: bool = False,
    priority: int = 1,
) -> Node:
    """The records of ``topics`` as one stream; raises what ``add_source`` raises."""
    several = [topics] if isinstance(topics, str) or not isinstance(topics, Sequence) else list(topics)
    if not several:
        raise TopologyError("the stream has no topic; name at least one")
    is_one = len(several) == 1 and not isinstance(several[0], re.Pattern)
    name = name or graph.new_name("KSTREAM-SOURCE-")
    sources = [
        add_source(
            graph,
            topic,
            key,
            value,
            timestamp,
            idle_after,
            pattern=pattern,
            name=name if is_one else f"{name}-{topic}",
            headers=headers,
            priority=priority,
        )
        for topic, pattern in map(_topic_and_pattern, several)
    ]
    if is_one:
        return sources[0]
    first, *others = sources
    return graph.add(SeveralTopicsNode(name=name, parent=first, others=tuple(others), record=first.record))


def add_source(
    graph: Graph,
    topic: str,
    key: Serde,
    value: Serde,
    timestamp: TimestampExtractor | None,
    idle_after: timedelta | None,
    *,
    pattern: re.Pattern[str] | None = None,
    is_global: bool = False,
    name: str = "",
    headers: bool = False,
    priority: int = 1,
) -> SourceNode:
    """The records of ``topic``, or of all topics that ``pattern`` matches, whose text is then the topic.

    Raises:
        TopologyError: A schema does not fit, the name is not a valid topic name, or the priority is none.
    """
    if pattern is None:
        _check_name(topic)
    for part, serde in (("key", key), ("value", value)):
        check_serde(f"topic {topic!r}", part, serde)
    if not isinstance(priority, int) or isinstance(priority, bool) or not 1 <= priority <= MOST_PRIORITY:
        raise TopologyError(
            f"topic {topic!r}: priority is {priority!r}; it must be a whole number from 1 to {MOST_PRIORITY}"
        )
    name = name or graph.new_name("KSTREAM-SOURCE-")
    record = graph.record(
        f"topic {topic!r}", key.row_type("key"), value.row_type("value"), is_windowed=isinstance(key, WindowedSerde)
    )
    source = SourceNode(
        name=name,
        record=record,
        topic=topic,
        pattern=pattern,
        is_open=pattern is not None,
        key_serde=key,
        value_serde=value,
        timestamp=_checked(topic, record, timestamp),
        idle_after_ms=idle_ms(idle_after),
        has_headers=headers,
        priority=priority,
    )
    return source if is_global else graph.add(source)


def _topic_and_pattern(given: str | re.Pattern[str]) -> tuple[str, re.Pattern[str] | None]:
    return (given.pattern, given) if isinstance(given, re.Pattern) else (given, None)


def _check_name(topic: object) -> None:
    """Raises ``TopologyError`` for anything but a topic's name."""
    if not isinstance(topic, str):
        raise TopologyError(
            f'the topic is {topic!r}; pass its name, for example "orders" (only stream(...) reads several, given as '
            'a list or as re.compile("orders-.*"))'
        )
    if not is_topic_name(topic):
        raise TopologyError(
            f"{topic!r} is not a valid Kafka topic name; use {TOPIC_NAME}, "
            f"or to read all topics that match it, stream(re.compile({topic!r}), ...)"
        )


def check_serde(where: str, part: str, serde: object) -> None:
    """Raises ``TopologyError`` for anything but a serde."""
    if isinstance(serde, type) or not hasattr(serde, "row_type"):
        raise TopologyError(
            f'{where}: {part} is {serde!r}; pass a serde, for example String("name") or Json(YourDataclass)'
        )


def _checked(topic: str, record: RecordType, timestamp: TimestampExtractor | None) -> TimestampExtractor:
    """The extractor of a source; raises ``TopologyError`` when it cannot give these records' times."""
    if timestamp is None:
        return FailOnInvalidTimestamp()
    if not isinstance(timestamp, TimestampExtractor):
        raise TopologyError(
            f"topic {topic!r}: timestamp is {timestamp!r}; pass an extractor, for example "
            'FailOnInvalidTimestamp(of="ordered_at") or WallclockTimestampExtractor()'
        )
    if timestamp.of is not None:
        expression = pl.col(timestamp.of) if isinstance(timestamp.of, str) else timestamp.of
        dtype = expression_dtype(expression, record.columns, f"the timestamp of topic {topic!r}")
        if not is_time(dtype):
            raise TopologyError(
                f"topic {topic!r}: the timestamp has type {dtype}; it must be a datetime, a date, or "
                "an integer in milliseconds since 1970"
            )
    return timestamp
