"""Sources: topics, with their serdes and timestamps, as nodes of a topology."""

from __future__ import annotations

import re
from datetime import timedelta

import polars as pl

from weir.pipelines.dsl.graph import Graph
from weir.pipelines.dsl.windowing import idle_ms
from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.aggregates import expression_dtype
from weir.pipelines.serdes.serde import Serde
from weir.pipelines.serdes.timestamps import FailOnInvalidTimestamp, TimestampExtractor, is_time
from weir.pipelines.serdes.windowed import WindowedSerde
from weir.pipelines.topology.nodes import RecordType, SourceNode

MOST_PRIORITY = 1000
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


def add_source(
    graph: Graph,
    topic: str,
    key: Serde,
    value: Serde,
    timestamp: TimestampExtractor | None,
    idle_after: timedelta | None,
    *,
    is_global: bool = False,
    name: str = "",
    headers: bool = False,
    priority: int = 1,
) -> SourceNode:
    """The records of ``topic``.

    Raises:
        TopologyError: A schema does not fit, the name is not a valid topic name, or the priority is none.
    """
    _check_topic(topic, key, value)
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
        key_serde=key,
        value_serde=value,
        timestamp=_checked(topic, record, timestamp),
        idle_after_ms=idle_ms(idle_after),
        has_headers=headers,
        priority=priority,
    )
    return source if is_global else graph.add(source)


def _check_topic(topic: str, key: Serde, value: Serde) -> None:
    """Raises ``TopologyError`` for anything but a topic's name and serdes."""
    if not isinstance(topic, str):
        raise TopologyError(
            f'the topic is {topic!r}; pass its name, for example "orders" (patterns are not supported, and only '
            "stream(...) reads a list of topics)"
        )
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise TopologyError(
            f"{topic!r} is not a valid Kafka topic name; use up to 249 letters, digits, dots, dashes and underscores "
            "(patterns are not supported)"
        )
    for part, serde in (("key", key), ("value", value)):
        if isinstance(serde, type) or not hasattr(serde, "row_type"):
            raise TopologyError(
                f'topic {topic!r}: {part} is {serde!r}; pass a serde, for example String("name") or Json(YourDataclass)'
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
