"""A Kafka sink gets every committed row once, in order, whoever publishes and wherever it dies."""

import subprocess
import sys
from dataclasses import replace
from threading import Event, Thread

import polars as pl
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.pipelines.publishing import outboxes
from tests.pipelines.publishing.outboxes import APP, DIED, SINK, Shop, drain, received
from tests.waiting import wait_for
from weir.infra.kafka.admin import KafkaAdmin
from weir.pipelines.publishing import publisher
from weir.pipelines.publishing.connection import SinkFencedError
from weir.pipelines.publishing.kafka import KafkaConnection
from weir.pipelines.publishing.publisher import MarkLostError, OtherOutboxError, Publisher
from weir.pipelines.serdes.headers import HEADERS_TYPE, headers_column
from weir.pipelines.topology.topology import table_spec
from weir.state.commit.evolution import evolve
from weir.state.commit.files import write_file
from weir.state.commit.outbox import Outbox, outbox_name
from weir.state.commit.refused import Refused
from weir.state.commit.tables import AppendTable
from weir.state.types import TableSpec

pytestmark = pytest.mark.broker

PARTITIONS = 3
STEPS = ("rows read", "records written", "mark sent", "rows published", "outbox emptied")


@pytest.fixture
def shop(tmp_path, topic):
    return Shop(tmp_path, topic(PARTITIONS))


def test_committed_rows_arrive_once_and_in_order_and_leave_the_outbox(shop, broker):
    shop.commit(30, 50)
    first = shop.publisher(broker)
    drain(first)
    shop.commit(1)
    shop.commit(40, 3)
    drain(shop.publisher(broker))
    assert received(broker, shop.topic, PARTITIONS) == shop.sent
    assert not list((shop.folder / "_outbox" / SINK).glob("*.parquet"))
    assert Outbox(shop.folder, SINK, APP).floor == 3


@pytest.mark.parametrize("step", STEPS)
def test_a_publisher_may_be_killed_at_any_step(shop, broker, step):
    """At the first or a later time that it comes to the step."""
    program = [sys.executable, "-m", outboxes.__name__, str(shop.folder), broker, shop.topic, step]
    deaths = 0
    for times in (1, 2, 1, 3):
        shop.commit(30, 50)
        shop.commit(7)
        code = subprocess.run([*program, str(times)], timeout=60, check=False).returncode
        assert code in (0, DIED)
        deaths += code == DIED
    drain(shop.publisher(broker))
    assert deaths >= 2
    assert received(broker, shop.topic, PARTITIONS) == shop.sent


def test_of_two_publishers_the_one_that_began_last_goes_on(shop, broker):
    shop.commit(30, 50)
    has_read, may_go_on, ended = Event(), Event(), []

    def on_step(step):
        if step == "rows read":
            has_read.set()
            may_go_on.wait(30)

    older = shop.publisher(broker, on_step=on_step, is_newest=lambda: False)

    def run():
        try:
            older.run(Event(), Event())
        except SinkFencedError as error:
            ended.append(error)

    thread = Thread(target=run)
    thread.start()
    assert has_read.wait(30)
    drain(shop.publisher(broker))
    shop.commit(4)
    may_go_on.set()
    thread.join(60)
    assert len(ended) == 1
    drain(shop.publisher(broker))
    assert received(broker, shop.topic, PARTITIONS) == shop.sent


def test_the_newest_drivers_publisher_takes_over_again_from_an_older_one(shop, broker):
    shop.commit(5)
    stop = Event()
    newest = shop.publisher(broker)
    thread = Thread(target=newest.run, args=(stop, Event()))
    thread.start()
    wait_for(lambda: newest.state.published_rows == 5, "the first rows are published")
    drain(shop.publisher(broker, is_newest=lambda: False))  # one of a driver that slept
    shop.commit(6)
    wait_for(lambda: newest.state.published_rows == 11, "it connects again")
    stop.set()
    thread.join(30)
    assert received(broker, shop.topic, PARTITIONS) == shop.sent


