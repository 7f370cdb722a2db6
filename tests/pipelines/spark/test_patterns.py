"""Topics by pattern through the driver: topics and partitions that appear later, against sums in a dictionary."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from threading import Event

import pytest

from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Int64, StreamsBuilder, String
from weir.pipelines.errors import CoPartitioningError
from weir.pipelines.spark import driver as module
from weir.pipelines.spark.admission import require_topics_read
from weir.pipelines.spark.errors import MatchedTopicGoneError
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table


class Killed(BaseException):
    """Stands for kill -9."""


def application(*, by_user: bool = True, **settings) -> Application:
    """Counts all orders by user, and by amount behind a repartition of two partitions."""
    builder = StreamsBuilder()
    orders = builder.stream(re.compile("orders-.*"), key=String("user"), value=Int64("cents"))
    orders.to_delta("all_orders")
    if by_user:
        orders.group_by_key().count("of_users").to_delta("of_users")
    orders.select_key("cents").repartition("by_cents", partitions=2).group_by_key().count("of_cents").to_delta(
        "of_cents"
    )
    return Application("shop", builder, commit_interval=timedelta(milliseconds=1), **settings)


def orders(topic: str, count: int) -> dict:
    """Two partitions of ``count`` records."""
    return {
        (topic, partition): [
            (b"user-%d" % (number % 3 * 2 + partition), (number % 5).to_bytes(8, "big"), 1_000 + number * 7)
            for number in range(count)
        ]
        for partition in (0, 1)
    }


def counted(place: Place, table: str, key: str) -> dict:
    rows = read_table(place.warehouse / "shop" / table).sort("_epoch", "_seq")
    return dict(rows.select(key, "count").iter_rows())


def assert_counted(place: Place, read: dict) -> None:
    """Every record of ``read`` once."""
    rows = [row for partition in read.values() for row in partition]
    if (place.warehouse / "shop" / "of_users").exists():
        assert counted(place, "of_users", "user") == Counter(key.decode() for key, _, _ in rows)
    assert counted(place, "of_cents", "cents") == Counter(int.from_bytes(value, "big") for _, value, _ in rows)
    found = read_table(place.warehouse / "shop" / "all_orders")
    assert Counter(found.select("user", "cents").iter_rows()) == Counter(
        (key.decode(), int.from_bytes(value, "big")) for key, value, _ in rows
    )


def test_a_topic_that_appears_is_read_from_its_beginning_and_nothing_again(tmp_path):
    topics = Topics(orders("orders-m", 40))
    place = Place(application(start="latest"), topics, tmp_path)
    topics.start_offsets = lambda partitions: {wanted: len(topics.rows[wanted]) for wanted in partitions}
    place.run()
    for topic in ("orders-a", "orders-z", "refunds"):  # one before and one after it in the alphabet
        topics.rows |= orders(topic, 30)
    place.run()
    place.run()
    assert_counted(place, orders("orders-a", 30) | orders("orders-z", 30))
    assert newest_commit(place.warehouse, "shop").topology.topics == ("orders-m", "orders-a", "orders-z")


@pytest.mark.parametrize(
    "step", ["files written", "state written", "blob written", "blob consumed", "pivot appended", "table appended"]
)
def test_a_topic_that_appears_while_a_driver_is_dead_and_rows_are_under_way(tmp_path, step):
    place = Place(application(), Topics(orders("orders-m", 60)), tmp_path, max_records=7)
    steps = Counter()

    def die(name: str) -> None:
        steps[name] += 1
        if name == step and steps[name] == 5:
            raise Killed

    with pytest.raises(Killed):
        place.run(die)
    place.topics.rows |= orders("orders-b", 50)
    place.run()
    assert_counted(place, place.topics.rows)


def test_a_run_ends_its_generation_when_a_topic_or_a_partition_appears(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TOPICS_EVERY_S", 0.0)
    place = Place(application(), Topics(orders("orders-m", 20)), tmp_path)
    place.topics.rows |= orders("refunds", 5)
    driver = place.driver(on_progress=lambda progress: place.topics.rows.update(orders("orders-b", 20)))
    first = driver.run(Event())
    assert first.reason == "new topics"
    read = first.records_in
    driver = place.driver(on_progress=lambda progress: place.topics.rows.update(orders("orders-c", 20)))
    second = driver.run(Event())
    assert second.reason == "new topics"
    assert first.followed_by(second).records_in == read + second.records_in
    place.run()
    del place.topics.rows["refunds", 0], place.topics.rows["refunds", 1]
    assert_counted(place, place.topics.rows)


def test_more_partitions_and_wider_topics_are_read_where_no_store_has_their_keys(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TOPICS_EVERY_S", 0.0)
    place = Place(application(by_user=False), Topics(orders("orders-m", 20)), tmp_path)

    def grow(progress) -> None:
        place.topics.rows["orders-m", 2] = orders("orders-m", 7)["orders-m", 0]

    assert place.driver(on_progress=grow).run(Event()).reason == "new topics"
    place.run()
    place.topics.rows |= orders("orders-b", 20)
    place.topics.rows |= {("orders-b", number): orders("orders-b", 9)["orders-b", 1] for number in (2, 3)}
    place.run()
    assert_counted(place, place.topics.rows)


def test_a_wider_topic_is_refused_where_a_store_has_the_keys_of_all(tmp_path):
    place = Place(application(), Topics(orders("orders-m", 20)), tmp_path)
    place.run()
    place.topics.rows |= {("orders-b", number): [] for number in range(3)}
    with pytest.raises(CoPartitioningError, match=r"orders-b has 3, orders-m has 2\); give them the same number"):
        place.driver()


def test_a_topic_that_has_gone_is_refused_unless_its_loss_is_accepted(tmp_path):
    place = Place(application(), Topics(orders("orders-a", 20) | orders("orders-b", 20)), tmp_path)
    place.run()
    place.topics.rows = {place_: rows for place_, rows in place.topics.rows.items() if place_[0] != "orders-a"}
    newest = newest_commit(place.warehouse, "shop")
    with pytest.raises(MatchedTopicGoneError, match=r"has read topic 'orders-a'.*--accept-lost-records"):
        require_topics_read(place.application, newest, place.topics.topics())
    require_topics_read(place.application, newest, ["orders-a", "orders-b"])
    place.topics.rows |= orders("orders-b", 40)
    place.run()
    assert_counted(place, orders("orders-a", 20) | orders("orders-b", 40))


def test_a_run_that_is_stopped_between_two_generations_has_what_the_first_one_read(tmp_path):
    place = Place(application(), Topics(orders("orders-a", 20)), tmp_path)
    first = replace(place.run(), reason="new topics")
    nothing = replace(first, generation=0, epoch=0, commits=0, records_in=0, reason="stopped", totals={})
    assert first.followed_by(nothing) == replace(first, reason="stopped")
