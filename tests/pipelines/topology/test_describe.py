"""``describe()`` byte for byte as Kafka Streams prints it; only a Delta sink says table instead of topic.

The texts in ``descriptions`` were printed by Kafka Streams 4.3.1 for the same programs in Java, which are in
``Descriptions.java`` there.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from polars import col

from weir import (
    BufferConfig,
    GlobalKTable,
    JoinWindows,
    KeyValueStore,
    KStream,
    KTable,
    Processor,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindows,
)
from weir.pipelines.topology import Topology
from weir.state.types import TaskId

DESCRIPTIONS = Path(__file__).parent / "descriptions"
NEAR = JoinWindows.of_time_difference_with_no_grace(timedelta(seconds=1))


def built(program: Callable[[StreamsBuilder], object]) -> Topology:
    builder = StreamsBuilder()
    program(builder)
    return builder.build()


def text_of(topology: Topology) -> str:
    return topology.describe().replace("(table: ", "(topic: ")


def stream(builder: StreamsBuilder, *topics: str) -> KStream:
    return builder.stream(list(topics), key=String("key"), value=String("value"))


def table(builder: StreamsBuilder, topic: str) -> KTable:
    return builder.table(topic, key=String("key"), value=String("value"), store=topic)


def global_table(builder: StreamsBuilder, topic: str) -> GlobalKTable:
    return builder.global_table(topic, key=String("key"), value=String("value"), store=topic)


def first(value: str, other: str) -> str:
    return value


def folded(key: str, value: str, aggregate: str) -> str:
    return aggregate


def word_count(builder: StreamsBuilder) -> None:
    words = stream(builder, "text").filter(lambda key, word: True)
    words.group_by(word="value").count("counts-store").to_stream().to_delta("counts")


def several_topics(builder: StreamsBuilder) -> None:
    stream(builder, "clicks", "views").filter(lambda key, value: True).to_delta("all")


def merged(builder: StreamsBuilder) -> None:
    stream(builder, "clicks").merge(stream(builder, "views")).filter(lambda key, value: True).to_delta("all")


def shared_repartition(builder: StreamsBuilder) -> None:
    users = table(builder, "users")
    moved = stream(builder, "clicks").select_key(user="value")
    moved.join(users).to_delta("known")
    moved.left_join(users).to_delta("all")


def repartitions_in_order(builder: StreamsBuilder) -> None:
    grouped = stream(builder, "clicks").group_by(page="value")
    grouped.count("zebra")
    grouped.count("ant")


def explicit_repartition(builder: StreamsBuilder) -> None:
    stream(builder, "clicks").repartition("spread").to_delta("all")


def global_table_first(builder: StreamsBuilder) -> None:
    products = global_table(builder, "products")
    stream(builder, "sales").join(products, key="value").to_delta("out")


def global_table_between(builder: StreamsBuilder) -> None:
    clicks = stream(builder, "clicks")
    clicks.join(global_table(builder, "pages"), key="value").to_delta("titled")
    clicks.group_by(page="value").count("counts").to_stream().to_delta("counted")


def stream_join(builder: StreamsBuilder) -> None:
    left, right = stream(builder, "left"), stream(builder, "right")
    left.left_join(right, windows=NEAR, store="met").to_delta("out")


def stream_join_of_new_keys(builder: StreamsBuilder) -> None:
    clicks = stream(builder, "clicks").select_key(user="value")
    orders = stream(builder, "orders").select_key(user="value")
    clicks.join(orders, windows=NEAR, store="near").to_delta("out")


def named_stream_join(builder: StreamsBuilder) -> None:
    clicks = stream(builder, "clicks").select_key(user="value")
    orders = stream(builder, "orders").select_key(user="value")
    clicks.outer_join(orders, windows=NEAR, store="near", name="bought").to_delta("out")


def stream_join_of_two_stores(builder: StreamsBuilder) -> None:
    left, right = stream(builder, "left"), stream(builder, "right")
    left.left_join(right, windows=NEAR, store=("shown", "clicked")).to_delta("out")


def stream_table_join(builder: StreamsBuilder) -> None:
    orders = stream(builder, "orders")
    customers = table(builder, "customers")
    orders.select_key(customer="value").join(customers, name="billed").to_delta("out")


def table_join(builder: StreamsBuilder) -> None:
    names, cities = table(builder, "names"), table(builder, "cities")
    names.left_join(cities.map_values(city="value")).to_stream().to_delta("out")


def kept_tables(builder: StreamsBuilder) -> None:
    names, cities = table(builder, "names"), table(builder, "cities")
    known = names.filter(col("value") != "", store="known")
    rest = names.filter_not(col("value") != "", store="rest")
    places = cities.map_values(city="value", store="places")
    known.left_join(places).to_stream().to_delta("out")
    rest.to_stream().to_delta("others")


def windowed_table_join(builder: StreamsBuilder) -> None:
    minute = TimeWindows.of_size_with_no_grace(timedelta(minutes=1))
    seen, clicked = (
        stream(builder, topic).group_by_key().windowed_by(minute).count(topic) for topic in ("views", "clicks")
    )
    seen.left_join(clicked.map_values(clicked="count")).to_stream().to_delta("out")


def suppressed_table_join(builder: StreamsBuilder) -> None:
    names, cities = table(builder, "names"), table(builder, "cities")
    held = names.suppress(Suppressed.until_time_limit(timedelta(seconds=1), BufferConfig.unbounded()))
    held.join(cities, first).to_stream().to_delta("out")


def foreign_key_join(builder: StreamsBuilder) -> None:
    orders, customers = table(builder, "orders"), table(builder, "customers")
    orders.join(customers, foreign_key="value").to_stream().to_delta("out")


def named_foreign_key_join(builder: StreamsBuilder) -> None:
    orders, customers = table(builder, "orders"), table(builder, "customers")
    orders.left_join(customers, foreign_key="value", store="priced")


def table_of_a_new_key(builder: StreamsBuilder) -> None:
    stream(builder, "clicks").select_key(user="value").to_table("newest").to_stream().to_delta("out")


def grouped_table(builder: StreamsBuilder) -> None:
    table(builder, "towns").group_by(country="value").count("counts").to_stream().to_delta("out")


def cogroup(builder: StreamsBuilder) -> None:
    clicks, purchases = stream(builder, "clicks"), stream(builder, "purchases")
    moved = purchases.group_by(user="value").cogroup(folded).cogroup(clicks.group_by_key(), folded)
    moved.aggregate("visits", str).to_delta("out")


def suppressed(builder: StreamsBuilder) -> None:
    minutes = TimeWindows.of_size_with_no_grace(timedelta(minutes=1))
    counts = stream(builder, "clicks").group_by_key().windowed_by(minutes).count("hourly")
    counts.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_delta("out")


def branches(builder: StreamsBuilder) -> None:
    (
        stream(builder, "clicks")
        .split("by-")
        .branch(col("value") != "", "a", then=lambda branch: branch.to_delta("one"))
        .default_branch("b", then=lambda branch: branch.peek(print).to_delta("two"))
    )


def many_children(builder: StreamsBuilder) -> None:
    shops = stream(builder, "web", "app", "kiosk", "phone", "car")
    newest = shops.to_table("newest")
    users, towns = table(builder, "users"), table(builder, "towns")
    joined = newest.left_join(users.outer_join(towns, first), first)
    shops.join(joined, first).to_delta("one")
    shops.filter(lambda key, value: True).map_values(it="value").peek(print).to_delta("two")
    shops.to_delta("three")
    shops.group_by_key().count("counts")


def balanced_children(builder: StreamsBuilder) -> None:
    """Three children are as many as it takes for the tree to turn."""
    clicks = stream(builder, "clicks")
    clicks.to_table("newest").map_values(page="value")
    clicks.group_by(page="value").count("counts")
    clicks.for_each(print)


class Nothing(Processor[str, str, str, str]):
    def process(self, record):
        pass


def store(name: str) -> KeyValueStore:
    return KeyValueStore(name, key=str, value=str)


def source(builder: StreamsBuilder, name: str, topic: str) -> None:
    builder.topology.add_source(name, topic, key=String("key"), value=String("value"))


def nodes_of_both_kinds(builder: StreamsBuilder) -> None:
    builder.add_state_store(store("seen"))
    kept = stream(builder, "clicks").filter(lambda key, value: True)
    kept.process(Nothing, name="count", stores=["seen"]).to_delta("counted")
    source(builder, "pages", "pages")
    topology = builder.topology
    topology.add_processor("learn", Nothing, "pages")
    topology.add_processor("both", Nothing, "KSTREAM-FILTER-0000000001", "learn")
    topology.add_state_store(store("own"), "both")
    topology.connect_processor_and_state_stores("learn", "seen")
    topology.add_sink("out", "out", "count", "both")


def named_sources(builder: StreamsBuilder) -> None:
    source(builder, "zebra", "one")
    source(builder, "ant", "two")
    source(builder, "Bee", "three")
    topology = builder.topology
    topology.add_processor("first", Nothing, "zebra")
    topology.add_processor("second", Nothing, "ant")
    topology.add_sink("out", "out", "first").add_sink("other", "other", "second").add_sink("third", "third", "Bee")


def named_and_numbered_sources(builder: StreamsBuilder) -> None:
    stream(builder, "clicks").to_delta("all")
    source(builder, "Ant", "one")
    builder.topology.add_sink("ant-out", "one_out", "Ant")
    source(builder, "Zebra", "two")
    builder.topology.add_sink("zebra-out", "two_out", "Zebra")


@pytest.mark.parametrize(
    "program",
    [
        word_count,
        several_topics,
        merged,
        shared_repartition,
        repartitions_in_order,
        explicit_repartition,
        global_table_first,
        global_table_between,
        stream_join,
        stream_join_of_new_keys,
        named_stream_join,
        stream_join_of_two_stores,
        stream_table_join,
        table_join,
        kept_tables,
        windowed_table_join,
        suppressed_table_join,
        foreign_key_join,
        named_foreign_key_join,
        table_of_a_new_key,
        grouped_table,
        cogroup,
        suppressed,
        branches,
        many_children,
        balanced_children,
        nodes_of_both_kinds,
        named_sources,
        named_and_numbered_sources,
    ],
)
def test_describe_is_what_kafka_streams_prints(program):
    assert text_of(built(program)) == (DESCRIPTIONS / f"{program.__name__}.txt").read_text()


def test_describe_is_the_text_in_kafkas_own_test_of_an_outer_join():
    """``TopologyTest.streamStreamOuterJoinTopologyWithCustomStoresNames`` of apache/kafka."""

    def program(builder: StreamsBuilder) -> None:
        one, other = stream(builder, "input-topic1"), stream(builder, "input-topic2")
        one.outer_join(other, windows=NEAR, store="custom-name")

    assert built(program).describe() == (
        "Topologies:\n"
        "   Sub-topology: 0\n"
        "    Source: KSTREAM-SOURCE-0000000000 (topics: [input-topic1])\n"
        "      --> KSTREAM-WINDOWED-0000000002\n"
        "    Source: KSTREAM-SOURCE-0000000001 (topics: [input-topic2])\n"
        "      --> KSTREAM-WINDOWED-0000000003\n"
        "    Processor: KSTREAM-WINDOWED-0000000002 (stores: [custom-name-outer-this-join-store])\n"
        "      --> KSTREAM-OUTERTHIS-0000000004\n"
        "      <-- KSTREAM-SOURCE-0000000000\n"
        "    Processor: KSTREAM-WINDOWED-0000000003 (stores: [custom-name-outer-other-join-store])\n"
        "      --> KSTREAM-OUTEROTHER-0000000005\n"
        "      <-- KSTREAM-SOURCE-0000000001\n"
        "    Processor: KSTREAM-OUTEROTHER-0000000005 "
        "(stores: [custom-name-outer-this-join-store, custom-name-outer-shared-join-store])\n"
        "      --> KSTREAM-MERGE-0000000006\n"
        "      <-- KSTREAM-WINDOWED-0000000003\n"
        "    Processor: KSTREAM-OUTERTHIS-0000000004 "
        "(stores: [custom-name-outer-other-join-store, custom-name-outer-shared-join-store])\n"
        "      --> KSTREAM-MERGE-0000000006\n"
        "      <-- KSTREAM-WINDOWED-0000000002\n"
        "    Processor: KSTREAM-MERGE-0000000006 (stores: [])\n"
        "      --> none\n"
        "      <-- KSTREAM-OUTERTHIS-0000000004, KSTREAM-OUTEROTHER-0000000005\n\n"
    )


def test_describe_is_the_text_in_kafkas_own_test_of_a_cogroup():
    """``TopologyTest.timeWindowedCogroupedNamedMaterializedCountShouldPreserveTopologyStructure`` of apache/kafka."""

    def program(builder: StreamsBuilder) -> None:
        windows = TimeWindows.of_size_with_no_grace(timedelta(milliseconds=1))
        cogrouped = stream(builder, "input-topic").group_by_key().cogroup(folded)
        cogrouped.windowed_by(windows).aggregate("aggregate-store", str)

    assert built(program).describe() == (
        "Topologies:\n"
        "   Sub-topology: 0\n"
        "    Source: KSTREAM-SOURCE-0000000000 (topics: [input-topic])\n"
        "      --> COGROUPKSTREAM-AGGREGATE-0000000001\n"
        "    Processor: COGROUPKSTREAM-AGGREGATE-0000000001 (stores: [aggregate-store])\n"
        "      --> COGROUPKSTREAM-MERGE-0000000002\n"
        "      <-- KSTREAM-SOURCE-0000000000\n"
        "    Processor: COGROUPKSTREAM-MERGE-0000000002 (stores: [])\n"
        "      --> none\n"
        "      <-- COGROUPKSTREAM-AGGREGATE-0000000001\n\n"
    )


def test_a_delta_sink_says_table():
    assert "    Sink: KSTREAM-SINK-0000000002 (table: all)\n" in built(several_topics).describe()


def test_tasks_have_the_numbers_of_the_text():
    """A global table takes a number and has no tasks."""
    topology = built(global_table_between)
    assert topology.partition_counts({"clicks": 3, "pages": 5}) == {0: 3, 2: 3}
    assert [sub_topology.name for sub_topology in map(topology.sub_topology, (0, 2))] == [
        "clicks",
        "counts-repartition",
    ]
    assert topology.task_name(TaskId(2, 1)) == "counts-repartition_1"
    assert topology.task_of(topology.task_name(TaskId(2, 1))) == TaskId(2, 1)
    with pytest.raises(KeyError):
        topology.sub_topology(1)


def test_a_sub_topology_may_be_read_from_before_its_number():
    """The numbers follow the text; what writes a repartition is still processed before what reads it."""
    topology = built(shared_repartition)
    assert [(sub_topology.index, sub_topology.sources[0].topic) for sub_topology in topology.sub_topologies] == [
        (1, "clicks"),
        (0, "users"),
    ]
    assert [(edge.source, edge.target, edge.leads_back) for edge in topology.edges] == [(1, 0, False)]


def test_edges_of_one_stream_that_would_have_one_topic_are_shown_under_their_own_names():
    """Kafka Streams sends both through one topic, which here would be another name in stored data."""

    def program(builder: StreamsBuilder) -> None:
        clicks = stream(builder, "clicks").select_key(user="value")
        clicks.join(clicks, windows=NEAR, store="pairs")

    text = built(program).describe()
    assert "    Sink: pairs-left-repartition-sink (topic: pairs-left-repartition)\n" in text
    assert "    Source: pairs-right-repartition-source (topics: [pairs-right-repartition])\n" in text


def test_topics_that_are_written_and_read_here_are_named_and_loops_marked():
    def program(builder: StreamsBuilder) -> None:
        cleaned = stream(builder, "raw").filter(col("value") != "")
        cleaned.to("clean")
        stream(builder, "clean").to_delta("kept")
        stream(builder, "jobs").merge(stream(builder, "retries")).filter(col("value") == "again").to("retries")
        stream(builder, "ping").to("pong")
        stream(builder, "pong").repartition("spread").to("ping")
        global_table(builder, "names")
        stream(builder, "new-names").to("names")
        stream(builder, "elsewhere").to("far-away")

    text = built(program).describe()
    assert text.partition("  Topics that are written and read here:\n")[2].splitlines() == [
        "    clean: KSTREAM-SINK-0000000002 (sub-topology 0) --> KSTREAM-SOURCE-0000000003 (sub-topology 1)",
        "    retries, a loop: KSTREAM-SINK-0000000009 (sub-topology 2) --> KSTREAM-SOURCE-0000000006 (sub-topology 2)",
        "    pong, a loop: KSTREAM-SINK-0000000011 (sub-topology 3) --> KSTREAM-SOURCE-0000000012 (sub-topology 4)",
        "    ping, a loop: KSTREAM-SINK-0000000016 (sub-topology 5) --> KSTREAM-SOURCE-0000000010 (sub-topology 3)",
        "    names: KSTREAM-SINK-0000000020 (sub-topology 7) --> KSTREAM-SOURCE-0000000017 (global store)",
        "",
    ]
