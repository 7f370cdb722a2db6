"""Writing records to given partitions of topics, with their own timestamps; returns once the brokers have them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
from confluent_kafka import KafkaError, KafkaException, Message, Producer

STALL_S = 60.0
"""How long to wait without an acknowledged record."""
QUEUED = 10_000
"""Records in the client's memory."""


class WriteError(Exception):
    """The brokers did not take all records; what they took stays."""


class RecordWriter:
    """One client; not to be used by several threads."""

    def __init__(self, properties: Mapping[str, object]) -> None:
        self._producer = Producer({"enable.idempotence": True, "linger.ms": 5, **properties})

    def write(
        self, topic: str, partition: int, records: pl.DataFrame, headers: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        """Append ``records`` (``key``, ``value``, ``timestamp_ms``: null for now) in order.

        Raises:
            WriteError: A record was refused, or the brokers do not answer.
        """
        refused: list[str] = []

        def hear(error: KafkaError | None, message: Message) -> None:
            if error is not None and not refused:
                refused.append(error.str())

        for number, (key, value, time) in enumerate(records.select("key", "value", "timestamp_ms").iter_rows(), 1):
            try:
                self._producer.produce(
                    topic, value, key, partition, hear, timestamp=time or 0, headers=list(headers) or None
                )
            except KafkaException as error:
                refused.append(str(error.args[0].str()))
                break
            if number % QUEUED == 0:
                self._flush(topic)
            if refused:
                break
        self._flush(topic)
        if refused:
            raise WriteError(f"topic {topic!r}, partition {partition}: the brokers refused a record ({refused[0]})")

    def _flush(self, topic: str) -> None:
        if left := self._producer.flush(STALL_S):
            raise WriteError(
                f"topic {topic!r}: the brokers did not acknowledge {left} records within {STALL_S:.0f} s; check that "
                "they are up, and give the same command again"
            )
