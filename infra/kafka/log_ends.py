"""How far the log of a topic partition reached under which leader, and whether it has been truncated since (KIP-320).

An unclean leader election makes a replica the leader that lacks records which consumers have read; others take their
offsets. Each leader has an epoch, so the brokers can say where the log of an older one ended.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

_PROPERTIES: Mapping[str, object] = {
    "group.id": "weir",  # the client asks for one; nothing is committed to it
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "enable.partition.eof": True,
    "max.partition.fetch.bytes": 1,  # one batch of records is enough
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 1,  # else partitions with unread records answer one by one, a second apart
    "isolation.level": "read_uncommitted",  # records of aborted transactions show the offset, too
    "log_level": 2,
}
_POLL_S = 0.1
_KNOWN_EPOCHS = 0


@dataclass(frozen=True)
class LogEnd:
    """An offset that the log of a topic partition reached, and the epoch of its leader at that time."""

    offset: int
    leader_epoch: int | None
    """None where the brokers do not report it (before Kafka 2.1)."""


def truncations(
    properties: Mapping[str, object], positions: Mapping[tuple[str, int], LogEnd], time_limit_s: float
) -> dict[tuple[str, int], int]:
    """Of logs that reached ``positions``, those that were truncated below, with the offset where that was.

    A consumer that is sent to an offset with a leader epoch asks the brokers where the log of that epoch ended
    (OffsetsForLeaderEpoch). If that is before the offset, it goes there, and if they have never had such an epoch, to
    the beginning: where it arrives is the answer. With brokers that do not know the request it stays where it is.

    Raises:
        TimeoutError: Not all partitions answered in time.
    """
    wanted = {
        partition: end
        for partition, end in positions.items()
        if end.offset > 0 and end.leader_epoch is not None and end.leader_epoch >= _KNOWN_EPOCHS
    }
    if not wanted:
        return {}
    consumer = Consumer({**_PROPERTIES, **properties})
    try:
        consumer.assign(
            [
                TopicPartition(topic, partition, end.offset, leader_epoch=end.leader_epoch)
                for (topic, partition), end in wanted.items()
            ]
        )
        arrived: dict[tuple[str, int], int] = {}
        until = time.monotonic() + time_limit_s
        while len(arrived) < len(wanted):
            if time.monotonic() > until:
                raise TimeoutError
            message = consumer.poll(_POLL_S)
            if message is None:
                continue
            topic, partition = message.topic(), message.partition()
            if topic is None or partition is None:  # the state of a connection, which is restored
                continue
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            offset = message.offset()
            if offset is None or offset < 0:
                continue
            if (topic, partition) not in arrived:
                arrived[topic, partition] = offset
                consumer.pause([TopicPartition(topic, partition)])  # else it takes the turns of the others
    finally:
        consumer.close()
    return {partition: offset for partition, offset in arrived.items() if offset < wanted[partition].offset}
