"""Whole runs with sinks, killed at each step of publishing: what readers get is what plain Python computes, once."""

import json
import os
import random
import subprocess
import sys
from collections import defaultdict

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.faults.hook import FAULTS_DIR, left, order
from tests.pipelines.publishing.shop import CHECKED, DEAD, ORDERS, TOTALS

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.faults]

PARTITIONS, RECORDS, EPOCH_ROWS, LIFE_LIMIT_S = 2, 800, 100, 120
"""``RECORDS`` come before each life of the driver."""
MOST_LIVES = 10
STEPS = ("rows read", "rows published", "outbox emptied")
DRIVER_DEATHS = ("rows read", "rows published", "pivot appended")


def drive(folder, faults, broker, topics):
    """One driver until it has caught up or dies."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "tests.faults.drive", str(folder), broker, str(EPOCH_ROWS)),
            "tests.pipelines.publishing.shop:app",
        ],
        env={**os.environ, **topics, FAULTS_DIR: str(faults)},
        timeout=LIFE_LIMIT_S,
        check=False,
    ).returncode


def received(broker, topic):
    """The messages that a reader of committed records gets, by key, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": f"{topic}-reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found, ended = defaultdict(list), 0
    while ended < PARTITIONS:
        for message in consumer.consume(1_000, timeout=1.0):
            if message.error() is not None:
                ended += 1
            else:
                found[message.key().decode()].append(message)
    consumer.close()
    return found


def test_readers_get_each_row_once_whoever_is_killed_while_it_is_published(tmp_path, broker, topic):
    folder, faults = tmp_path / "weir", tmp_path / "faults"
    faults.mkdir()
    topics = {name: topic(PARTITIONS) for name in (ORDERS, CHECKED, TOTALS, DEAD)}
    producer, rng = Producer({"bootstrap.servers": broker, "linger.ms": 20}), random.Random(5)
    checked, dead, totals, codes = defaultdict(list), defaultdict(list), defaultdict(lambda: (0, 0)), []
    order(faults, [("worker", step) for step in STEPS] + [("driver", step) for step in DRIVER_DEATHS])
    while (has_kills := left(faults) > 0) or codes[-1] != 0:
        assert len(codes) < MOST_LIVES
        for _ in range(RECORDS * has_kills):
            user, cents = f"user-{rng.randrange(20)}", rng.randrange(-100, 1000)
            if cents % 20 == 0:
                producer.produce(topics[ORDERS], b"%d whole cents" % cents, user, timestamp=2_000)
                dead[user].append(b"%d whole cents" % cents)
                continue
            producer.produce(topics[ORDERS], cents.to_bytes(8, "big", signed=True), user, timestamp=1_000)
            if cents >= 0:
                checked[user].append(cents)
            totals[user] = totals[user][0] + cents, totals[user][1] + 1
        producer.flush()
        codes.append(drive(folder, faults, broker, topics))
    assert codes.count(-9) == len(DRIVER_DEATHS)
    found = received(broker, topics[CHECKED])
    assert {
        user: [int.from_bytes(each.value(), "big", signed=True) for each in messages]
        for user, messages in found.items()
    } == checked
    updates = {
        user: [json.loads(each.value()) for each in messages]
        for user, messages in received(broker, topics[TOTALS]).items()
    }
    for each in updates.values():
        counts = [update["orders"] for update in each]
        assert counts == sorted(set(counts)), "each update once, in order"
    assert {user: (each[-1]["total"], each[-1]["orders"]) for user, each in updates.items()} == totals
    letters = received(broker, topics[DEAD])
    assert {user: [each.value() for each in messages] for user, messages in letters.items()} == dead
    for message in (message for messages in letters.values() for message in messages):
        headers = {name: value.decode() for name, value in message.headers()}
        assert headers["__streams.errors.topic"] == topics[ORDERS]
        assert headers["__weir.dead_letter"].startswith(
            f"{topics[ORDERS]}-{headers['__streams.errors.partition']}-{headers['__streams.errors.offset']}-"
        )
        assert "8 bytes" in headers["__streams.errors.message"]
        assert message.timestamp()[1] == 2_000
