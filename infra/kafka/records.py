"""Single records for people: sends some to a topic and reads some from it.

The ingest reads with ``weir.infra.kafka.reader``, in columns.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from confluent_kafka import (
    OFFSET_END,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from weir.infra.kafka.admin import UNREACHABLE, KafkaAdmin, KafkaAdminError, UnknownTopicError

SEND_LIMIT_S = 30.0
POLL_S = 0.2
_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)

Pairs = tuple[tuple[str, bytes | None], ...]
"""Headers: a name may occur more than once."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record of a topic; ``time_ms`` since 1970, None if it has none."""

    partition: int
    offset: int
    time_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: Pairs = ()


def send(
    admin: KafkaAdmin,
    properties: Mapping[str, str],
    topic: str,
    records: Iterable[tuple[bytes | None, bytes | None, int | None]],
    *,
    partition: int | None = None,
    timestamp_ms: int | None = None,
    headers: Sequence[tuple[str, bytes]] = (),
) -> int:
    """Send keys and values, each with its time in ms, in order, and return their number once all are acknowledged.

    Keys are placed as Java's producers place them, unless ``partition`` or ``properties`` say otherwise. Records
    without a time of their own have ``timestamp_ms``, by default the present. Each has ``headers``.

    Raises:
        UnknownTopicError: The topic or the partition does not exist.
        BrokerUnreachableError: No broker answered in time.
        KafkaAdminError: The brokers refused a record, or did not acknowledge all in time.
        Exception: Whatever ``records`` raises; what came before is sent all the same.
    """
    count = admin.partition_count(topic)
    if partition is not None and partition >= count:
        raise UnknownTopicError(topic, admin.bootstrap_servers, partition)
    failures: list[KafkaError] = []
    producer = Producer(
        {
            "log_level": 2,
            "partitioner": "murmur2_random",
            "enable.idempotence": True,
            "message.timeout.ms": round(SEND_LIMIT_S * 1000),
            **properties,
            "bootstrap.servers": admin.bootstrap_servers,
        }
    )
    options: dict[str, Any] = {"on_delivery": lambda error, _: failures.append(error) if error is not None else None}
    options |= {} if partition is None else {"partition": partition}
    options |= {} if timestamp_ms is None else {"timestamp": timestamp_ms}
    options |= {"headers": list(headers)} if headers else {}
    sent = 0
    try:
        for key, value, time_ms in records:
            _queue(producer, topic, key, value, options if time_ms is None else {**options, "timestamp": time_ms})
            sent += 1
            if failures:
                break
    except KafkaException as error:
        failures.append(error.args[0])
    finally:
        left = producer.flush(SEND_LIMIT_S + 1)
    if failures or left:
        reason = failures[0].str() if failures else f"no acknowledgement within {SEND_LIMIT_S:.0f} s"
        raise KafkaAdminError(
            f"Kafka at {admin.bootstrap_servers} did not take every record for the topic {topic!r}: {reason}; "
            f"{sent - len(failures) - left} of {sent} were acknowledged"
        )
    return sent


def _queue(producer: Producer, topic: str, key: bytes | None, value: bytes | None, options: Mapping[str, Any]) -> None:
    while True:
        try:
            producer.produce(topic, value, key, **options)
            producer.poll(0)
            return
        except BufferError:  # the queue is full
            producer.poll(POLL_S)


def read(
    admin: KafkaAdmin,
    properties: Mapping[str, str],
    topic: str,
    starts: Mapping[int, int | None],
    *,
    ends: Mapping[int, int] | None,
) -> Iterator[Record]:
    """Committed records of these partitions, each from its offset in ``starts`` (None: from its end) up to, not
    including, its offset in ``ends``; without ``ends`` for ever. Within a partition they are in order.

    Raises:
        UnknownTopicError: The topic was deleted.
        BrokerUnreachableError: No broker answered in time.
        KafkaAdminError: The brokers refuse to be read.
    """
    open_ends = None if ends is None else {each: end for each, end in ends.items() if (starts[each] or 0) < end}
    consumer = Consumer(
        {
            "log_level": 2,
            "group.id": "weir-kafka-consume",  # required, but never used: nothing is committed
            **properties,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "bootstrap.servers": admin.bootstrap_servers,
        }
    )
    wanted = starts if open_ends is None else {each: starts[each] for each in open_ends}
    try:
        consumer.assign(
            [TopicPartition(topic, each, OFFSET_END if start is None else start) for each, start in wanted.items()]
        )
        answered_at = time.monotonic()
        while open_ends is None or open_ends:
            message = consumer.poll(POLL_S)
            if message is not None:
                answered_at = time.monotonic()
            elif time.monotonic() - answered_at > admin.time_limit_s:
                admin.partition_count(topic)  # raises if no broker answers, or if the topic is gone
                answered_at = time.monotonic()
            if message is None:
                continue
            partition = message.partition() or 0
            if (error := message.error()) is None:
                if open_ends is not None and _offset(message) >= open_ends.get(partition, 0):
                    open_ends.pop(partition, None)
                    continue
                yield _record(message)
                if open_ends is not None and _offset(message) + 1 >= open_ends[partition]:
                    del open_ends[partition]
            elif error.code() == KafkaError._PARTITION_EOF:
                if open_ends is not None:  # its last records were removed by compaction, or mark a transaction's end
                    open_ends.pop(partition, None)
            elif error.code() in _GONE:
                raise UnknownTopicError(topic, admin.bootstrap_servers)
            elif error.code() in UNREACHABLE or error.retriable():
                admin.check_reachable()
            else:
                raise KafkaAdminError(
                    f"Kafka at {admin.bootstrap_servers} refused to be read (topic {topic!r}): {error.str()}"
                )
    finally:
        consumer.close()


def _record(message: Message) -> Record:
    kind, time_ms = message.timestamp()
    return Record(
        partition=message.partition() or 0,
        offset=_offset(message),
        time_ms=None if kind == TIMESTAMP_NOT_AVAILABLE else time_ms,
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=tuple((name, _bytes(value)) for name, value in cast(Pairs, message.headers() or ())),
    )


def _offset(message: Message) -> int:
    return message.offset() or 0


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
