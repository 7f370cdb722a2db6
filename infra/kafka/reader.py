"""Reading one topic partition by offsets: a cached consumer that seeks if it is not where the caller is.

A read ends at the first record at or past its end offset, at the partition's end, or after some time without progress;
the position in the answer is the truth (PROTOCOL 9). Records fetched beyond the cut are kept for the next call, so that
bounding a read costs no second fetch; losing them costs one. Decoding belongs to ``weir.pipelines.serdes``; which
offsets to read is the driver's decision.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import polars as pl
from confluent_kafka import KafkaError, KafkaException

from weir.infra.kafka.columns import record_schema
from weir.infra.kafka.consumer import NO_LIMIT, PartitionConsumer
from weir.infra.kafka.raw_records import OffsetGoneError, RawRecords
from weir.infra.kafka.record_headers import LITTLE_MEMORY, RecordHeaders

FETCH_PROPERTIES: Mapping[str, object] = {
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 8_192,
    "fetch.max.bytes": 4_000_000,
    "max.partition.fetch.bytes": 256_000,
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 1,
}
"""Answers are small, since librdkafka makes an operation of 450 bytes for each record before one is taken: 100,000 of
them leave the processor's cache, and each read takes fresh memory for them (docs/adr/0018)."""
CONSUME_TIMEOUT_S = 0.05
"""How long one call waits for a first record."""
PATIENCE_S = 1.0
"""How long a read waits without any progress. Fetching continues in the background, so a short wait loses nothing, and
a stop is not held up by a series of waits, one for each partition of unreachable brokers."""
CONNECT_LIMIT_S = 2.0
PASSING_ERRORS = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._UNKNOWN_PARTITION,
    }
)
"""A lagging broker may not know a new partition yet."""
KEPT_SHARE = 8
"""If what remains is less than this fraction of what was fetched, it is copied."""
_NOWHERE = -1


GONE_ERRORS = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
"""The partition has no records at the offset that is fetched from."""


