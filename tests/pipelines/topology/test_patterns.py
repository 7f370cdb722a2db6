"""Topics by pattern in the topology: what is read, under which names, and what is refused."""

from __future__ import annotations

import re

import pytest

from weir import Application, Int64, StreamsBuilder, String
from weir.pipelines.errors import TopologyError
from weir.testing import TopologyTestDriver

TOPICS = ["orders-eu", "orders-us", "old-orders-eu", "orders", "payments", "__consumer_offsets"]


def stream(builder: StreamsBuilder, topic):
    return builder.stream(topic, key=String("user"), value=Int64("cents"))


def application(*patterns: object, **settings) -> Application:
    """Counts and joins what the patterns match with a table."""
    builder = StreamsBuilder()
    names = builder.table("names", key=String("user"), value=String("name"), store="names")
    for number, pattern in enumerate(patterns):
        orders = stream(builder, pattern)
        orders.join(names).to_delta(f"named_{number}")
        orders.group_by("cents").count(f"counts_{number}").to_delta(f"counts_{number}")
        orders.group_by_key().count(f"of_users_{number}").to_delta(f"of_users_{number}")
    return Application("shop", builder, **settings)


ORDERS = application(re.compile("orders-.*"))


def test_the_whole_name_matches_and_brokers_keep_their_own_topics():
    topology = application(re.compile(".*order.*|__.*")).over(None, TOPICS).topology
    assert set(topology.topics()) == {"names", "old-orders-eu", "orders", "orders-eu", "orders-us"}
    assert set(ORDERS.over(None, TOPICS).topology.topics()) == {"names", "orders-eu", "orders-us"}
    assert ORDERS.topology.open_patterns == ("orders-.*",)
    assert not ORDERS.over(None, TOPICS).topology.open_patterns


def test_a_topic_more_is_no_other_program():
    none, one, two = (ORDERS.over(None, TOPICS[:count]).topology for count in range(3))
    assert none.fingerprint == one.fingerprint == two.fingerprint
    assert none.describe() == one.describe() == two.describe()
    for topology in (one, two):
        assert [each.stored_name for each in topology.sub_topologies] == [
            each.stored_name for each in none.sub_topologies
        ]
        assert topology.committed_form.identities == none.committed_form.identities
        assert topology.committed_form.edges == none.committed_form.edges
        assert topology.partition_counts(dict.fromkeys(topology.topics(), 3)) == dict.fromkeys(
            (each.index for each in none.sub_topologies), 3
        )


def test_another_pattern_is_another_program():
    assert (
        application(re.compile("orders-.*")).topology.fingerprint
        != application(re.compile("orders-..")).topology.fingerprint
    )


def test_it_is_described_as_kafka_streams_describes_a_pattern():
    builder = StreamsBuilder()
    stream(builder, re.compile("orders-.*")).to_delta("all_orders")
    assert Application("shop", builder).over(None, TOPICS).topology.describe() == (
        "Topologies:\n"
        "   Sub-topology: 0\n"
        "    Source: KSTREAM-SOURCE-0000000000 (topics: orders-.*)\n"
        "      --> KSTREAM-SINK-0000000001\n"
        "    Sink: KSTREAM-SINK-0000000001 (table: all_orders)\n"
        "      <-- KSTREAM-SOURCE-0000000000\n\n"
    )


def test_topics_keep_their_places_and_new_ones_come_last():
    first = ORDERS.over(None, ["names", "orders-m"]).topology
    assert list(first.topic_ranks) == ["names", "orders-m"], "the table that is looked up comes first"
    later = ORDERS.topology.reading(["names", "orders-a", "orders-m", "orders-z"], tuple(first.topic_ranks))
    assert later == ("names", "orders-m", "orders-a", "orders-z")
    assert list(ORDERS.under({}, later).topology.topic_ranks) == list(later)


def test_a_pattern_without_special_characters_is_one_topic():
    found = application(re.compile("orders")).over(None, TOPICS).topology
    assert set(found.topics()) == {"names", "orders"}
    assert not found.open_patterns


def test_a_list_may_hold_patterns():
    builder = StreamsBuilder()
    stream(builder, ["payments", re.compile("orders-.*"), re.compile("old-.*")]).to_delta("all")
    with TopologyTestDriver(Application("shop", builder), topics=TOPICS) as driver:
        for number, topic in enumerate(["old-orders-eu", "orders-us", "payments", "orders-eu"]):
            driver.create_input_topic(topic).pipe_input("ann", number)
        assert [row["cents"] for row in driver.create_output_table("all").read_rows()] == [0, 1, 2, 3]


def test_the_test_driver_wants_to_know_the_topics():
    with pytest.raises(LookupError, match=r"no topic matches the pattern 'orders-\.\*'; name those .*topics=\["):
        TopologyTestDriver(ORDERS)
    with TopologyTestDriver(ORDERS, topics=TOPICS) as driver:
        driver.create_input_topic("names").pipe_input("ann", "Ann")
        driver.create_input_topic("orders-eu").pipe_input("ann", 5)
        driver.create_input_topic("orders-us").pipe_input("ann", 5)
        assert driver.create_output_table("named_0").read_rows() == [{"user": "ann", "cents": 5, "name": "Ann"}] * 2
        assert driver.get_key_value_store("of_users_0").get("ann") == 2
        with pytest.raises(LookupError, match="does not read 'payments'"):
            driver.create_input_topic("payments")


@pytest.mark.parametrize(
    ("describe", "message"),
    [
        (
            lambda: application(re.compile("names|orders-.*")),
            r"'names' is read by its name and by the pattern 'names\|orders-\.\*'; leave it out of the pattern",
        ),
        (
            lambda: application(re.compile("orders-.*"), re.compile("orders-.*")),
            "read it once and use the stream twice",
        ),
        (
            lambda: application(re.compile("orders-.*"), re.compile(".*-eu")).over(None, TOPICS),
            r"'orders-eu' matches two patterns, 'orders-\.\*' and '\.\*-eu'; change one of them",
        ),
        (
            lambda: application(re.compile("orders-.*"), on_error="dead_letter", dead_letter_topic="orders-dead"),
            "dead_letter_topic='orders-dead' is a topic that the program reads",
        ),
    ],
)
def test_what_would_read_a_topic_twice_is_refused(describe, message):
    with pytest.raises(TopologyError, match=message):
        describe()


def test_the_advised_pattern_leaves_the_topic_out():
    found = application(re.compile(r"(?!names$)(names|orders-.*)")).over(None, [*TOPICS, "names"]).topology
    assert set(found.topics()) == {"names", "orders-eu", "orders-us"}
