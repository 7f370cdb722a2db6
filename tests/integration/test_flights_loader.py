"""The flights loader against a real broker: killed at any moment, it leaves nothing duplicated and nothing missing."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable

import polars as pl
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from polars.testing import assert_frame_equal

from weir.infra.kafka.admin import KafkaAdmin
from weir.pipelines.examples.load_flights import flight_records, load
from weir.pipelines.examples.loading import LoadError

pytestmark = pytest.mark.broker
PARTITIONS = 4
LOADER = """
import sys
from weir.pipelines.examples.load_flights import load
load(sys.argv[1], topic=sys.argv[2], on_progress=lambda done, total: print(done, flush=True))
"""


def read_topic(bootstrap_servers: str, topic: str, ends: dict[tuple[str, int], int]) -> pl.DataFrame:
    """All records up to ``ends``, by partition and offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "plain"})
    consumer.assign([TopicPartition(topic, partition, 0) for _, partition in ends])
    rows = []
    while missing := sum(ends.values()) - len(rows):
        for message in consumer.consume(min(missing, 10_000), timeout=10.0):
            assert message.error() is None
            rows.append((message.key(), message.value(), message.timestamp()[1], message.partition(), message.offset()))
    consumer.close()
    columns = {
        "key": pl.Binary,
        "value": pl.Binary,
        "timestamp_ms": pl.Int64,
        "partition": pl.Int32,
        "offset": pl.Int64,
    }
    return pl.DataFrame(rows, schema=columns, orient="row").sort("partition", "offset")


def kill_when_loaded(bootstrap_servers: str, topic: str, records: int) -> None:
    """Start the loader and kill -9 it once it reports this many records in the topic."""
    command = [sys.executable, "-c", LOADER, bootstrap_servers, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if int(line) >= records:
                process.kill()
                break
    assert process.returncode == -signal.SIGKILL


def test_a_loader_killed_twice_and_started_again_leaves_the_whole_sequence_in_the_topic(
    broker: str, topic: Callable[..., str]
):
    name = topic(PARTITIONS, retention_ms="-1")
    admin, partitions = KafkaAdmin(broker), [(name, partition) for partition in range(PARTITIONS)]
    wanted = flight_records(PARTITIONS)
    for least, most in ((1, 120_000), (150_000, 300_000)):
        at = random.randint(least, most)
        print(f"kill at {at}")
        kill_when_loaded(broker, name, at)
        held = sum(admin.end_offsets(partitions).values())
        assert 0 < held < wanted.height

    summary = load(broker, topic=name)

    assert 0 < summary.loaded < wanted.height - 150_000
    ends = admin.end_offsets(partitions)
    assert {partition: end for (_, partition), end in ends.items()} == summary.end_offsets
    found = read_topic(broker, name, ends).with_columns(pl.col("key", "value").cast(pl.String))
    assert_frame_equal(found, wanted.sort("partition", "offset"))
    assert load(broker, topic=name).loaded == 0


def test_a_topic_with_other_records_is_refused_and_left_alone(broker: str, topic: Callable[..., str]):
    name = topic(PARTITIONS)
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(name, b"{}", b"someone-else", partition=2)
    producer.flush()
    with pytest.raises(LoadError, match=r"partition 2 offset 0 holds a different record"):
        load(broker, topic=name)
    assert sum(KafkaAdmin(broker).end_offsets([(name, partition) for partition in range(PARTITIONS)]).values()) == 1


def test_a_topic_with_another_number_of_partitions_is_refused(broker: str, topic: Callable[..., str]):
    with pytest.raises(LoadError, match=r"has 2 partitions, .*4 "):
        load(broker, topic=topic(2))
