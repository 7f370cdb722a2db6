"""Stores whose sub-topology, topic or repartition comes and goes, against plain counts of the records."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

import pytest

from tests.pipelines.spark.inline import Place, Topics
from weir import (
    Application,
    BufferConfig,
    Count,
    JoinWindows,
    Json,
    Last,
    PartitionerError,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
)
from weir.pipelines.serdes.partitioner import murmur2
from weir.pipelines.spark.errors import PartitionCountError, PendingRowsError, StorePlacementError, TaskFailedError
from weir.state.changelog.as_of import state_as_of
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_rows

MINUTE = timedelta(minutes=1)
APPLICATION = "app"


@dataclass(frozen=True)
class Sale:
    euros: int
    cents: int
    text: str


def application(builder: StreamsBuilder) -> Application:
    return Application(APPLICATION, builder, commit_interval=timedelta(milliseconds=1))


def rows(first: int, count: int, users: int = 3, pages: int = 5) -> list:
    return [
        (b"user-%d" % (number % users), b"page-%d" % (number % pages), number * 1_000)
        for number in range(first, first + count)
    ]


def counts(place: Place, store: str, key: str) -> dict[str, int]:
    committed = newest_commit(place.warehouse, APPLICATION)
    (spec,) = (spec for each in place.application.topology.sub_topologies for spec in each.stores if spec.name == store)
    found = state_as_of(place.warehouse / APPLICATION, spec, committed.epoch).select(key, "n").rows()
    assert len(found) == len(dict(found))
    return dict(found)


def counted(records: list, part: int) -> dict[str, int]:
    return dict(Counter(record[part].decode() for record in records))


def lose_local_stores(place: Place) -> None:
    shutil.rmtree(place.state_folder)


def by_page(*, has_pages: bool) -> Application:
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=String("page"))
    clicks.group_by_key().agg("users", n=Count())
    if has_pages:
        clicks.group_by("page").agg("pages", n=Count())
    return application(builder)


def test_a_store_behind_its_own_repartition_comes_back_with_its_rows(tmp_path):
    place = Place(by_page(has_pages=True), Topics({("clicks", 0): rows(0, 20)}), tmp_path)
    place.run()
    topic = place.topics.rows["clicks", 0]
    place.application = by_page(has_pages=False)
    topic += rows(20, 5)
    place.run()
    place.application = by_page(has_pages=True)
    topic += rows(25, 3)
    place.run()
    seen = counted(topic[:20] + topic[25:], 1)
    assert counts(place, "pages", "page") == seen
    assert counts(place, "users", "user") == counted(topic, 0)
    lose_local_stores(place)
    place.run()
    assert counts(place, "pages", "page") == seen


def of_orders(*, has_orders: bool) -> Application:
    builder = StreamsBuilder()
    builder.stream("clicks", key=String("user"), value=String("page")).group_by_key().agg("users", n=Count())
    if has_orders:
        orders = builder.stream("orders", key=String("user"), value=String("item"))
        orders.group_by_key().agg("buyers", n=Count()).to_delta("buyers")
        orders.to_delta("all_orders")
    return application(builder)


@pytest.mark.parametrize("keeps_disk", [True, False])
def test_a_topic_that_is_read_again_goes_on_where_it_was_left(tmp_path, keeps_disk):
    topics = Topics({("clicks", 0): rows(0, 9), ("orders", 0): rows(0, 9)}, ids={"clicks": "c", "orders": "o"})
    place = Place(of_orders(has_orders=True), topics, tmp_path)
    place.run()
    for has_orders in (False, False, True):
        place.application = of_orders(has_orders=has_orders)
        for topic in topics.rows.values():
            topic += rows(len(topic), 5)
        if not keeps_disk:
            lose_local_stores(place)
        place.run()
    orders = topics.rows["orders", 0]
    assert counts(place, "buyers", "user") == counted(orders, 0)
    assert counts(place, "users", "user") == counted(topics.rows["clicks", 0], 0)
    assert read_rows(place.warehouse / APPLICATION / "all_orders").height == len(orders)


def test_a_topic_that_was_made_anew_while_nobody_read_it_is_found(tmp_path):
    topics = Topics({("clicks", 0): rows(0, 9), ("orders", 0): rows(0, 9)}, ids={"clicks": "c", "orders": "o"})
    place = Place(of_orders(has_orders=True), topics, tmp_path)
    place.run()
    place.application = of_orders(has_orders=False)
    place.run()
    topics.ids["orders"] = "another"
    place.application = of_orders(has_orders=True)
    with pytest.raises(Exception, match="orders"):
        place.run()
    place.run(accept_lost_records=True)
    assert read_rows(place.warehouse / APPLICATION / "all_orders").height == 18


def test_a_rebuilt_store_behind_its_own_repartition_never_gets_its_old_rows_back(tmp_path):
    def program(tasks: int) -> Application:
        builder = StreamsBuilder()
        clicks = builder.stream("clicks", key=String("user"), value=String("page"))
        clicks.select_key("page").repartition(name="by_page", partitions=tasks).group_by_key().agg("pages", n=Count())
        return application(builder)

    place = Place(program(1), Topics({("clicks", 0): rows(0, 20)}), tmp_path)
    place.run()
    place.application = program(2)
    topic = place.topics.rows["clicks", 0]
    topic += rows(20, 2)
    with pytest.raises(PartitionCountError):
        place.run()
    place.run(accept_state_loss=True)
    assert counts(place, "pages", "page") == counted(topic[20:], 1)
    lose_local_stores(place)
    topic += rows(22, 3)
    place.run()
    assert counts(place, "pages", "page") == counted(topic[20:], 1)


@pytest.mark.parametrize("new", ["other", "clicks_by", "by_minute"])
def test_a_window_that_was_closed_stays_closed_beside_a_new_store_whatever_its_name(tmp_path, new):
    def program(beside: str | None) -> Application:
        builder = StreamsBuilder()
        clicks = builder.stream("clicks", key=String("user"), value=String("page")).group_by_key()
        if beside:
            clicks.agg(beside, n=Count())
        minutes = clicks.windowed_by(TimeWindows.of_size_and_grace(MINUTE, timedelta(0)))
        last = {"last": Last("page")} if beside else {}
        final = minutes.agg("clicks_by_minute", n=Count(), **last)
        final.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_delta("finals")
        return application(builder)

    place = Place(program(None), Topics({("clicks", 0): rows(0, 300, users=1)}), tmp_path)
    place.run()
    place.application = program(new)
    place.topics.rows["clicks", 0] += [(b"user-0", b"late", 5_000), (b"user-0", b"page", 360_000)]
    place.run()
    found = read_rows(place.warehouse / APPLICATION / "finals").sort("window_start").select("window_start", "n").rows()
    assert [(start.timestamp() / 60, n) for start, n in found] == [(0, 60), (1, 60), (2, 60), (3, 60), (4, 60)]


@pytest.mark.parametrize("new", ["other", "pai"])
def test_a_join_of_streams_keeps_its_records_beside_a_new_store_whatever_its_name(tmp_path, new):
    def program(is_changed: bool) -> Application:
        builder = StreamsBuilder()
        left = builder.stream("left", key=String("user"), value=String("l"))
        right = builder.stream("right", key=String("user"), value=String("r"))
        left.group_by_key().agg("users", n=Count(), **({"last": Last("l")} if is_changed else {}))
        if is_changed:
            left.group_by_key().agg(new, n=Count())
        left.join(right, windows=JoinWindows.of_time_difference_and_grace(MINUTE, MINUTE), store="pairs").to_delta(
            "out"
        )
        return application(builder)

    def records(side: bytes, first: int) -> list:
        return [(b"user", side + b"%d" % number, number * 1_000) for number in range(first, first + 5)]

    place = Place(program(False), Topics({("left", 0): records(b"l", 0), ("right", 0): []}), tmp_path)
    place.run()
    place.application = program(True)
    place.topics.rows["left", 0] += records(b"l", 5)
    place.run()
    place.topics.rows["right", 0].append((b"user", b"r", 3_000))
    place.run()
    found = read_rows(place.warehouse / APPLICATION / "out")
    assert sorted(found["l"].to_list()) == sorted(f"l{number}" for number in range(10))


def divided(by: str | None) -> Application:
    """``users`` behind what divides its keys: the topic's producers, a repartition, or not there at all."""
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=String("page"))
    moved = clicks.repartition(name="moved")
    moved.group_by_key().agg("beside", n=Count())
    if by is not None:
        (clicks if by == "producers" else moved).group_by_key().agg("users", n=Count())
    return application(builder)


