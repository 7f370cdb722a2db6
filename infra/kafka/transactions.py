"""Writing records to Kafka in transactions, each of which also notes how far the writer has come.

The note is an offset with metadata that the transaction commits for a partition in a consumer group, so it stands
exactly when the records do. A writer with the same transactional id fences the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

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


class OutRecord(NamedTuple):
    """A record to be written."""

    topic: str
    partition: int
    """-1 to let the key decide, as Java's producer does."""
    key: bytes | None
    value: bytes | None
    time_ms: int
    headers: Sequence[tuple[str, bytes | None]] = ()


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
        self._noted_at = noted_at
        self._refusals: list[KafkaError] = []
        try:
            self._producer = Producer(
                {
                    "log_level": 2,
                    "partitioner": "murmur2_random",
                    "linger.ms": 5,
                    "compression.type": "lz4",
                    "queue.buffering.max.messages": 200_000,
                    "transaction.timeout.ms": TRANSACTION_LIMIT_MS,
                    **properties,
                    "transactional.id": id,
                    "delivery.report.only.error": True,
                    "on_delivery": self._on_failure,
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

    def write(self, records: Iterable[OutRecord], note: Note) -> None:
        """Write records in order, with the note, in one transaction, which fails if a record is refused.

        Raises:
            RecordRefusedError: A record is too large, or its topic's name, partition or time is impossible.
            WriterFencedError: Another writer has begun.
            TransactionError: Anything else; without its ``note`` it is unknown whether the transaction took place.
        """
        producer, produce = self._producer, self._producer.produce
        try:
            producer.begin_transaction()
            for topic, partition, key, value, time_ms, headers in records:
                while True:
                    try:
                        # librdkafka takes a time of 0 for none, and writes the present
                        produce(topic, value, key, partition, timestamp=time_ms or 1, headers=list(headers))
                        break
                    except BufferError:
                        producer.poll(0.1)
            producer.send_offsets_to_transaction(
                [TopicPartition(*self._noted_at, note.number, note.text)],
                self._consumer.consumer_group_metadata(),
                ANSWER_LIMIT_S,
            )
            producer.commit_transaction(ANSWER_LIMIT_S)
        except KafkaException as error:
            self._abort()  # by which every record has been answered
            raise _failed(KafkaException(self._refusals[0]) if self._refusals else error) from error

    def close(self) -> None:
        """Abort a transaction that is open, if the brokers answer at once, and end the connections."""
        self._abort()
        self._consumer.close()

    def _on_failure(self, error: KafkaError | None, _: Message) -> None:
        if error is not None and error.code() in _REFUSED:
            self._refusals.append(error)

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
