"""A consumer of a topic partition in memory, so that tests read through ``PartitionReader`` as runs do."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
from confluent_kafka import KafkaError

from weir.infra.kafka.columns import RECORD_SCHEMA
from weir.infra.kafka.consumer import NO_LIMIT
from weir.infra.kafka.reader import PartitionReader

Row = tuple[bytes | None, bytes | None, int]
"""Key, value, timestamp in ms."""


class LogConsumer:
    """What ``PartitionConsumer`` is to a broker's partition, to a list of rows whose index is the offset."""

    error: KafkaError | None = None

    def __init__(self, rows: Callable[[], list[Row]]) -> None:
        self._rows, self._collected = rows, list[tuple[bytes | None, bytes | None, int, int]]()
        self.next_offset, self.at_end = 0, None

    def start(self, offset: int) -> None:
        self.next_offset, self.at_end, self._collected = offset, None, []

    def consume(self, timeout_s: float, *, end: int, until_ms: int = NO_LIMIT, max_bytes: int = NO_LIMIT) -> bool:
        rows = self._rows()
        size = sum(len(key or b"") + len(value or b"") for key, value, _, _ in self._collected)
        while self.next_offset < min(end, len(rows)):
            key, value, time_ms = rows[self.next_offset]
            self._collected.append((key, value, time_ms, self.next_offset))
            self.next_offset += 1
            size += len(key or b"") + len(value or b"")
            if time_ms > until_ms or size >= max_bytes:
                return True
        self.at_end = None if self.next_offset >= end else len(rows)
        return self.next_offset >= end

    def take(self) -> pl.DataFrame:
        taken, self._collected = self._collected, []
        return pl.DataFrame(taken, schema=RECORD_SCHEMA, orient="row")

    def connect(self, timeout_s: float) -> None:
        """There is nothing to connect to."""

    def close(self) -> None:
        """There is nothing to close."""


def log_reader(topic: str, partition: int, rows: Callable[[], list[Row]]) -> PartitionReader:
    """A reader of such a partition."""
    return PartitionReader({}, topic, partition, lambda *_: LogConsumer(rows))  # type: ignore[arg-type, return-value]