def test_what_waits_is_told_while_the_brokers_are_away_and_delivered_when_they_are_back(shop, broker, monkeypatch):
    monkeypatch.setattr(publisher, "FIRST_WAIT_S", 0.05)
    shop.commit(5)
    connects, tries = shop.publisher(broker), []
    connect = connects._connect

    def sometimes():
        tries.append(1)
        if len(tries) < 4:
            raise publisher.SinkError("no broker")
        return connect()

    monkeypatch.setattr(connects, "_connect", sometimes)
    stop = Event()
    thread = Thread(target=connects.run, args=(stop, Event()))
    thread.start()
    wait_for(lambda: connects.state.error == "no broker", "the reason is told")
    assert connects.state.waiting_rows == 5
    assert connects.state.waiting_since_s is not None
    wait_for(lambda: connects.state.published_rows == 5, "the rows are delivered")
    wait_for(lambda: not connects.state.waiting_rows, "nothing waits")
    assert not connects.state.error
    stop.set()
    thread.join(30)


def test_a_topic_made_anew_is_not_filled_a_second_time_without_a_word(shop, broker, kafka_admin: KafkaAdmin):
    shop.commit(5)
    drain(shop.publisher(broker))
    kafka_admin.delete_topic(shop.topic)
    wait_for(lambda: shop.topic not in kafka_admin.topics(), "the topic is gone")
    kafka_admin.create_topic(shop.topic, PARTITIONS)
    shop.commit(6)
    with pytest.raises(
        MarkLostError, match="rows up to epoch 1 have been published, but its target has no record of this"
    ):
        drain(shop.publisher(broker))
    assert received(broker, shop.topic, PARTITIONS) == {}


def test_after_a_reset_everything_is_published_again(shop, broker, tmp_path_factory):
    """As by an application whose results are computed anew."""
    shop.commit(5)
    drain(shop.publisher(broker))
    again = Shop(tmp_path_factory.mktemp("reset"), shop.topic)
    again.commit(3)
    drain(again.publisher(broker))
    twice = {user: orders + again.sent.get(user, []) for user, orders in shop.sent.items()}
    assert received(broker, shop.topic, PARTITIONS) == twice


def test_of_two_folders_with_one_application_the_older_one_stops_publishing(shop, broker, tmp_path_factory):
    shop.commit(5)
    drain(shop.publisher(broker))
    other = Shop(tmp_path_factory.mktemp("other"), shop.topic)
    other.commit(3)
    drain(other.publisher(broker))
    shop.commit(2)
    with pytest.raises(OtherOutboxError, match="in another folder has published to its target; end one of the two"):
        drain(shop.publisher(broker))
    renamed = Shop(tmp_path_factory.mktemp("renamed"), shop.topic, application="shop-2")
    renamed.commit(4)
    drain(renamed.publisher(broker))
    drain(other.publisher(broker))
    assert sum(map(len, received(broker, shop.topic, PARTITIONS).values())) == 5 + 3 + 4


def test_what_waits_goes_on_once_the_other_folder_has_ended(shop, broker, tmp_path_factory):
    shop.commit(5)
    drain(shop.publisher(broker))
    other = Shop(tmp_path_factory.mktemp("other"), shop.topic)
    other.commit(3)
    drain(other.publisher(broker))
    shop.commit(2)
    resumed = shop.publisher(broker)
    resumed.decide("resume")
    drain(resumed)
    shop.commit(4)
    drain(shop.publisher(broker))
    assert sum(map(len, received(broker, shop.topic, PARTITIONS).values())) == 5 + 3 + 2 + 4


