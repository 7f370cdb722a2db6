"""Queries to a cluster: right answers, and errors that say whether trying again helps."""

from __future__ import annotations

import time
from concurrent.futures import Future
from threading import Timer
from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer, TopicPartition, Uuid

from weir.infra.kafka.admin import (
    BrokerUnreachableError,
    KafkaAdmin,
    KafkaAdminError,
    UnknownTopicError,
    UnsettledOffsetsError,
)


@pytest.mark.broker
def test_end_offsets_count_records_and_stop_at_an_open_transaction(kafka_admin, broker, topic):
    name = topic(2)
    producer = Producer({"bootstrap.servers": broker})
    for _ in range(5):
        producer.produce(name, value=b"x", partition=1)
    assert producer.flush(10) == 0
    open_one = Producer({"bootstrap.servers": broker, "transactional.id": name})
    open_one.init_transactions(10)
    open_one.begin_transaction()
    open_one.produce(name, value=b"y", partition=1)
    open_one.flush(10)
    wanted = [(name, 0), (name, 1)]
    assert kafka_admin.end_offsets(wanted) == {(name, 0): 0, (name, 1): 5}
    assert kafka_admin.end_offsets(wanted, is_committed=False)[name, 1] == 6
    open_one.commit_transaction(10)
    until = time.monotonic() + 10  # the broker writes the marker, which has an offset, too, after its answer
    while kafka_admin.end_offsets(wanted)[name, 1] != 7:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert kafka_admin.beginning_offsets(wanted) == {(name, 0): 0, (name, 1): 0}
    assert kafka_admin.end_offsets([]) == {}


@pytest.mark.broker
def test_offsets_of_a_group_are_read_when_its_transaction_has_ended(kafka_admin, broker, topic):
    """As Kafka Streams commits them."""
    name = topic(1)
    kafka_admin.set_group_offsets(name, {(name, 0): 5})
    reader = Consumer({"bootstrap.servers": broker, "group.id": name})
    writer = Producer({"bootstrap.servers": broker, "transactional.id": name})
    writer.init_transactions(10)
    writer.begin_transaction()
    writer.send_offsets_to_transaction([TopicPartition(name, 0, 7)], reader.consumer_group_metadata(), 10)
    impatient = KafkaAdmin(broker, time_limit_s=0.5)
    with pytest.raises(UnsettledOffsetsError, match=rf"partition 0 of '{name}' is still open at .*; stop the group's"):
        impatient.group_offsets(name)
    end = Timer(0.5, writer.commit_transaction, [10])
    end.start()
    assert kafka_admin.group_offsets(name) == {(name, 0): 7}
    end.join()
    reader.close()


@pytest.mark.broker
def test_topics_are_created_once_and_counted(kafka_admin, topic):
    name = topic(3, cleanup_policy="compact")
    assert kafka_admin.partition_count(name) == 3
    assert not kafka_admin.create_topic(name, 3)
    assert kafka_admin.partition_counts([name, "no-such-topic"]) == {name: 3}
    with pytest.raises(UnknownTopicError):
        kafka_admin.partition_count("no-such-topic")


@pytest.mark.broker
def test_topics_and_partitions_that_do_not_exist_are_named(kafka_admin, topic):
    name = topic(1)
    with pytest.raises(UnknownTopicError, match=f"partition 4 of '{name}' does not exist"):
        kafka_admin.end_offsets([(name, 0), (name, 4)])
    with pytest.raises(UnknownTopicError, match=f"partition 4 of '{name}' does not exist"):
        kafka_admin.end_offsets([(name, 4)])
    with pytest.raises(UnknownTopicError, match=r"topic 'no-such-topic' does not exist at .*; create it"):
        kafka_admin.end_offsets([("no-such-topic", 0)])
    with pytest.raises(KafkaAdminError, match=r"refused .*Topic name is invalid"):
        kafka_admin.create_topic("not/a/name", 1)


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_unreachable_within_the_limit():
    admin = KafkaAdmin("127.0.0.1:1", time_limit_s=0.5)
    for ask in (
        admin.check_reachable,
        lambda: admin.end_offsets([("t", 0)]),
        lambda: admin.partition_count("t"),
        lambda: admin.create_topic("t", 1),
    ):
        with pytest.raises(BrokerUnreachableError, match=r"no answer from Kafka at 127\.0\.0\.1:1"):
            ask()


def test_a_misspelt_client_property_is_named():
    with pytest.raises(KafkaAdminError, match=r'No such configuration property: "secrity.protocol"'):
        KafkaAdmin("127.0.0.1:1", {"secrity.protocol": "SASL_SSL"})


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
    ],
)
def test_after_a_change_of_leader_the_new_one_is_asked_and_waited_for(code):
    """A broker that was killed and is back leads with a newer epoch than the client remembers."""
    asked = []

    class Client:
        def list_offsets(self, wanted, **options):
            future = Future()
            future.set_exception(KafkaException(KafkaError(code)))
            return dict.fromkeys(wanted, future)

        def list_topics(self, timeout):
            asked.append("metadata")
            return SimpleNamespace(topics={})

        def poll(self, timeout):
            return 0

    admin = KafkaAdmin("127.0.0.1:1")
    admin._client = Client()
    with pytest.raises(BrokerUnreachableError):
        admin.end_offsets([("events", 0)])
    assert asked == ["metadata"]


def test_brokers_without_topic_ids_report_none():
    """Before Kafka 2.8 the field is missing, and the client fills in zeros."""
    admin, future = KafkaAdmin("nobody:1"), Future()
    future.set_result(SimpleNamespace(topic_id=Uuid(0, 0)))
    admin._client = SimpleNamespace(describe_topics=lambda *_, **__: {"t": future})
    assert admin.topic_ids(["t"]) == {}


@pytest.mark.parametrize("ask", ["end_offsets", "beginning_offsets", "log_ends"])
def test_an_offset_without_a_value_is_no_answer_and_the_next_question_goes_to_the_leader_of_then(ask):
    """What the client gives for a partition whose leader is dead: it would ask that one again for minutes."""
    admin, future, asked = KafkaAdmin("127.0.0.1:1"), Future(), []
    future.set_result(SimpleNamespace(offset=OFFSET_INVALID, leader_epoch=None))
    admin._client = SimpleNamespace(
        list_offsets=lambda wanted, **_: dict.fromkeys(wanted, future),
        list_topics=lambda timeout: asked.append("metadata"),
    )
    with pytest.raises(BrokerUnreachableError, match="a partition's leader did not answer"):
        getattr(admin, ask)([("events", 0)])
    assert asked == ["metadata"]
