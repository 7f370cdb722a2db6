"""A consumer of a topic partition in memory, so that tests read through ``PartitionReader`` as runs do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl
from confluent_kafka import KafkaError

from weir.infra.kafka.columns import RECORD_SCHEMA, record_schema
from weir.infra.kafka.consumer import NO_LIMIT
from weir.infra.kafka.reader import PartitionReader

Headers = list[tuple[str, bytes | None]]
Row = tuple[bytes | None, bytes | None, int] | tuple[bytes | None, bytes | None, int, Headers]
"""Key, value, timestamp in ms, and perhaps headers."""


class LogConsumer:
    """What ``PartitionConsumer`` is to a broker's partition, to a list of rows whose index is the offset.

    In place of a row there may be None: a transaction's marker, or a record of one that was aborted.
    """

    error: KafkaError | None = None

    def __init__(
        self,
        rows: Callable[[], Sequence[Row | None] | None],
        oldest: Callable[[], int] = lambda: 0,
        *,
        with_headers: bool = False,
    ) -> None:
        self._rows, self._oldest = rows, oldest
        self._collected = list[tuple[bytes | None, bytes | None, int, int]]()
        self._headers: list[list[dict[str, str | bytes | None]]] | None = [] if with_headers else None
        self.next_offset, self.at_end = 0, None

    def start(self, offset: int) -> None:
        self.next_offset, self.at_end, self._collected = offset, None, []
        self._headers = None if self._headers is None else []

    def consume(self, timeout_s: float, *, end: int, until_ms: int = NO_LIMIT, max_bytes: int = NO_LIMIT) -> bool:
        rows = self._rows()
        if rows is None:
            self.error = KafkaError(KafkaError._UNKNOWN_PARTITION)
            return False
        if self.next_offset < self._oldest():
            self.error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
            return False
        size = sum(len(key or b"") + len(value or b"") for key, value, _, _ in self._collected)
        while self.next_offset < min(end, len(rows)):
            row = rows[self.next_offset]
            if row is None:
                self.next_offset += 1
                continue
            key, value, time_ms, *headers = row
            if self._headers is not None:
                pairs: Headers = headers[0] if headers else []
                self._headers.append([{"key": name, "value": content} for name, content in pairs])
            self._collected.append((key, value, time_ms, self.next_offset))
            self.next_offset += 1
            size += len(key or b"") + len(value or b"")
            if time_ms > until_ms or size >= max_bytes:
                return True
        self.at_end = None if self.next_offset >= end else len(rows)
        return self.next_offset >= end

    def take(self) -> pl.DataFrame:
        taken, self._collected = self._collected, []
        found = pl.DataFrame(taken, schema=RECORD_SCHEMA, orient="row")
        if self._headers is None:
            return found
        headers, self._headers = self._headers, []
        return found.with_columns(pl.Series("headers", headers, record_schema(with_headers=True)["headers"]))

    is_fetching = True

    def resume(self) -> None:
        """Nothing is fetched ahead."""

    def stop(self) -> None:
        """Nothing is fetched ahead."""

    def connect(self, timeout_s: float) -> None:
        """There is nothing to connect to."""

    def close(self) -> None:
        """There is nothing to close."""


def log_reader(
    topic: str,
    partition: int,
    rows: Callable[[], Sequence[Row | None] | None],
    oldest: Callable[[], int] = lambda: 0,
    *,
    with_headers: bool = False,
) -> PartitionReader:
    """A reader of such a partition; ``rows`` are None once it is deleted, ``oldest`` is the first offset kept."""
    connect = lambda *_, **options: LogConsumer(rows, oldest, **options)
    return PartitionReader({}, topic, partition, connect, with_headers=with_headers)  # type: ignore[arg-type]
