"""librdkafka's transactional producer, given rows as columns (``_outgoing.c``).

A call of confluent-kafka's ``produce`` for each record took more than all the rest of publishing it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from confluent_kafka import KafkaError, KafkaException

from weir.infra.kafka.columns import ERROR_BYTES, address_of, compiled
from weir.infra.kafka.librdkafka import OK, PRODUCER, new_client, new_conf, rdkafka

MOST_FAILURES = 64
QUEUE_FULL_WAIT_MS = 100


class _Bytes(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("lengths", ctypes.c_void_p))


class _Fields(ctypes.Structure):
    """``struct outgoing`` in ``_outgoing.c``."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        ("topics", ctypes.c_void_p),
        ("topic", ctypes.c_void_p),
        ("partition", ctypes.c_void_p),
        ("time_ms", ctypes.c_void_p),
        ("key", _Bytes),
        ("value", _Bytes),
        ("headers", ctypes.c_void_p),
        ("header_name", _Bytes),
        ("header_value", _Bytes),
        ("producev", ctypes.c_void_p),
        ("headers_new", ctypes.c_void_p),
        ("header_add", ctypes.c_void_p),
        ("headers_destroy", ctypes.c_void_p),
        ("next_row", ctypes.c_int64),
        ("next_header", ctypes.c_int64),
    )


class _Failures(ctypes.Structure):
    _fields_ = (("count", ctypes.c_int32), ("errors", ctypes.c_int32 * MOST_FAILURES))


class TransactionalProducer:
    """A producer with a transactional id. Not to be used by several threads. Each method raises ``KafkaException``."""

    def __init__(self, properties: Mapping[str, object]) -> None:
        """``properties`` are librdkafka's, with ``transactional.id``."""
        kafka = rdkafka()
        self._failures = _Failures()
        conf = new_conf({**properties, "delivery.report.only.error": True})
        kafka.rd_kafka_conf_set_opaque(conf, ctypes.addressof(self._failures))
        kafka.rd_kafka_conf_set_dr_msg_cb(conf, address_of(compiled().outgoing_failed))
        self._client = new_client(PRODUCER, conf)

    @property
    def failures(self) -> Sequence[KafkaError]:
        """Why records were not delivered: the errors of the first ones since the transaction began."""
        return [KafkaError(code) for code in self._failures.errors[: self._failures.count]]

    def init_transactions(self, timeout_s: float) -> None:
        """Fence earlier producers with this transactional id."""
        self._check(rdkafka().rd_kafka_init_transactions(self._client, _ms(timeout_s)))

    def begin_transaction(self) -> None:
        self._failures.count = 0
        self._check(rdkafka().rd_kafka_begin_transaction(self._client))

    def produce(self, rows: pl.DataFrame) -> None:
        """Give rows, in order, to librdkafka, which sends them in the background: ``topic``; ``partition``, -1 to let
        the key decide; ``key`` and ``value``, binary; ``time_ms``; and, if there are any, ``headers``
        (``weir.infra.kafka.columns.RECORD_HEADERS``)."""
        if rows.is_empty():
            return
        kafka, outgoing = rdkafka(), _Outgoing(rows)
        while (error := compiled().outgoing_produce(ctypes.byref(outgoing.fields), self._client)) != OK:
            if error != KafkaError._QUEUE_FULL:
                raise KafkaException(self._error(error, ""))
            kafka.rd_kafka_poll(self._client, QUEUE_FULL_WAIT_MS)
        kafka.rd_kafka_poll(self._client, 0)

    def send_offset(self, group: str, topic: str, partition: int, offset: int, text: str, timeout_s: float) -> None:
        """Have the transaction commit an offset with ``text`` as its metadata for a group."""
        kafka, written = rdkafka(), text.encode() + b"\0"  # librdkafka copies that many bytes, and looks for the end
        offsets = kafka.rd_kafka_topic_partition_list_new(1)
        members = kafka.rd_kafka_consumer_group_metadata_new(group.encode())
        try:
            added = kafka.rd_kafka_topic_partition_list_add(offsets, topic.encode(), partition).contents
            added.offset, added.metadata_size = offset, len(written)
            added.metadata = kafka.rd_kafka_mem_malloc(self._client, len(written))  # the list frees it
            ctypes.memmove(added.metadata, written, len(written))
            self._check(kafka.rd_kafka_send_offsets_to_transaction(self._client, offsets, members, _ms(timeout_s)))
        finally:
            kafka.rd_kafka_consumer_group_metadata_destroy(members)
            kafka.rd_kafka_topic_partition_list_destroy(offsets)

    def commit_transaction(self, timeout_s: float) -> None:
        self._check(rdkafka().rd_kafka_commit_transaction(self._client, _ms(timeout_s)))

    def abort_transaction(self, timeout_s: float) -> None:
        self._check(rdkafka().rd_kafka_abort_transaction(self._client, _ms(timeout_s)))

    def close(self) -> None:
        """Call it once; nothing may be called afterwards."""
        rdkafka().rd_kafka_destroy(self._client)

    def _check(self, error: int | None) -> None:
        if not error:
            return
        kafka = rdkafka()
        try:
            code, text = kafka.rd_kafka_error_code(error), kafka.rd_kafka_error_string(error).decode()
        finally:
            kafka.rd_kafka_error_destroy(error)
        raise KafkaException(self._error(code, text))

    def _error(self, code: int, text: str) -> KafkaError:
        """The error, or the one that ended the producer, if that is all that it says."""
        if code == KafkaError._FATAL:
            reason = ctypes.create_string_buffer(ERROR_BYTES)
            code = rdkafka().rd_kafka_fatal_error(self._client, reason, ERROR_BYTES)
            text = reason.value.decode()
        return KafkaError(code, text) if text else KafkaError(code)


