"""librdkafka's consumer of one topic partition, read as columns.

confluent-kafka's makes a Python object of every record, which cost more than the rest of an epoch (docs/adr/0007). The
consumer is the "simple" one: it has no group, and offsets are up to the caller.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import polars as pl
from confluent_kafka import KafkaError, KafkaException

from weir.infra.kafka.columns import RecordColumns, address_of
from weir.infra.kafka.librdkafka import CONSUMER, OK, new_client, new_conf, rdkafka

NO_LIMIT = 2**63 - 1


class PartitionConsumer:
    """Fetches one topic partition from an offset on, in the background. Not to be used by several threads.

    Errors of single brokers and connections are left to librdkafka, which logs and repairs them: another broker may
    still serve.

    It is never garbage-collected before ``close``: its threads keep running.

    Raises:
        KafkaException: A property or the topic's name is invalid or cannot be used.
    """

    def __init__(
        self, properties: Mapping[str, object], topic: str, partition: int, *, with_headers: bool = False
    ) -> None:
        self._partition = partition
        self._is_started = False
        kafka = rdkafka()
        self._client = new_client(CONSUMER, new_conf(properties))
        self._topic = kafka.rd_kafka_topic_new(self._client, topic.encode(), None)
        if not self._topic:
            kafka.rd_kafka_destroy(self._client)
            raise KafkaException(
                KafkaError(
                    KafkaError._INVALID_ARG,
                    f"topic {topic!r} cannot be read: {KafkaError(kafka.rd_kafka_last_error()).str()}",
                )
            )
        self._columns = RecordColumns(
            address_of(kafka.rd_kafka_message_timestamp),
            address_of(kafka.rd_kafka_yield),
            self._client,
            address_of(kafka.rd_kafka_message_headers) if with_headers else None,
            address_of(kafka.rd_kafka_header_get_all) if with_headers else None,
        )

    def start(self, offset: int) -> None:
        """Fetch from ``offset`` on; what was fetched before is discarded."""
        self.stop()
        if rdkafka().rd_kafka_consume_start(self._topic, self._partition, offset) != OK:
            raise KafkaException(KafkaError(rdkafka().rd_kafka_last_error()))
        self._is_started = True
        self._columns.begin_at(offset)

    def consume(self, timeout_s: float, *, end: int, until_ms: int = NO_LIMIT, max_bytes: int = NO_LIMIT) -> bool:
        """Collect what was fetched, waiting ``timeout_s`` for a first record; ``take`` hands it out.

        True if it stopped at a bound: after the last record before ``end``, after the first one later than
        ``until_ms``, or after the one with which everything collected reaches ``max_bytes``.
        """
        found = self._columns.found
        found.end, found.until_ms, found.max_bytes = end, until_ms, max_bytes
        found.is_complete, found.error = 0, OK
        rdkafka().rd_kafka_consume_callback(
            self._topic, self._partition, round(timeout_s * 1000), self._columns.take, self._columns.pointer
        )
        rdkafka().rd_kafka_poll(self._client, 0)
        if found.is_out_of_memory:
            raise MemoryError
        return bool(found.is_complete)

    @property
    def next_offset(self) -> int:
        """The offset after the last record that was collected."""
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
        """Connect to the brokers and ask them for the topic; those that are unreachable are connected to later."""
        metadata = ctypes.c_void_p()
        if (
            rdkafka().rd_kafka_metadata(self._client, 0, self._topic, ctypes.byref(metadata), round(timeout_s * 1000))
            == OK
        ):
            rdkafka().rd_kafka_metadata_destroy(metadata)

    def stop(self) -> None:
        """Fetch no more until ``start``."""
        if self._is_started:
            rdkafka().rd_kafka_consume_stop(self._topic, self._partition)
            self._is_started = False

    def close(self) -> None:
        """Call it once; nothing may be called afterwards."""
        self.stop()
        rdkafka().rd_kafka_topic_destroy(self._topic)
        rdkafka().rd_kafka_destroy(self._client)
        self._columns.close()
