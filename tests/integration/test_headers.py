"""Headers from a topic of a real broker, through a real run with a repartition and a restart, to another topic."""

from __future__ import annotations

import json
import random

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner

from weir.infra.kafka.admin import KafkaAdmin
from weir.pipelines.cli.app import app as weir
from weir.pipelines.operations.registry import register
from weir.pipelines.spark import runner

pytestmark = [pytest.mark.broker, pytest.mark.spark]

PROGRAM, PARTITIONS = "tests.integration.applications:with_headers", 2
SOURCE, TARGET = "with-headers", "with-headers-out"
HEADERS = (
    [],
    [("trace", b"\x00\xff\xfe"), ("trace", None), ("tenant", b""), ("trace", b"3")],
    [("\u0105", b"x" * 5_000)],
)
Sent = dict[str, list[tuple[str, list[tuple[str, bytes | None]], int]]]
"""By the key that they get, the records in the order of one partition: value, headers, time."""


def produce(broker: str, seed: int, first: int) -> Sent:
    chance, producer, sent = random.Random(seed), Producer({"bootstrap.servers": broker}), Sent()
    for number in range(first, first + 500):
        letter = chance.choice("abcd")
        order, headers = f"order {number}", chance.choice(HEADERS)
        user = f"{letter}-{number % 3}"
        producer.produce(
            SOURCE, order, user, partition="abcd".index(letter) % PARTITIONS, timestamp=1_000 + number, headers=headers
        )
        sent.setdefault(letter, []).append((order, headers, 1_000 + number))
    producer.flush()
    return sent


def received(broker: str) -> Sent:
    consumer = Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TARGET, number, 0) for number in range(PARTITIONS)])
    found, ended = Sent(), 0
    while ended < PARTITIONS:
        for message in consumer.consume(1_000, timeout=1.0):
            if message.error() is not None:
                ended += 1
                continue
            found.setdefault(message.key().decode(), []).append(
                (message.value().decode(), message.headers() or [], message.timestamp()[1])
            )
    consumer.close()
    return found


def test_headers_arrive_as_they_were_sent_and_go_with_dead_letters(
    settings, broker, kafka_admin: KafkaAdmin, spark, monkeypatch
):
    monkeypatch.setattr(runner, "CAUGHT_UP_LIMIT_S", 300.0)
    for topic in (SOURCE, TARGET):
        kafka_admin.create_topic(topic, PARTITIONS)
    expected = Sent()
    for start in range(2):  # the second goes on after the first
        for key, records in produce(broker, start, start * 500).items():
            expected.setdefault(key, []).extend(records)
        summary = runner.run(PROGRAM, settings, bootstrap_servers=broker, until_caught_up=True, spark=spark)
        assert summary.records_in == 500
    assert received(broker) == expected

    producer = Producer({"bootstrap.servers": broker})
    for order in ("leave", "interrupt", "x"):
        producer.produce(SOURCE, order, "a", partition=0, headers=HEADERS[1])
    producer.flush()
    runner.run(PROGRAM, settings, bootstrap_servers=broker, until_caught_up=True, spark=spark)
    assert received(broker) == expected
    register(settings, "with-headers", PROGRAM)
    place = ["--dir", str(settings.dir)]
    listed = CliRunner().invoke(weir, ["dead-letters", "list", "with-headers", "--json", *place])
    assert listed.exit_code == 0, listed.output
    letters = {
        each["reason"].partition(": ")[2].partition(":")[0]: each for each in json.loads(listed.stdout)["letters"]
    }
    assert set(letters) == {"SystemExit", "KeyboardInterrupt", "ZeroDivisionError"}
    letter = letters["ZeroDivisionError"]
    shown = CliRunner().invoke(weir, ["dead-letters", "show", "with-headers", letter["id"], *place])
    assert "headers: trace=\\x00\ufffd\ufffd, trace=-, tenant=, trace=3" in shown.stdout