def partition_of(key: bytes) -> int:
    return int((int(murmur2([key])[0]) & 0x7FFFFFFF) % 2)


def produce(place: Place, records: list, *, is_default: bool) -> None:
    for record in records:
        partition = partition_of(record[0]) if is_default else int(record[0].decode().removeprefix("user-")) % 2
        place.topics.rows["clicks", partition].append(record)


@pytest.mark.parametrize("order", [("weir", "producers"), ("weir", None, "producers"), ("weir", "producers", "weir")])
@pytest.mark.parametrize("is_default", [True, False])
def test_a_repartition_that_is_left_out_is_fine_if_the_producers_divide_keys_as_it_did(tmp_path, order, is_default):
    place = Place(divided(order[0]), Topics({("clicks", 0): [], ("clicks", 1): []}), tmp_path)
    place.max_records = 1_000
    produce(place, rows(0, 40, users=20), is_default=is_default)
    place.run()
    for step in order[1:]:
        place.application = divided(step)
        seen = sum(len(records) for records in place.topics.rows.values())
        produce(place, rows(seen, 40, users=20), is_default=is_default)
        if is_default or step is None:
            place.run()
            continue
        with pytest.raises(TaskFailedError, match=PartitionerError.__name__):
            place.run()
        return
    if None not in order:
        everything = [record for records in place.topics.rows.values() for record in records]
        assert counts(place, "users", "user") == counted(everything, 0)


