"""Warnings before a topic deletes records that the application has not read yet."""

import time
import uuid
from dataclasses import replace

import dagster as dg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.orchestration.applications import FLIGHTS
from tests.orchestration.readings import observed
from weir.orchestration.sensors.retention import endangered, retention_sensor

BROKER_LIMIT_S = 20.0


@pytest.mark.parametrize(
    ("position", "oldest", "end", "expected"),
    [
        (95, 100, 1100, {"t-0 has lost records"}),
        (199, 100, 1100, {"t-0 near retention"}),
        (200, 100, 1100, set()),
        (5, 0, 1000, set()),
        (1100, 1099, 1100, set()),
    ],
    ids=["deleted before it was read", "close", "far", "nothing was ever deleted", "everything has been read"],
)
def test_a_position_near_the_oldest_record_kept_is_reported(position, oldest, end, expected):
    found = endangered({"t": {0: position}}, {("t", 0): oldest}, {("t", 0): end}, 0.1)
    assert set(found) == expected


@pytest.mark.broker
def test_a_real_topic_that_is_about_to_delete_the_next_record_is_reported(
    broker, kafka_admin, committer, commit_of, tick, monkeypatch
):
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    kafka_admin.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": broker})
    for number in range(100):
        producer.produce(topic, str(number).encode())
    producer.flush()
    newest = commit_of(1)
    name, first = next(iter(newest.tasks.items()))
    committer.commit(replace(newest, tasks={**newest.tasks, name: replace(first, positions={topic: {0: 42}})}))
    monkeypatch.setenv("WEIR_BOOTSTRAP_SERVERS", broker)
    sensor = retention_sensor([FLIGHTS])
    assert isinstance(tick(sensor), dg.SkipReason)
    client = AdminClient({"bootstrap.servers": broker})
    client.delete_records([TopicPartition(topic, 0, 40)])[TopicPartition(topic, 0, 40)].result()
    until = time.monotonic() + BROKER_LIMIT_S
    while isinstance(answer := tick(sensor), dg.SkipReason) and time.monotonic() < until:
        pass  # a broker that does not answer in time is asked again at the next tick
    [sentence] = observed(answer)
    for fact in (f"{topic}-0", "offset 42", "60 kept is 40", "lengthen the topic's retention"):
        assert fact in sentence
    assert isinstance(tick(sensor, answer.cursor), dg.SkipReason)
