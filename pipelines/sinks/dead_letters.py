"""The topic of dead letters, as Kafka Streams writes it (KIP-1034)."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from weir.pipelines.operators.functions import KeyType
from weir.pipelines.serdes.headers import headers_column
from weir.pipelines.serdes.scalar import Bytes
from weir.pipelines.serdes.source import BadRecord
from weir.pipelines.sinks.kafka import BY_KEY, KafkaTopic

PREFIX = "__streams.errors."
"""Of the headers that say what happened: ``exception``, ``stacktrace``, ``message``, ``topic``, ``partition`` and
``offset``, all text."""
ID = "__weir.dead_letter"
"""The header with the id of the letter, by which ``weir dead-letters`` finds it."""
EARLIEST_MS = 1
"""Brokers take no times before 1970, and producers take 0 for the present."""


def dead_letter_sink(topic: str) -> KafkaTopic:
    """The sink, which goes by the name of its topic."""
    key, value = Bytes("key"), Bytes("value")
    return KafkaTopic(
        name=topic,
        topic=topic,
        key=KeyType(key.row_type("key"), False),
        value=value.row_type("value"),
        key_serde=key,
        value_serde=value,
        partition=None,
        has_headers=True,
    )


def dead_letter_records(sink: KafkaTopic, bad: Sequence[BadRecord], ids: Sequence[str]) -> pl.DataFrame:
    """Rows of the sink's outbox: key, value, time and headers of each record as they were read, and the headers that
    say what happened."""
    return pl.DataFrame(
        {
            "topic": [str(sink.topic)] * len(bad),
            "partition": [BY_KEY] * len(bad),
            "key": [record.key for record in bad],
            "value": [record.value for record in bad],
            "time_ms": [max(EARLIEST_MS, record.timestamp_ms) for record in bad],
            "headers": headers_column(
                (*(record.headers or ()), *_reasons(record), (ID, id.encode()))
                for record, id in zip(bad, ids, strict=True)
            ),
        },
        schema_overrides=sink.columns,
    )


def _reasons(record: BadRecord) -> list[tuple[str, bytes]]:
    reasons = {
        "exception": record.reason,
        "stacktrace": record.trace or "",
        "message": record.reason,
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
    }
    return [(PREFIX + name, text.encode()) for name, text in reasons.items()]