@pytest.mark.parametrize("order", [("producers", "weir"), ("producers", None, "weir")])
def test_a_repartition_in_front_of_rows_that_producers_have_put_elsewhere_is_refused(tmp_path, order):
    place = Place(divided(order[0]), Topics({("clicks", 0): [], ("clicks", 1): []}), tmp_path)
    produce(place, rows(0, 40, users=20), is_default=False)
    place.run()
    for step in order[1:-1]:
        place.application = divided(step)
        place.run()
    place.application = divided(order[-1])
    with pytest.raises(StorePlacementError):
        place.run()
    place.application = divided(order[0])
    produce(place, rows(40, 40, users=20), is_default=False)
    place.run()


def test_rows_that_wait_are_refused_if_their_repartition_leads_to_another_store(tmp_path):
    def program(of_clicks: str, of_orders: str) -> Application:
        builder = StreamsBuilder()
        clicks = builder.stream("clicks", key=String("user"), value=String("page"))
        orders = builder.stream("orders", key=String("user"), value=String("page"))
        clicks.repartition(name=of_clicks).group_by_key().agg("of_clicks", n=Count())
        orders.repartition(name=of_orders).group_by_key().agg("of_orders", n=Count())
        return application(builder)

    clicks, orders = rows(0, 9), [(b"buyer", b"item", number * 1_000) for number in range(9)]
    place = Place(program("x", "y"), Topics({("clicks", 0): clicks, ("orders", 0): orders}), tmp_path)
    coordinator = place.driver()._coordinator
    coordinator._stages = coordinator._stages[:1]
    ends = {partition: len(records) for partition, records in place.topics.rows.items()}
    coordinator.run_epoch(ends, place.spec().limits, 0)
    coordinator.commit("stop")
    assert newest_commit(place.warehouse, APPLICATION).pending_blobs
    place.application = program("y", "x")
    with pytest.raises(PendingRowsError):
        place.run()
    place.application = program("x", "y")
    place.run()
    place.application = program("y", "x")
    orders += orders[:1]
    place.run()
    assert counts(place, "of_clicks", "user") == counted(clicks, 0)
    assert counts(place, "of_orders", "user") == counted(orders, 0)


@pytest.mark.parametrize("again", ["of cents", "as text"])
def test_a_column_that_was_left_out_begins_at_nothing_when_it_is_added_again(tmp_path, again):
    def program(output: str, **aggregates) -> Application:
        builder = StreamsBuilder()
        clicks = builder.stream("clicks", key=String("user"), value=Json(Sale))
        clicks.group_by_key().agg("users", n=Count(), **aggregates).to_delta(output)
        return application(builder)

    def sales(*users: int) -> list:
        return [(b"user-%d" % user, b'{"euros": 1000, "cents": 1, "text": "x"}', 0) for user in users]

    place = Place(program("totals", total=Sum("euros")), Topics({("clicks", 0): sales(0, 0, 1, 1)}), tmp_path)
    place.run()
    place.application = program("counts")
    place.topics.rows["clicks", 0] += sales(0)
    place.run()
    place.application = program("again", total=Sum("cents") if again == "of cents" else Last("text"))
    place.topics.rows["clicks", 0] += sales(1)
    place.run()
    (sub_topology,) = place.application.topology.sub_topologies
    epoch = newest_commit(place.warehouse, APPLICATION).epoch
    found = state_as_of(place.warehouse / APPLICATION, sub_topology.stores[0], epoch)
    assert sorted(found.select("user", "n").rows()) == [("user-0", 3), ("user-1", 3)]
    totals = dict(found.select("user", "total").rows())
    assert totals["user-1"] == (1 if again == "of cents" else "x")
    assert not totals["user-0"]