def test_a_record_too_large_waits_alone_until_somebody_skips_it_and_can_be_sent_again(shop, broker, monkeypatch):
    monkeypatch.setattr(publisher, "FIRST_WAIT_S", 0.05)
    refused = Refused(shop.folder, SINK, APP)
    large = "x" * 2_000_000
    shop.commit(30, 50)
    shop.commit_orders("large", [large])
    shop.commit(6)
    waits = shop.publisher(broker, refused=refused)
    stop = Event()
    thread = Thread(target=waits.run, args=(stop, Event()))
    thread.start()
    wait_for(lambda: waits.state.awaits == "skip", "it waits for a decision")
    assert (waits.state.published_rows, waits.state.waiting_rows) == (80, 7)
    assert waits.state.error.startswith("row 0 of epoch 2, key 'large': ")
    assert "too large" in waits.state.error
    waits.decide("skip")
    wait_for(lambda: not waits.state.waiting_rows, "the rows after it are published")
    stop.set()
    thread.join(30)
    assert waits.state.refused_rows == refused.count() == 1
    assert waits.state.awaits is None
    assert [str(place)[:31] for place in waits.state.refused] == ["row 0 of epoch 2, key 'large': "]
    del shop.sent["large"]
    assert received(broker, shop.topic, PARTITIONS) == shop.sent


def test_a_topic_made_anew_after_its_last_record_was_put_aside_is_noticed(
    shop, broker, kafka_admin: KafkaAdmin, monkeypatch
):
    monkeypatch.setattr(publisher, "FIRST_WAIT_S", 0.05)
    refused = Refused(shop.folder, SINK, APP)
    shop.commit(5)
    shop.commit_orders("large", ["x" * 2_000_000])
    skipping = shop.publisher(broker, refused=refused)
    stop = Event()
    thread = Thread(target=skipping.run, args=(stop, Event()))
    thread.start()
    wait_for(lambda: skipping.state.awaits == "skip", "it waits for a decision")
    skipping.decide("skip")
    wait_for(lambda: not skipping.state.waiting_rows, "nothing waits")
    stop.set()
    thread.join(30)
    drain(shop.publisher(broker, refused=refused))
    kafka_admin.delete_topic(shop.topic)
    wait_for(lambda: shop.topic not in kafka_admin.topics(), "the topic is gone")
    kafka_admin.create_topic(shop.topic, PARTITIONS)
    shop.commit(6)
    with pytest.raises(MarkLostError):
        drain(shop.publisher(broker, refused=refused))


def test_records_that_name_their_topics_are_published_once_and_the_marks_have_a_topic_of_their_own(
    shop, broker, topic, kafka_admin: KafkaAdmin
):
    """Two topics, by the order's user; the publisher begins anew in between."""
    names = [topic(1), topic(1)]
    sink = replace(shop.node.sink, topic=pl.concat_str(pl.lit("x")), name="by-user")
    sent = {name: [] for name in names}
    outbox = AppendTable.create(shop.folder, TableSpec(name=outbox_name("by-user"), schema=shop.spec.schema), APP)
    for epoch in (1, 2):
        rows = pl.DataFrame(
            {"topic": [names[each % 2] for each in range(10)], "value": [f"{epoch}-{each}" for each in range(10)]}
        )
        for name, value in rows.rows():
            sent[name].append(value)
        outgoing = rows.with_columns(
            partition=pl.lit(-1, pl.Int32),
            key=pl.lit(b"ann"),
            value=pl.col("value").cast(pl.Binary),
            time_ms=pl.lit(epoch),
            headers=pl.lit(None, HEADERS_TYPE),
            _epoch=pl.lit(epoch),
        )
        spec = TableSpec(name=outbox_name("by-user"), schema=shop.spec.schema)
        outbox.append(epoch, [write_file(shop.folder, spec, outgoing)])
        connect = lambda: KafkaConnection("by-user-app", sink, {"bootstrap.servers": broker})
        drain(Publisher(Outbox(shop.folder, "by-user", APP), "by-user", connect, application="by-user-app"))
    assert "by-user-app-sinks" in kafka_admin.topics()
    assert {name: received(broker, name, 1)["ann"] for name in names} == sent


