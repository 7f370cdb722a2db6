"""Queries to a Kafka cluster, creation and deletion of topics: one lasting client, time limits, few error types.

Reading records belongs to ``weir.infra.kafka.reader``, the embedded broker to ``weir.infra.kafka.broker``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import AdminClient, ConfigResource, ListOffsetsResultInfo, NewTopic, OffsetSpec

from weir.infra.kafka.log_ends import LogEnd, truncations

TIME_LIMIT_S = 10.0
_NO_ID = "A" * 22
"""The topic id of all zeros."""
_UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
_STALE_LEADER = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)
UNREACHABLE = _STALE_LEADER | frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._RESOLVE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError._WAIT_COORD,
        KafkaError.REPLICA_NOT_AVAILABLE,
    }
)


class KafkaAdminError(Exception):
    """The cluster refused a request for a reason that trying again does not change."""


class BrokerUnreachableError(KafkaAdminError):
    """No broker answered in time, or the cluster is electing a leader: try again."""

    def __init__(self, bootstrap_servers: str, reason: str) -> None:
        super().__init__(bootstrap_servers, reason)
        self.bootstrap_servers, self.reason = bootstrap_servers, reason

    def __str__(self) -> str:
        return (
            f"no answer from Kafka at {self.bootstrap_servers} ({self.reason}); check that it runs and that "
            "the address is right, and, if it asks for a login, security.protocol and sasl.* under [kafka] in "
            "weir.toml or as WEIR_KAFKA_* variables"
        )


class LoginRefusedError(KafkaAdminError):
    """The brokers do not accept the client's login, or use another security protocol."""

    def __init__(self, bootstrap_servers: str, reason: str) -> None:
        super().__init__(bootstrap_servers, reason)
        self.bootstrap_servers, self.reason = bootstrap_servers, reason

    def __str__(self) -> str:
        return (
            f"Kafka at {self.bootstrap_servers} refused the login ({self.reason}); correct security.protocol, "
            "sasl.mechanism, sasl.username and sasl.password under [kafka] in weir.toml or as "
            "WEIR_KAFKA_* variables"
        )


class UnknownTopicError(KafkaAdminError):
    """A topic does not exist, ``others`` neither, or it lacks a partition."""

    def __init__(
        self, topic: str, bootstrap_servers: str, partition: int | None = None, others: Sequence[str] = ()
    ) -> None:
        super().__init__(topic, bootstrap_servers, partition, others)
        self.topic, self.bootstrap_servers, self.partition, self.others = topic, bootstrap_servers, partition, others

    def __str__(self) -> str:
        if self.partition is not None:
            return (
                f"partition {self.partition} of {self.topic!r} does not exist at {self.bootstrap_servers}; name one "
                "that `weir kafka list` counts; partitions are numbered from 0"
            )
        names = (self.topic, *self.others)
        what, them, name = f"topic {self.topic!r} does", "it", "name"
        if self.others:
            what, them, name = f"topics {', '.join(map(repr, names[:-1]))} and {names[-1]!r} do", "them", "names"
        return (
            f"{what} not exist at {self.bootstrap_servers}; create {them}, in the folder's own broker with "
            f"`weir kafka create {' '.join(names)}`, or correct the {name} (`weir kafka list` shows all)"
        )


def require_topics(topics: Iterable[str], known: Iterable[str], bootstrap_servers: str) -> None:
    """Raises ``UnknownTopicError`` with all of ``topics`` that are not ``known``."""
    missing = sorted({*topics} - {*known})
    if missing:
        raise UnknownTopicError(missing[0], bootstrap_servers, others=missing[1:])


class UnsettledOffsetsError(KafkaAdminError):
    """A transaction that commits offsets of a consumer group stayed open."""

    def __init__(self, bootstrap_servers: str, topic: str, partition: int) -> None:
        super().__init__(bootstrap_servers, topic, partition)
        self.bootstrap_servers, self.topic, self.partition = bootstrap_servers, topic, partition

    def __str__(self) -> str:
        return (
            f"a transaction that commits the group's offset of partition {self.partition} of {self.topic!r} is still "
            f"open at {self.bootstrap_servers}; stop the group's application, or wait until its transaction ends"
        )


