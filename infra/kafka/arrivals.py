"""Tells that records have come, without asking for it again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, TopicPartition

_PROPERTIES: Mapping[str, object] = {
    "group.id": "weir",  # the client asks for one; nothing is committed to it
    "enable.auto.commit": False,
    "auto.offset.reset": "latest",
    "max.partition.fetch.bytes": 1,  # one batch of records is enough
    "queued.min.messages": 1,
    "fetch.wait.max.ms": 5_000,
    "isolation.level": "read_committed",
    "log_level": 2,
}


class Arrivals:
    """Waits for records of topic partitions: a broker answers a fetch as soon as it has something.

    A record that ends a wait is fetched again by whoever reads it, so this is for topics that have been quiet.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        """``properties`` are those of the client, with ``bootstrap.servers``."""
        self._properties = {**_PROPERTIES, **properties}
        self._consumer: Consumer | None = None
        self._ends: Mapping[tuple[str, int], int] = {}

    def wait(self, ends: Mapping[tuple[str, int], int], seconds: float) -> bool:
        """Whether there is something to look for within ``seconds``: a record behind the offsets ``ends`` by (topic,
        partition), or an error of one. Brokers that are away say nothing."""
        if self._consumer is None:
            self._consumer = Consumer(self._properties)
        if ends != self._ends:
            self._ends = dict(ends)
            self._consumer.assign([TopicPartition(*partition, offset) for partition, offset in ends.items()])
        if self._consumer.poll(seconds) is None:
            return False
        self._consumer.unassign()
        self._ends = {}
        return True

    def close(self) -> None:
        """Disconnect."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
