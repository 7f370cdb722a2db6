"""Whoever waits for records hears of committed ones at once, and of nothing else."""

from __future__ import annotations

import threading
import time

import pytest
from confluent_kafka import Producer

from weir.infra.kafka.arrivals import Arrivals

pytestmark = pytest.mark.broker


@pytest.fixture
def arrivals(broker):
    arrivals = Arrivals({"bootstrap.servers": broker})
    yield arrivals
    arrivals.close()


def test_a_record_ends_the_wait_and_one_before_the_known_end_does_not(arrivals, broker, topic):
    name = topic(partitions=2)
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 0})
    producer.produce(name, b"old", partition=0)
    producer.flush()
    ends = {(name, 0): 1, (name, 1): 0}
    assert not arrivals.wait(ends, 1.0)
    for number in range(3):
        sent_s = list[float]()

        def send(sent_s: list[float] = sent_s) -> None:
            sent_s.append(time.monotonic())
            producer.produce(name, b"new", partition=1)
            producer.flush()

        thread = threading.Timer(0.5, send)  # the wait has begun by then
        thread.start()
        assert arrivals.wait(ends, 30.0)
        heard_s = time.monotonic()
        thread.join()
        assert sent_s[0] < heard_s
        ends = {(name, 0): 1, (name, 1): number + 1}
        assert not arrivals.wait(ends, 0.5)
    assert arrivals.wait({(name, 0): 0, (name, 1): 3}, 30.0), "what came in between is found, too"


def test_records_of_a_transaction_count_once_it_is_committed(arrivals, broker, topic):
    name = topic()
    producer = Producer({"bootstrap.servers": broker, "transactional.id": name})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(name, b"new")
    producer.flush()
    assert not arrivals.wait({(name, 0): 0}, 1.0)
    producer.commit_transaction(10)
    assert arrivals.wait({(name, 0): 0}, 30.0)


def test_brokers_that_are_away_say_nothing():
    arrivals = Arrivals({"bootstrap.servers": "127.0.0.1:1"})
    assert not arrivals.wait({("orders", 0): 0}, 0.5)
    arrivals.close()