class KafkaAdmin:
    """A long-lived admin client. Not to be used across a fork; threads may share it."""

    def __init__(
        self, bootstrap_servers: str, properties: Mapping[str, str] | None = None, *, time_limit_s: float = TIME_LIMIT_S
    ) -> None:
        """``properties`` are librdkafka's, like ``Settings.kafka``.

        Raises:
            KafkaAdminError: A client property is unknown or has an invalid value.
        """
        self.bootstrap_servers, self.time_limit_s = bootstrap_servers, time_limit_s
        self._properties = {**(properties or {}), "bootstrap.servers": bootstrap_servers}
        self._refused_login = ""
        try:
            self._client = AdminClient(
                {
                    "log_level": 2,
                    "reconnect.backoff.ms": 50,
                    "reconnect.backoff.max.ms": 1000,
                    **self._properties,
                },
                error_cb=self._hear,
            )
        except KafkaException as error:
            raise KafkaAdminError(
                f"Kafka client properties: {_reason(error)}; correct them under [kafka], WEIR_KAFKA_* or --set kafka.*"
            ) from None

    def check_reachable(self, time_limit_s: float | None = None) -> None:
        """Return once a broker has answered.

        Raises:
            BrokerUnreachableError: None did within the limit.
        """
        try:
            self._client.list_topics(timeout=time_limit_s or self.time_limit_s)
        except KafkaException as error:
            raise self._translated(error) from None

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """The number of partitions of each of ``topics`` that exists; those that do not exist are left out.

        Raises:
            BrokerUnreachableError: No broker answered in time.
        """
        known = self.topics()
        return {topic: known[topic] for topic in topics if topic in known}

    def require_topic(self, topic: str) -> None:
        """Return if a topic exists. A cluster that creates topics by itself begins to: it is there at a later call.

        Raises:
            UnknownTopicError: It does not exist.
            BrokerUnreachableError: No broker answered in time.
        """
        try:
            found = self._client.list_topics(topic, timeout=self.time_limit_s).topics[topic]
        except KafkaException as error:
            raise self._translated(error, topic) from None
        if found.error is not None:
            raise self._translated(KafkaException(found.error), topic)

    def partition_count(self, topic: str) -> int:
        """The number of partitions of a topic.

        Raises:
            UnknownTopicError: It does not exist.
            BrokerUnreachableError: No broker answered in time.
        """
        count = self.partition_counts([topic]).get(topic)
        if count is None:
            raise UnknownTopicError(topic, self.bootstrap_servers)
        return count

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The id that each topic got when it was created (KIP-516), as Kafka's tools print it.

        Left out are topics that do not exist, and all of them with brokers that have no ids (before Kafka 2.8).

        Raises:
            BrokerUnreachableError: No broker answered in time.
        """
        if not (wanted := sorted(set(topics))):
            return {}
        futures = self._client.describe_topics(TopicCollection(wanted), request_timeout=self.time_limit_s)
        found = {}
        for topic, future in futures.items():
            try:
                found[topic] = _printed(future.result(self.time_limit_s + 1).topic_id)
            except (KafkaException, FutureTimeoutError) as error:
                failure = self._translated(error, topic)
                if not isinstance(failure, UnknownTopicError):
                    raise failure from None
        return {topic: topic_id for topic, topic_id in found.items() if topic_id}

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> bool:
        """Create a topic with the cluster's default replication and wait until its partitions can be read; False if it
        exists already.

        Raises:
            KafkaAdminError: The cluster refused (the text includes its words).
            BrokerUnreachableError: No broker answered in time.
        """
        new = NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=dict(config or {}))
        future = self._client.create_topics(
            [new], operation_timeout=self.time_limit_s, request_timeout=self.time_limit_s
        )[topic]
        try:
            future.result(self.time_limit_s + 1)
        except (KafkaException, FutureTimeoutError) as error:
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise self._translated(error, topic) from None
        self._wait_for_leaders(topic, partitions)
        return True

    def topics(self) -> dict[str, int]:
        """All topics with their numbers of partitions, sorted, including the brokers' own, which begin with ``__``.

        Raises:
            BrokerUnreachableError: No broker answered in time.
        """
        try:
            known = self._client.list_topics(timeout=self.time_limit_s).topics
        except KafkaException as error:
            raise self._translated(error) from None
        return {topic: len(found.partitions) for topic, found in sorted(known.items()) if found.error is None}

    def topic_config(self, topics: Iterable[str], names: Iterable[str]) -> dict[str, dict[str, str]]:
        """These settings of each topic, as the brokers write them; errors as for ``end_offsets``."""
        wanted = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        if not wanted:
            return {}
        found = {}
        for resource, future in self._client.describe_configs(wanted, request_timeout=self.time_limit_s).items():
            try:
                entries = future.result(self.time_limit_s + 1)
            except (KafkaException, FutureTimeoutError) as error:
                raise self._translated(error, resource.name) from None
            found[resource.name] = {name: str(entries[name].value) for name in names if name in entries}
        return found

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and wait until the brokers no longer show it.

        Raises:
            UnknownTopicError: It does not exist.
            KafkaAdminError: The cluster refused (the text includes its words).
            BrokerUnreachableError: No broker answered in time, or the topic was still there.
        """
        futures = self._client.delete_topics(
            [topic], operation_timeout=self.time_limit_s, request_timeout=self.time_limit_s
        )
        try:
            futures[topic].result(self.time_limit_s + 1)
        except (KafkaException, FutureTimeoutError) as error:
            raise self._translated(error, topic) from None
        until = time.monotonic() + self.time_limit_s
        while topic in self.topics():
            if time.monotonic() > until:
                raise BrokerUnreachableError(self.bootstrap_servers, f"the topic {topic!r} is still being deleted")
            time.sleep(0.02)

    def end_offsets(
        self, partitions: Sequence[tuple[str, int]], *, is_committed: bool = True
    ) -> dict[tuple[str, int], int]:
        """The offset after the last record of each (topic, partition), in one round of requests.

        With ``is_committed``, the last stable offset: what ``read_committed`` consumers may read up to.

        Raises:
            UnknownTopicError: A topic or partition does not exist.
            BrokerUnreachableError: No broker answered in time.
        """
        found = self._listed(partitions, OffsetSpec.latest(), is_committed)
        return {partition: listed.offset for partition, listed in found.items()}

    def log_ends(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], LogEnd]:
        """The last stable offset of each (topic, partition) with the leader epoch that answered; errors as for
        ``end_offsets``."""
        return {
            partition: LogEnd(listed.offset, listed.leader_epoch)
            for partition, listed in self._listed(partitions, OffsetSpec.latest(), True).items()
        }

    def truncations(self, positions: Mapping[tuple[str, int], LogEnd]) -> dict[tuple[str, int], int]:
        """Of logs that reached ``positions``, those that were truncated below, with the offset where that was.

        Raises:
            BrokerUnreachableError: A partition's leader did not answer in time.
        """
        try:
            return truncations(self._properties, positions, self.time_limit_s)
        except KafkaException as error:
            raise self._translated(error) from None
        except TimeoutError:
            self.check_reachable()
            raise BrokerUnreachableError(self.bootstrap_servers, "a partition's leader did not answer") from None

    def beginning_offsets(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The oldest offset still kept of each (topic, partition); errors as for ``end_offsets``."""
        found = self._listed(partitions, OffsetSpec.earliest(), False)
        return {partition: listed.offset for partition, listed in found.items()}

    def offsets_at(self, partitions: Sequence[tuple[str, int]], time_ms: int) -> dict[tuple[str, int], int | None]:
        """The first offset of each (topic, partition) whose record has a timestamp of ``time_ms`` or later, None if
        there is none; errors as for ``end_offsets``."""
        found = self._listed(partitions, OffsetSpec.for_timestamp(time_ms), False)
        return {partition: listed.offset if listed.offset >= 0 else None for partition, listed in found.items()}

    def time_ranges(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        """The timestamp of the first record that is kept and the greatest one, in milliseconds, of each (topic,
        partition) that holds records; errors as for ``end_offsets``.

        Records behind the first may be older than it: brokers look for no least timestamp.
        """
        first = self._listed(partitions, OffsetSpec.for_timestamp(0), False)
        greatest = self._listed(partitions, OffsetSpec.max_timestamp(), False)
        return {
            partition: (first[partition].timestamp, listed.timestamp)
            for partition, listed in greatest.items()
            if listed.offset >= 0 <= first[partition].offset
        }

    def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """The next offset to read of each (topic, partition) that a consumer group has committed; empty if none.

        Raises:
            UnsettledOffsetsError: A transaction that commits some of them stayed open for the time limit.
            BrokerUnreachableError: No broker answered in time.
        """
        request = [ConsumerGroupTopicPartitions(group)]
        found = self._ask_coordinator(
            lambda: self._client.list_consumer_group_offsets(
                request, require_stable=True, request_timeout=self.time_limit_s
            )[group]
        )
        return {(each.topic, each.partition): each.offset for each in found if each.offset >= 0}

    def set_group_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit ``offsets``, the next ones to read, for a consumer group without members; creates the group if needed.

        Raises:
            KafkaAdminError: The group has members, or a topic does not exist.
            BrokerUnreachableError: No broker answered in time.
        """
        wanted = [TopicPartition(topic, partition, offset) for (topic, partition), offset in sorted(offsets.items())]
        request = [ConsumerGroupTopicPartitions(group, wanted)]
        self._ask_coordinator(
            lambda: self._client.alter_consumer_group_offsets(request, request_timeout=self.time_limit_s)[group]
        )

    def group_members(self, group: str) -> int:
        """The number of consumers in a group; 0 if it does not exist.

        Raises:
            BrokerUnreachableError: No broker answered in time.
        """
        try:
            future = self._client.describe_consumer_groups([group], request_timeout=self.time_limit_s)[group]
            return len(future.result(self.time_limit_s + 1).members)
        except (KafkaException, FutureTimeoutError) as error:
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return 0
            raise self._translated(error) from None

    def _ask_coordinator(self, ask: Callable[[], Future[ConsumerGroupTopicPartitions]]) -> list[TopicPartition]:
        """The answer of a group's coordinator by partition; one that is still loading its groups, or waits for the end
        of a transaction, is asked again."""
        until = time.monotonic() + self.time_limit_s
        while True:
            try:
                answer = ask().result(self.time_limit_s + 1).topic_partitions or []
                for each in answer:
                    if each.error is not None:
                        raise self._translated(KafkaException(each.error), each.topic, each.partition)
                return answer
            except (KafkaException, FutureTimeoutError) as error:
                failure = self._translated(error)
            except (BrokerUnreachableError, UnsettledOffsetsError) as error:
                failure = error
            if not isinstance(failure, BrokerUnreachableError | UnsettledOffsetsError) or time.monotonic() > until:
                raise failure
            time.sleep(0.05)

    def _wait_for_leaders(self, topic: str, partitions: int) -> None:
        until = time.monotonic() + self.time_limit_s
        while True:
            try:
                self.end_offsets([(topic, partition) for partition in range(partitions)])
                return
            except (BrokerUnreachableError, UnknownTopicError):
                if time.monotonic() > until:
                    raise
            time.sleep(0.02)

    def _listed(
        self, partitions: Sequence[tuple[str, int]], spec: OffsetSpec, is_committed: bool
    ) -> dict[tuple[str, int], ListOffsetsResultInfo]:
        if not partitions:
            return {}
        level = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        futures = self._client.list_offsets(
            {TopicPartition(*wanted): spec for wanted in partitions},
            isolation_level=level,
            request_timeout=self.time_limit_s,
        )
        found = {}
        for partition, future in futures.items():
            try:
                found[partition.topic, partition.partition] = future.result(self.time_limit_s + 1)
            except (KafkaException, FutureTimeoutError) as error:
                if isinstance(error, KafkaException) and error.args[0].code() == KafkaError._NOENT:
                    raise self._leaderless(partitions) from None
                if isinstance(error, KafkaException) and error.args[0].code() in _STALE_LEADER:
                    self._forget_leaders()
                raise self._translated(error, partition.topic, partition.partition) from None
        if any(listed.offset == OFFSET_INVALID for listed in found.values()):  # its leader died meanwhile
            self._forget_leaders()
            raise BrokerUnreachableError(self.bootstrap_servers, "a partition's leader did not answer")
        return found

    def _forget_leaders(self) -> None:
        """Have librdkafka learn the leaders anew: it would ask those that it remembers for up to 15 minutes, dead ones
        too (``metadata.max.age.ms``)."""
        self.check_reachable()

    def _leaderless(self, partitions: Sequence[tuple[str, int]]) -> KafkaAdminError:
        """The error behind librdkafka's "no leader": a partition does not exist, or is still electing its leader."""
        counts = self.partition_counts(topic for topic, _ in partitions)
        for topic, partition in partitions:
            if topic not in counts:
                return UnknownTopicError(topic, self.bootstrap_servers)
            if partition >= counts[topic]:
                return UnknownTopicError(topic, self.bootstrap_servers, partition)
        return BrokerUnreachableError(self.bootstrap_servers, "no partition has a leader yet")

    def _hear(self, error: KafkaError) -> None:
        """librdkafka reports a refused login only here, and keeps trying; calls just time out."""
        if error.code() == KafkaError._AUTHENTICATION:
            self._refused_login = error.str()

    def _translated(
        self, error: KafkaException | FutureTimeoutError, topic: str = "", partition: int | None = None
    ) -> KafkaAdminError:
        self._client.poll(0)
        if self._refused_login:
            reason, self._refused_login = self._refused_login, ""
            return LoginRefusedError(self.bootstrap_servers, reason)
        if isinstance(error, FutureTimeoutError):
            return BrokerUnreachableError(self.bootstrap_servers, f"no answer within {self.time_limit_s:.0f} s")
        code = error.args[0].code()
        if code in _UNKNOWN:
            return UnknownTopicError(topic, self.bootstrap_servers, partition)
        if code == KafkaError.UNSTABLE_OFFSET_COMMIT and partition is not None:
            return UnsettledOffsetsError(self.bootstrap_servers, topic, partition)
        if code in UNREACHABLE or error.args[0].retriable():
            return BrokerUnreachableError(self.bootstrap_servers, _reason(error))
        return KafkaAdminError(
            f"Kafka at {self.bootstrap_servers} refused{f' (topic {topic!r})' if topic else ''}: {_reason(error)}"
        )


def _printed(topic_id: Uuid) -> str:
    """A topic id in Kafka's own form; "" for the one that stands for none."""
    text = str(topic_id).replace("+", "-").replace("/", "_")
    return "" if text == _NO_ID else text


def _reason(error: KafkaException) -> str:
    return str(error.args[0].str()).rstrip(".")
