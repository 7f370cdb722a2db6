"""Publishing to Kafka: rows and mark in one transaction, the mark as an offset that it commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from weir.infra.kafka.admin import KafkaAdmin, KafkaAdminError, UnknownTopicError
from weir.infra.kafka.transactions import (
    Note,
    RecordRefusedError,
    TransactionalWriter,
    TransactionError,
    WriterFencedError,
)
from weir.pipelines.publishing.connection import BatchLimits, Published, RefusedRowsError, SinkError, SinkFencedError
from weir.pipelines.sinks.kafka import KafkaTopic
from weir.state.commit.outbox import Mark

LIMITS = BatchLimits(rows=50_000, size_bytes=32 << 20)
"""What one transaction takes."""


def marks_topic(application: str) -> str:
    """The topic that sinks with a topic for each record keep their marks at; it has no records."""
    return f"{application}-sinks"


class KafkaConnection:
    """A producer with the transactional id of the application and sink, which is also the group of its marks."""

    def __init__(self, application: str, sink: KafkaTopic, properties: Mapping[str, str]) -> None:
        """``properties`` are librdkafka's.

        Raises:
            SinkError: The brokers do not answer or refuse.
        """
        topic = sink.topic if isinstance(sink.topic, str) else marks_topic(application)
        self._there = set[str]()
        """The topics that have been seen to exist."""
        try:
            self._admin = KafkaAdmin(properties["bootstrap.servers"], properties)
            if not isinstance(sink.topic, str):
                self._admin.create_topic(topic, 1)
            self._writer = TransactionalWriter(properties, id=f"{application}.{sink.name}", noted_at=(topic, 0))
        except TransactionError as error:
            raise _sink_error(error) from error
        except KafkaAdminError as error:
            raise SinkError(str(error)) from error
        self.limits = LIMITS

    def published(self) -> Published | None:
        try:
            note = self._writer.note()
        except TransactionError as error:
            raise _sink_error(error) from error
        if note is None:
            return None
        rows, _, outbox = note.text.partition(" ")
        return Published(outbox, Mark(note.number, int(rows)))

    def publish(self, rows: pl.DataFrame, published: Published) -> None:
        outbox, mark = published
        if not rows.is_empty():
            self._require(rows.get_column("topic").unique().to_list())
        try:
            self._writer.write(rows, Note(mark.epoch, f"{mark.rows} {outbox}"))
        except TransactionError as error:
            raise _sink_error(error) from error

    def close(self) -> None:
        self._writer.close()

    def _require(self, topics: Sequence[str]) -> None:
        """See whether topics exist, since the writer would wait for half a minute for one that does not."""
        for topic in topics:
            if topic in self._there:
                continue
            try:
                self._admin.require_topic(topic)
            except UnknownTopicError as error:
                raise RefusedRowsError(str(error)) from error
            except KafkaAdminError as error:
                raise SinkError(str(error)) from error
            self._there.add(topic)


def _sink_error(error: TransactionError) -> SinkError:
    match error:
        case WriterFencedError():
            return SinkFencedError(str(error))
        case RecordRefusedError():
            return RefusedRowsError(str(error))
    return SinkError(str(error))