def test_a_row_whose_topic_is_not_there_waits_for_it_by_name_or_is_skipped(
    shop, broker, topic, kafka_admin: KafkaAdmin, monkeypatch
):
    """One row of each of three topics that its record names: the first is there, the second is created later."""
    monkeypatch.setattr(publisher, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(publisher, "LONGEST_WAIT_S", 0.2)
    there = topic(1)
    later, never = f"{there}-later", f"{there}-never"
    sink = replace(shop.node.sink, topic=pl.col("order"), name="by-order")
    rows = pl.DataFrame({"user": ["ann"] * 4, "order": [there, later, never, there], "_ts": 1, "_deleted": False})
    spec = TableSpec(name=outbox_name("by-order"), schema=shop.spec.schema)
    outgoing = sink.outgoing(rows).with_columns(_epoch=pl.lit(1, pl.Int64))
    AppendTable.create(shop.folder, spec, APP).append(1, [write_file(shop.folder, spec, outgoing)])
    waits = Publisher(
        Outbox(shop.folder, "by-order", APP),
        "by-order",
        lambda: KafkaConnection(APP, sink, {"bootstrap.servers": broker}),
        application=APP,
        shown_key=sink.shown_key,
        refused=Refused(shop.folder, "by-order", APP),
    )
    stop = Event()
    thread = Thread(target=waits.run, args=(stop, Event()))
    thread.start()
    wait_for(lambda: waits.state.awaits == "skip", "it waits for a decision")
    assert waits.state.published_rows == 1
    assert waits.state.error.startswith("row 1 of epoch 1, key 'ann', topic '")
    assert f": topic '{later}' does not exist at {broker}; create it" in waits.state.error
    assert f"`weir kafka create {later}`" in waits.state.error

    kafka_admin.create_topic(later, 1)
    wait_for(lambda: f"topic '{never}' does not exist" in waits.state.error, "the next one waits")
    waits.decide("skip")
    wait_for(lambda: not waits.state.waiting_rows, "the row after it is published")
    stop.set()
    thread.join(30)
    assert (waits.state.published_rows, waits.state.refused_rows) == (3, 1)
    assert received(broker, there, 1) == {"ann": [there] * 2}
    assert received(broker, later, 1) == {"ann": [later]}
    assert never not in kafka_admin.topics()


def test_headers_are_published_in_order_and_rows_of_before_there_were_any_have_none(tmp_path, topic, broker):
    """An outbox with a file that an earlier version wrote, one of a stream without headers, and one with them."""
    name, sent = topic(1), [[("b", b"\x00\xff"), ("a", None), ("b", b"")], [], [("ą", b"1")]]
    node = outboxes.node_of(name)
    spec = table_spec(node)
    before = TableSpec(
        name=spec.name, schema=pl.Schema({each: dtype for each, dtype in spec.schema.items() if each != "headers"})
    )
    rows = pl.DataFrame({"user": ["ann"] * 3, "order": ["1", "2", "3"], "_ts": [1, 2, 3], "_deleted": [False] * 3})
    table = AppendTable.create(tmp_path, before, APP)
    for epoch, sink in enumerate((None, node.sink, replace(node.sink, has_headers=True)), 1):
        outgoing = (sink or node.sink).outgoing(rows.with_columns(headers_column(sent)))
        outgoing = outgoing.with_columns(_epoch=pl.lit(epoch, pl.Int64))
        if sink is None:
            outgoing = outgoing.drop("headers")
        else:
            evolve(tmp_path, spec)
            table = AppendTable.create(tmp_path, spec, APP)
        table.append(epoch, [write_file(tmp_path, before if sink is None else spec, outgoing)])
    connect = lambda: KafkaConnection(APP, node.sink, {"bootstrap.servers": broker})
    drain(Publisher(Outbox(tmp_path, SINK, APP), SINK, connect, application=APP))
    assert headers_received(broker, name) == [None] * 6 + [headers or None for headers in sent]


def headers_received(broker, topic):
    consumer = Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": f"{topic}-reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while not found or found[-1].error() is None:
        found += consumer.consume(1_000, timeout=1.0)
    consumer.close()
    return [message.headers() for message in found[:-1]]