class PartitionReader:
    """Reads one topic partition; keep it between epochs, and close it. Not to be used by several threads.

    Records have their headers if they are asked for with ``with_headers``.

    Raises:
        KafkaException: A property is unknown or invalid.
    """

    def __init__(
        self,
        properties: Mapping[str, object],
        topic: str,
        partition: int,
        connect: Callable[..., PartitionConsumer] = PartitionConsumer,
        *,
        with_headers: bool = False,
    ) -> None:
        self.topic, self.partition = topic, partition
        self._properties, self._connect = properties, connect
        options = {"with_headers": True} if with_headers else {}
        self._consumer = connect({**FETCH_PROPERTIES, **properties}, topic, partition, **options)
        self._schema = record_schema(with_headers=with_headers)
        self._fetched = self._schema.to_frame()
        """Records fetched but not handed out yet."""
        self._handed_out = _NOWHERE
        self._headers: RecordHeaders | None = None

    def read(
        self,
        start: int,
        end: int,
        *,
        until_time_ms: int | None = None,
        max_bytes: int = 64 << 20,
        is_strict: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> RawRecords:
        """Records of ``[start, end)``, cut at the first one later than ``until_time_ms``; at least one record, unless
        ``is_strict``.

        Reading stops early once keys and values exceed ``max_bytes``, and after ``patience_s`` without any progress
        (for example if a broker is unreachable), and returns what it has by then.

        Raises:
            OffsetGoneError: The log begins after ``start``, or was truncated.
            KafkaException: The broker refuses (authorization, unknown topic); connection errors are waited out.
        """
        is_there, self._handed_out = self._handed_out == start, _NOWHERE  # after an error below the next read seeks
        if not is_there:
            self._seek(start)
        next_offset = self._collect(
            start, end, NO_LIMIT if until_time_ms is None else until_time_ms, max_bytes, patience_s
        )
        fetched = self._fetched
        offsets = fetched["offset"]
        all_before = offsets.is_empty() or offsets[-1] < end
        count = len(offsets) if all_before else offsets.search_sorted(end)
        if until_time_ms is not None:
            beyond = (fetched["timestamp_ms"][:count] > until_time_ms).arg_true()
            if len(beyond):
                count = min(count, max(beyond[0], not is_strict))
        next_time_ms = None
        if count < fetched.height:
            next_offset, next_time_ms = fetched["offset"][count], fetched["timestamp_ms"][count]
        next_offset = max(start, min(next_offset, end))
        kept = fetched[count:]
        if 0 < kept.height < fetched.height // KEPT_SHARE:
            kept = pl.DataFrame(kept.rows(), schema=self._schema, orient="row")  # releases the buffers of all records
        self._fetched, self._handed_out = kept, next_offset
        return RawRecords(self.topic, self.partition, fetched[:count], next_offset, next_time_ms)

    def fetch_ahead(self, start: int) -> None:
        """Fetch from ``start`` on, where the next read begins, if that does not go on anyway. Errors are left to it."""
        with suppress(KafkaException):
            if self._handed_out == start:
                self._consumer.resume()
            else:
                self._handed_out = _NOWHERE
                self._seek(start)
                self._handed_out = start

    def take_back(self, records: RawRecords, offset: int) -> None:
        """Keep the last read's records from ``offset`` on for the next read, which starts there; once more, with an
        offset before that, keeps those as well."""
        kept = records.frame[records.frame["offset"].search_sorted(offset) :]
        beyond = self._fetched[self._fetched["offset"].search_sorted(records.next_offset) :]
        self._fetched, self._handed_out = pl.concat([kept, beyond]), offset

    def headers(self, offsets: Sequence[int]) -> pl.DataFrame:
        """The columns ``offset`` and ``headers`` of the records at ``offsets``, which ascend, for a reader without
        headers: ``RecordHeaders.of``. Another thread may read meanwhile."""
        if self._headers is None:
            properties = {**self._properties, **LITTLE_MEMORY}
            open_reader = partial(
                PartitionReader, properties, self.topic, self.partition, self._connect, with_headers=True
            )
            self._headers = RecordHeaders(open_reader)
        return self._headers.of(offsets)

    def rest(self) -> bool:
        """Fetch no more until the next read, unless something has come since the last one; whether it rests.

        At a partition's end the client asks the broker for more each ``fetch.wait.max.ms``: 0.7 per cent of a core.
        """
        if self._headers is not None:
            self._headers.close_unused()
        if self._handed_out == _NOWHERE:
            self._consumer.stop()
            return True
        if not self._consumer.is_fetching:
            return self._fetched.is_empty()
        before = self._consumer.next_offset
        self._consumer.consume(0.0, end=NO_LIMIT, max_bytes=1)
        found = self._consumer.take()
        self._fetched = pl.concat([self._fetched, found]) if self._fetched.height else found
        if self._fetched.height or self._consumer.next_offset > before:
            return False
        self._consumer.stop()
        self._handed_out = _NOWHERE
        return True

    def stop(self) -> None:
        """Fetch no more until the next read, and forget what has been fetched."""
        self._consumer.stop()
        self._fetched, self._handed_out = self._schema.to_frame(), _NOWHERE

    def connect(self) -> None:
        """Connect to the brokers ahead of the first read; unreachable ones are connected to later."""
        self._consumer.connect(CONNECT_LIMIT_S)

    def close(self) -> None:
        self._consumer.close()
        if self._headers is not None:
            self._headers.close()

    def _seek(self, offset: int) -> None:
        self._fetched = self._schema.to_frame()
        self._consumer.start(offset)

    def _collect(self, start: int, end: int, until_ms: int, max_bytes: int, patience_s: float) -> int:
        """Fetch until the range, the bytes or the time is exhausted; returns the offset reached."""
        kept, consumer = self._fetched, self._consumer
        reached = max(start, consumer.next_offset)
        if kept.height:
            max_bytes -= kept.select(pl.sum_horizontal(pl.col("key", "value").bin.size().sum())).item()
            if reached >= end or max_bytes <= 0 or kept["timestamp_ms"].max() > until_ms:  # type: ignore[operator]
                return reached
        begun, is_first = reached, True
        deadline = time.monotonic() + patience_s
        while reached < end:
            is_complete = consumer.consume(CONSUME_TIMEOUT_S, end=end, until_ms=until_ms, max_bytes=max_bytes)
            if consumer.error is not None:
                if is_first and consumer.error.code() in GONE_ERRORS and consumer.next_offset <= begun:
                    # librdkafka does not discard an error of the offset that was fetched from before
                    is_first = False
                    consumer.start(begun)
                    continue
                self._raise_if_final(consumer.error, reached)
            if consumer.next_offset > reached:
                reached, deadline = consumer.next_offset, time.monotonic() + patience_s
            if consumer.at_end is not None:
                reached = max(reached, min(consumer.at_end, end))
                break
            if is_complete or time.monotonic() > deadline:
                break
        found = consumer.take()
        self._fetched = pl.concat([kept, found]) if kept.height else found
        return reached

    def _raise_if_final(self, error: KafkaError, reached: int) -> None:
        """Transport errors resolve themselves; raises what waiting cannot resolve."""
        if error.code() in GONE_ERRORS:
            raise OffsetGoneError(self.topic, self.partition, reached)
        if error.code() not in PASSING_ERRORS:
            raise KafkaException(error)