class _Outgoing:
    """Rows in the form of ``struct outgoing``, with what its pointers lead to."""

    def __init__(self, rows: pl.DataFrame) -> None:
        kafka = rdkafka()
        self._kept: list[Any] = []
        topic, times = rows.get_column("topic"), rows.get_column("time_ms")
        topics = topic.unique(maintain_order=True).to_list()
        names = (ctypes.c_char_p * len(topics))(*(name.encode() for name in topics))
        self._kept.append(names)
        self.fields = _Fields(
            rows=rows.height,
            topics=ctypes.addressof(names),
            topic=self._numbers(topic.replace_strict(topics, range(len(topics)), return_dtype=pl.Int32)),
            partition=self._numbers(rows.get_column("partition").cast(pl.Int32)),
            # librdkafka takes a time of 0 for none, and writes the present
            time_ms=self._numbers(times.set(times == 0, 1)),
            key=self._bytes(rows.get_column("key")),
            value=self._bytes(rows.get_column("value")),
            producev=address_of(kafka.rd_kafka_producev),
            headers_new=address_of(kafka.rd_kafka_headers_new),
            header_add=address_of(kafka.rd_kafka_header_add),
            headers_destroy=address_of(kafka.rd_kafka_headers_destroy),
        )
        headers = rows.get_column("headers") if "headers" in rows.columns else None
        if headers is not None and (counts := headers.list.len().fill_null(0)).sum():
            each = headers.filter(counts > 0).explode().struct.unnest()
            self.fields.headers = self._numbers(counts.cast(pl.Int64))
            self.fields.header_name = self._bytes(each.get_column("key").cast(pl.Binary))
            self.fields.header_value = self._bytes(each.get_column("value"))

    def _bytes(self, column: pl.Series) -> _Bytes:
        data = b"".join(column.drop_nulls().to_list())
        self._kept.append(data)
        return _Bytes(data, self._numbers(column.bin.size().cast(pl.Int64).fill_null(-1)))

    def _numbers(self, column: pl.Series) -> int:
        numbers = np.ascontiguousarray(column.to_numpy())
        self._kept.append(numbers)
        return int(numbers.ctypes.data)


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
