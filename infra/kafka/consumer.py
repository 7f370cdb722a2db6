"""librdkafka's consumer of one topic partition, read as columns.

confluent-kafka's makes a Python object of every record, which cost more than the rest of an epoch (docs/adr/0007). The
consumer is the "simple" one: it has no group, offsets are up to the caller, and each partition has a queue of its own,
so that many share a client (docs/adr/0017).
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from confluent_kafka import KafkaError, KafkaException

from weir.infra.kafka.columns import RecordColumns, address_of, forget_kept
from weir.infra.kafka.fetching import Fetching
from weir.infra.kafka.librdkafka import OK, rdkafka
from weir.infra.kafka.shared_clients import SharedClients

NO_LIMIT = 2**63 - 1

_clients, _fetching = SharedClients(), Fetching()
"""Of this process; ``_fetching.lock`` guards both."""


class PartitionConsumer:
    """Fetches one topic partition from an offset on, in the background. Not to be used by several threads.

    Errors of single brokers and connections are left to librdkafka, which logs and repairs them: another broker may
    still serve.

    It is never garbage-collected before ``close``: the client's threads keep running.

    Raises:
        KafkaException: A property or the topic's name is invalid or cannot be used.
    """

    def __init__(
        self, properties: Mapping[str, object], topic: str, partition: int, *, with_headers: bool = False
    ) -> None:
        self._properties, self._topic, self._partition, self._with_headers = properties, topic, partition, with_headers
        self._handle: int | None = None
        with _fetching.lock:
            self._join()

    def start(self, offset: int) -> None:
        """Fetch from ``offset`` on; what was fetched before is discarded.

        Raises:
            KafkaException: There is no client for it; another call tries again.
        """
        with _fetching.lock:
            self.stop()
            if self._handle is None or not _clients.suits(self._client, self._properties):
                self._leave()
                self._join()
            self._columns.begin_at(offset)
            self._fetch()

    def resume(self) -> None:
        """Fetch on where it stopped, if it did; what was collected stays."""
        with _fetching.lock:
            if self.is_fetching:
                return
            if self._columns.found.rows:
                self._fetch()
            else:
                self.start(self.next_offset)

    @property
    def is_fetching(self) -> bool:
        """False before ``start`` and after ``stop``, which others may cause, too."""
        return self in _fetching

    def consume(self, timeout_s: float, *, end: int, until_ms: int = NO_LIMIT, max_bytes: int = NO_LIMIT) -> bool:
        """Collect what was fetched, waiting ``timeout_s`` for a first record; ``take`` hands it out.

        True if it stopped at a bound: after the last record before ``end``, after the first one later than
        ``until_ms``, or after the one with which everything collected reaches ``max_bytes``.
        """
        with _fetching.work(self):
            self.resume()
            found = self._columns.found
            found.end, found.until_ms, found.max_bytes = end, until_ms, max_bytes
            found.is_complete, found.error = 0, OK
            rdkafka().rd_kafka_consume_callback(
                self._handle, self._partition, round(timeout_s * 1000), self._columns.take, self._columns.pointer
            )
        rdkafka().rd_kafka_poll(self._client.pointer, 0)
        if self.at_end is not None:  # it is told only once, and control records may come before it
            found.next_offset = max(found.next_offset, self.at_end)
        if found.is_out_of_memory:
            raise MemoryError
        return bool(found.is_complete)

    @property
    def next_offset(self) -> int:
        """The offset after the last record that was collected, or of the partition's end if that was met after it."""
        return int(self._columns.found.next_offset)

    @property
    def at_end(self) -> int | None:
        """The offset at which the last call met the partition's end, if no record followed."""
        found = self._columns.found
        return int(found.error_offset) if found.error == KafkaError._PARTITION_EOF else None

    @property
    def error(self) -> KafkaError | None:
        """The partition's error that the last call met, if any."""
        found = self._columns.found
        if found.error in (OK, KafkaError._PARTITION_EOF):
            return None
        return KafkaError(found.error, found.error_text.decode(errors="replace"))

    def take(self) -> pl.DataFrame:
        """The records collected since the last call, as ``record_schema`` of ``weir.infra.kafka.columns`` has it."""
        return self._columns.frame()

    def connect(self, timeout_s: float) -> None:
        """Connect to the brokers and ask them for the topic, unless the client has; those that are unreachable are
        connected to later."""
        assert self._handle is not None
        self._client.connect(self._topic, self._handle, timeout_s)

    def stop(self) -> None:
        """Fetch no more until it is used again; memory that is kept for columns is returned."""
        with _fetching.lock:
            if self.is_fetching:
                _fetching.remove(self)
                rdkafka().rd_kafka_consume_stop(self._handle, self._partition)
                forget_kept()

    def close(self) -> None:
        """Call it once; nothing may be called afterwards."""
        with _fetching.lock:
            self._leave()

    def _fetch(self) -> None:
        _fetching.add(self, _clients.crowd.fetching)
        if rdkafka().rd_kafka_consume_start(self._handle, self._partition, self.next_offset) != OK:
            _fetching.remove(self)
            raise KafkaException(KafkaError(rdkafka().rd_kafka_last_error()))

    def _join(self) -> None:
        """Find a client, and have a handle of the topic there."""
        kafka = rdkafka()
        client = _clients.join(self._properties, self._topic, self._partition)
        handle: int | None = kafka.rd_kafka_topic_new(client.pointer, self._topic.encode(), None)
        if not handle:
            error = KafkaError(kafka.rd_kafka_last_error()).str()
            _clients.leave(client, self._topic, self._partition)
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, f"topic {self._topic!r} cannot be read: {error}"))
        self._client, self._handle = client, handle
        self._columns = RecordColumns(
            address_of(kafka.rd_kafka_message_timestamp),
            address_of(kafka.rd_kafka_yield),
            client.pointer,
            address_of(kafka.rd_kafka_message_headers) if self._with_headers else None,
            address_of(kafka.rd_kafka_header_get_all) if self._with_headers else None,
        )

    def _leave(self) -> None:
        self.stop()
        if self._handle is not None:
            rdkafka().rd_kafka_topic_destroy(self._handle)
            _clients.leave(self._client, self._topic, self._partition)
            self._columns.close()
        self._handle = None
