"""What a real broker says of logs that were truncated, and of those that were not."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from weir.infra.kafka.admin import BrokerUnreachableError, KafkaAdmin
from weir.infra.kafka.broker import EmbeddedBroker, broker_for
from weir.infra.kafka.log_ends import LogEnd

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def produce(properties: dict[str, str], topic: str, count: int) -> None:
    """Ten records a batch."""
    producer = Producer(properties)
    for number in range(count):
        producer.produce(topic, b"%d" % number)
        if number % 10 == 9:
            assert producer.flush(10) == 0


def lose_the_last_third(data: Path, topic: str) -> None:
    """What a replica lacks that was not in sync when it became the leader."""
    folder = data / f"{topic}-0"
    (log,) = folder.glob("*.log")
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size * 2 // 3)
    for index in (*folder.glob("*.index"), *folder.glob("*.timeindex")):
        index.unlink()
    (data / ".kafka_cleanshutdown").unlink()


def test_a_log_that_was_cut_and_has_grown_again_is_found_and_others_are_not(settings):
    broker = EmbeddedBroker(settings.kafka_dir)
    names = ["cut", "whole", "emptied", "restarted"]
    partitions = [(name, 0) for name in names]
    with broker_for(settings) as (servers, settings):
        properties = {**settings.kafka, "bootstrap.servers": servers}
        admin = KafkaAdmin(servers, properties)
        for name in names:
            admin.create_topic(name, 1)
            produce(properties, name, 90)
        admin._client.delete_records([TopicPartition("emptied", 0, 90)])
        before = admin.log_ends(partitions)
        assert before == dict.fromkeys(partitions, LogEnd(90, before["whole", 0].leader_epoch))
        assert admin.truncations(before) == {}
        assert admin.truncations({("whole", 0): LogEnd(0, 0), ("cut", 0): LogEnd(500, None)}) == {}
    assert broker.stop()
    lose_the_last_third(broker.files.data, "cut")
    with broker_for(settings) as (servers, settings):
        properties = {**settings.kafka, "bootstrap.servers": servers}
        admin = KafkaAdmin(servers, properties)
        for name in names[:-1]:
            produce(properties, name, 60)
        after = admin.log_ends(partitions)
        assert {name: after[name, 0].offset for name in names} == {
            "cut": 120, "whole": 150, "emptied": 150, "restarted": 90
        }  # fmt: skip
        assert all(after[each].leader_epoch > before[each].leader_epoch for each in partitions)
        assert admin.truncations(before) == {("cut", 0): 60}
        never_led = {("whole", 0): LogEnd(90, after["whole", 0].leader_epoch + 5)}
        assert admin.truncations(never_led) == {("whole", 0): 0}
    assert broker.stop()  # it would answer for another two seconds
    admin.time_limit_s = 0.5
    with pytest.raises(BrokerUnreachableError):
        admin.truncations(before)


def test_a_topic_that_is_made_anew_has_another_id(kafka_admin, topic):
    name, other = topic(), topic()
    first = kafka_admin.topic_ids([name, other, "no-such-topic"])
    assert first.keys() == {name, other}
    assert first[name] != first[other]
    assert kafka_admin.topic_ids([name]) == {name: first[name]}
    kafka_admin._client.delete_topics([name])[name].result(10)
    assert kafka_admin.topic_ids([name]) == {}
    assert kafka_admin.create_topic(name, 1)
    assert kafka_admin.topic_ids([name])[name] != first[name]
    assert kafka_admin.topic_ids([]) == {}


def test_many_partitions_with_unread_records_answer_together(kafka_admin, broker, topic):
    """After a broker has restarted, all positions are of an older leader; a start waits a few seconds at most."""
    name = topic(30)
    producer = Producer({"bootstrap.servers": broker})
    for number in range(30 * 50):
        producer.produce(name, b"%d" % number, partition=number % 30)
    assert producer.flush(10) == 0
    quick = KafkaAdmin(broker, time_limit_s=4)
    assert quick.truncations({(name, number): LogEnd(25, 0) for number in range(30)}) == {}
