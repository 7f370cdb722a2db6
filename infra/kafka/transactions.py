"""Writing records to Kafka in transactions, each of which also notes how far the writer has come.

The note is an offset with metadata that the transaction commits for a partition in a consumer group, so it stands
exactly when the records do. A writer with the same transactional id fences the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import polars as pl
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from weir.infra.kafka.producer import TransactionalProducer

ANSWER_LIMIT_S, ABORT_LIMIT_S = 30.0, 1.0
TRANSACTION_LIMIT_MS = 60_000
"""How long the brokers keep a transaction open whose writer has died: readers of committed records wait as long."""
_REFUSED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._UNKNOWN_PARTITION,
    }
)
_FENCED = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})


class Note(NamedTuple):
    """How far a writer has come, in its own terms: a number that is not negative, and a text."""

    number: int
    text: str


class TransactionError(Exception):
    """A transaction did not take place, or it is unknown whether it did; a new writer's ``note`` tells."""


class RecordRefusedError(TransactionError):
    """The brokers will never take one of the records; the transaction did not take place."""


class WriterFencedError(TransactionError):
    """Another writer with this transactional id has begun; nothing more can be written here."""


class TransactionalWriter:
    """One producer with its transactional id. After a ``TransactionError`` close it and make a new one."""

    def __init__(self, properties: Mapping[str, str], *, id: str, noted_at: tuple[str, int]) -> None:
        """Fence earlier writers with the transactional id ``id``, and end what they had begun.

        ``id`` also names the consumer group; ``noted_at`` is the topic partition whose offset there is the note.

        Raises:
            TransactionError: The brokers do not answer or refuse.
        """
        self._group, self._noted_at = id, noted_at
        try:
            self._producer = TransactionalProducer(
                {
                    "log_level": 2,
                    "partitioner": "murmur2_random",
                    "linger.ms": 5,
                    "compression.type": "lz4",
                    "queue.buffering.max.messages": 200_000,
                    "transaction.timeout.ms": TRANSACTION_LIMIT_MS,
                    **properties,
                    "transactional.id": id,
                }
            )
            self._consumer = Consumer({"log_level": 2, **properties, "group.id": id, "enable.auto.commit": False})
            self._producer.init_transactions(ANSWER_LIMIT_S)
        except KafkaException as error:
            raise _failed(error) from error

    def note(self) -> Note | None:
        """The note of the last transaction; None if the group has none."""
        try:
            (found,) = self._consumer.committed([TopicPartition(*self._noted_at)], timeout=ANSWER_LIMIT_S)
        except KafkaException as error:
            raise _failed(error) from error
        if found.error is not None:
            raise _failed(KafkaException(found.error))
        return Note(found.offset, found.metadata or "") if found.offset >= 0 else None

    def write(self, rows: pl.DataFrame, note: Note) -> None:
        """Write rows in order, as ``TransactionalProducer.produce`` takes them, with the note, in one transaction,
        which fails if a record is refused.

        Raises:
            RecordRefusedError: A record is too large, or its topic's name, partition or time is impossible.
            WriterFencedError: Another writer has begun.
            TransactionError: Anything else; without its ``note`` it is unknown whether the transaction took place.
        """
        producer = self._producer
        try:
            producer.begin_transaction()
            producer.produce(rows)
            producer.send_offset(self._group, *self._noted_at, note.number, note.text, ANSWER_LIMIT_S)
            producer.commit_transaction(ANSWER_LIMIT_S)
        except KafkaException as error:
            self._abort()  # by which every record has been answered
            refused = [each for each in producer.failures if each.code() in _REFUSED]
            raise _failed(KafkaException(refused[0]) if refused else error) from error

    def close(self) -> None:
        """Abort a transaction that is open, if the brokers answer at once, and end the connections."""
        self._abort()
        self._producer.close()
        self._consumer.close()

    def _abort(self) -> None:
        with suppress(KafkaException):  # none is open, the writer is fenced, or the brokers are away
            self._producer.abort_transaction(ABORT_LIMIT_S)


def _failed(error: KafkaException) -> TransactionError:
    code: KafkaError = error.args[0]
    kind: type[TransactionError] = TransactionError
    if code.code() in _FENCED:
        kind = WriterFencedError
    elif code.code() in _REFUSED:
        kind = RecordRefusedError
    return kind(code.str().rstrip("."))
