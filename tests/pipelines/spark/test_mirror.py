"""Positions reach a consumer group, and neither a slow nor a failing broker affects the commits."""

from __future__ import annotations

import logging
from threading import Event

import pytest
from confluent_kafka import Producer

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, sales
from weir.infra.kafka.admin import BrokerUnreachableError
from weir.pipelines.spark.mirror import offset_mirror
from weir.state.commit.protocol import newest_commit


class Groups:
    """A cluster that answers once ``open`` is set, and not at all while ``is_away``."""

    def __init__(self):
        self.open, self.asked, self.is_away, self.sent = Event(), Event(), False, []

    def set_group_offsets(self, group, offsets):
        self.asked.set()
        assert self.open.wait(10)
        if self.is_away:
            raise BrokerUnreachableError("nowhere:1", "no answer")
        self.sent.append((group, dict(offsets)))


def test_the_newest_positions_are_sent_and_a_slow_broker_delays_nothing():
    groups = Groups()
    mirror = offset_mirror(groups, "lag")
    mirror({("sales", 0): 1})
    assert groups.asked.wait(10)
    mirror({("sales", 0): 2})
    mirror({("sales", 0): 3})
    groups.open.set()
    mirror.close()
    assert groups.sent == [("lag", {("sales", 0): 1}), ("lag", {("sales", 0): 3})]


def test_repeated_failures_are_logged_once_and_the_next_positions_are_sent(caplog):
    groups = Groups()
    groups.open.set()
    groups.is_away = True
    mirror = offset_mirror(groups, "lag")
    with caplog.at_level(logging.WARNING, "weir.driver"):
        for offset in range(3):
            groups.asked.clear()
            mirror({("sales", 0): offset})
            assert groups.asked.wait(10)
        groups.is_away = False
        mirror({("sales", 0): 9})
        mirror.close()
    assert groups.sent[-1] == ("lag", {("sales", 0): 9})
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "the positions did not reach consumer group 'lag'"
    ]


def test_every_commit_hands_its_positions_over(tmp_path):
    topics = Topics({("sales", partition): sales(100, partition) for partition in (0, 1)})
    place, seen = Place(application(), topics, tmp_path, max_records=30), []
    driver = place.driver()
    driver._coordinator._on_commit = seen.append
    driver.run(Event(), until_caught_up=True)
    assert len(seen) == driver._coordinator.commits
    assert seen[-1] == {("sales", 0): 100, ("sales", 1): 100}
    assert newest_commit(place.warehouse, "sales").tasks[place.name_of("0_0")].positions == {"sales": {0: 100}}


@pytest.mark.broker
def test_a_real_group_gets_the_positions(kafka_admin, topic):
    name = topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka_admin.bootstrap_servers})
    for partition in (0, 1):
        producer.produce(name, b"x", partition=partition)
    assert producer.flush(30) == 0
    mirror = offset_mirror(kafka_admin, f"lag-{name}")
    mirror({(name, 0): 1, (name, 1): 0})
    mirror.close()
    assert kafka_admin.group_offsets(f"lag-{name}") == {(name, 0): 1, (name, 1): 0}
    assert kafka_admin.group_members(f"lag-{name}") == 0
