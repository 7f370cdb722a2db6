"""The Kafka cluster as a run uses it: waited for, asked about topics, and revived if it is the embedded one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Event
from typing import TypeVar

from weir.infra.kafka.admin import BrokerUnreachableError, KafkaAdmin, require_topics
from weir.infra.kafka.broker import EmbeddedBroker
from weir.infra.kafka.log_ends import LogEnd
from weir.infra.settings import Settings
from weir.pipelines.application import Application
from weir.pipelines.topology import Topology
from weir.state.types import TopicPartition

log = logging.getLogger("weir.driver")

Answer = TypeVar("Answer")
RETRY_S = 1.0
_POLICY = "cleanup.policy"
ANSWER_LIMIT_S = 4.0
"""How long one question to the brokers may take: a stop waits for it."""


class Brokers:
    """The source of a live run; an embedded broker that died is started again."""

    def __init__(self, settings: Settings, bootstrap_servers: str, application: Application) -> None:
        self._admin = KafkaAdmin(bootstrap_servers, settings.kafka, time_limit_s=ANSWER_LIMIT_S)
        self._embedded = None if settings.bootstrap_servers else EmbeddedBroker(settings.kafka_dir)
        self._application = application

    def topics_once_there(
        self, stop: Event, on_wait: Callable[[str], None], limit_s: float | None
    ) -> dict[str, int] | None:
        """All topics of the cluster with their numbers of partitions; None when told to stop while waiting for brokers.

        ``limit_s`` is how long to wait for brokers that do not answer; None waits until stopped.

        Raises:
            BrokerUnreachableError: No broker answered within ``limit_s``.
        """
        said, began = "", time.monotonic()
        until = "until stopped" if limit_s is None else f"for {limit_s:g} s"
        while not stop.is_set():
            try:
                return self._admin.topics()
            except BrokerUnreachableError as error:
                if limit_s is not None and time.monotonic() - began >= limit_s:
                    raise BrokerUnreachableError(error.bootstrap_servers, f"{error.reason}, {until}") from None
                if str(error) != said:
                    log.warning("%s; trying again %s", error, until)
                said = str(error)
                on_wait(f"{error}; trying again {until}")
                self._revive()
                stop.wait(RETRY_S)
        return None

    def source_counts(self, topology: Topology, known: Mapping[str, int]) -> dict[str, int]:
        """Of the ``known`` topics those that are read, with their partitions.

        Raises:
            UnknownTopicError: Topics that are read or written do not exist; it has all of them.
        """
        read = [*topology.topics(), *(table.source.topic for table in topology.global_tables)]
        require_topics([*read, *topology.topics_written], known, self._admin.bootstrap_servers)
        return {topic: known[topic] for topic in read}

    def topics(self) -> Mapping[str, int]:
        return self._asked(self._admin.topics)

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where to begin with what was never read: the oldest record kept, or the end for ``start="latest"``."""
        if self._application.start == "latest":
            return self._asked(lambda: self._admin.end_offsets(partitions))
        return self.beginning_offsets(partitions)

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self._asked(lambda: self._admin.beginning_offsets(partitions))

    def compacted(self, topics: Iterable[str]) -> set[str]:
        policies = self._asked(lambda: self._admin.topic_config(topics, (_POLICY,)))
        return {topic for topic, found in policies.items() if "compact" in found.get(_POLICY, "")}

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        return self._asked(lambda: self._admin.log_ends(partitions))

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        return self._asked(lambda: self._admin.topic_ids(topics))

    def truncations(self, positions: Mapping[TopicPartition, LogEnd]) -> Mapping[TopicPartition, int]:
        return self._asked(lambda: self._admin.truncations(positions))

    def _asked(self, question: Callable[[], Answer]) -> Answer:
        """The brokers' answer; an embedded broker that gives none is started again for the next question."""
        try:
            return question()
        except BrokerUnreachableError:
            self._revive()
            raise

    def _revive(self) -> None:
        if self._embedded is not None:
            self._embedded.ensure_running()
