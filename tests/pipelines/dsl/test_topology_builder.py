"""Topologies by their nodes, beside the DSL: what runs, and what is refused with its way out."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from polars import col

from weir import (
    Application,
    BatchProcessor,
    CoPartitioningError,
    FixedKeyProcessor,
    Int64,
    KeyValueStore,
    Processor,
    StreamsBuilder,
    String,
    TopologyError,
    UserFunctionError,
)
from weir.testing import TopologyTestDriver

COUNTS = KeyValueStore("counts", key=str, value=int)


class Pass(Processor[str, int, str, int]):
    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.forward(record)


class Count(FixedKeyProcessor[str, int, int]):
    """Forwards how many records of the key its store has seen, whoever counted them."""

    stores = ("counts",)

    def init(self, context):
        self.context, self.counts = context, context.state_store("counts")

    def process(self, record):
        self.counts.put(record.key, (self.counts.get(record.key) or 0) + 1)
        self.context.forward(record.with_value(self.counts.get(record.key)))


class Ends(Processor[str, int, None, None]):
    def process(self, record):
        pass


def numbers(builder: StreamsBuilder, topic: str = "numbers"):
    return builder.stream(topic, key=String("user"), value=Int64("number"))


def driver(builder: StreamsBuilder) -> TopologyTestDriver:
    return TopologyTestDriver(Application("nodes", builder))


def test_a_record_goes_through_all_processors_of_a_store_before_the_next_one():
    builder = StreamsBuilder().add_state_store(COUNTS)
    stream = numbers(builder)
    stream.process_values(Count, name="one").to_delta("one")
    stream.process_values(Count, name="two").to_delta("two")
    run = driver(builder)
    run.create_input_topic("numbers").pipe_key_value_list([("ann", 1), ("ann", 2)])
    assert run.create_output_table("one").read_values_to_list() == [1, 3]
    assert run.create_output_table("two").read_values_to_list() == [2, 4]


def test_the_dsl_and_added_nodes_mix():
    builder = StreamsBuilder()
    topology = builder.topology
    topology.add_source("more", "more", key=String("user"), value=Int64("number"))
    even = numbers(builder).filter(col("number") % 2 == 0)
    both = topology.add_processor("both", Pass, even.name, "more")
    both.map_values(value=col("value") * 10).to_delta("tens")
    topology.add_sink("all", "all", both, even.map_values(value="number"))
    run = driver(builder)
    run.create_input_topic("numbers").pipe_key_value_list([("ann", 1), ("ann", 2)])
    run.create_input_topic("more").pipe_input("bob", 3)
    assert run.create_output_table("tens").read_key_values_to_list() == [("ann", {"value": 20}), ("bob", {"value": 30})]
    assert run.create_output_table("all").read_key_values_to_list() == [("ann", 2), ("ann", 2), ("bob", 3)]


def test_a_record_may_go_to_one_child_of_either_kind():
    class Choose(Pass):
        def process(self, record):
            self.context.forward(record, child=["odd", "KSTREAM-FILTER-0000000002", "sink"][record.value % 3])

    builder = StreamsBuilder()
    numbers(builder)
    topology = builder.topology
    chosen = topology.add_processor("choose", Choose, "KSTREAM-SOURCE-0000000000")
    topology.add_processor("odd", Pass, "choose").to_delta("odd")
    chosen.filter(col("value") >= 0).to_delta("filtered")
    topology.add_sink("sink", "sunk", chosen)
    run = driver(builder)
    run.create_input_topic("numbers").pipe_key_value_list([("ann", number) for number in range(6)])
    found = [run.create_output_table(table).read_values_to_list() for table in ("odd", "filtered", "sunk")]
    assert found == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("shares", [False, True])
def test_a_record_may_go_to_one_sink_by_the_name_that_the_program_gives_it(shares):
    class Choose(Pass):
        stores = ("counts",) if shares else ()

        def process(self, record):
            self.context.forward(record, child=["table", "topic", "partner"][record.value % 3])

    builder = StreamsBuilder().add_state_store(COUNTS) if shares else StreamsBuilder()
    chosen = builder.topology.add_processor("choose", Choose, numbers(builder))
    chosen.to_delta("table")
    chosen.to("topic")
    chosen.to_http("https://example.org/numbers", name="partner")
    with driver(builder) as run:
        run.create_input_topic("numbers").pipe_key_value_list([("ann", number) for number in range(6)])
        assert run.create_output_table("table").read_values_to_list() == [0, 3]
        assert run.create_output_topic("topic").read_values_to_list() == [1, 4]
        assert [row["value"] for row in run.read_sink("partner")] == [2, 5]


def test_batch_processors_share_stores_record_by_record():
    class Batches(BatchProcessor[str, int, str, int]):
        stores = ("counts",)

        def init(self, context):
            self.counts = context.state_store("counts")

        def process_batch(self, rows):
            seen = [(self.counts.get(user) or 0) + 1 for user in rows["user"]]
            self.counts.put_all(zip(rows["user"], seen, strict=True))
            return rows.with_columns(value=seen[0])

    builder = StreamsBuilder().add_state_store(COUNTS)
    stream = numbers(builder)
    stream.process(Batches, name="batches").to_delta("batches")
    stream.process_values(Count, name="records").to_delta("records")
    run = driver(builder)
    run.create_input_topic("numbers").pipe_key_value_list([("ann", 1), ("ann", 2)])
    assert run.create_output_table("batches").read_values_to_list() == [1, 3]
    assert run.create_output_table("records").read_values_to_list() == [2, 4]


def test_a_failure_below_ends_the_epoch_even_if_the_processor_above_hides_it():
    class Hides(Pass):
        stores = ("counts",)

        def process(self, record):
            with suppress(Exception):
                self.context.forward(record)

    class Fails(Count):
        def process(self, record):
            raise ValueError("seven")

    builder = StreamsBuilder().add_state_store(COUNTS)
    numbers(builder).process(Hides, name="hides").process_values(Fails, name="fails")
    with pytest.raises(UserFunctionError, match=r"Fails.process.* failed on .*seven"):
        driver(builder).create_input_topic("numbers").pipe_input("ann", 7)


def test_processors_of_one_store_are_in_one_sub_topology():
    builder = StreamsBuilder().add_state_store(COUNTS)
    numbers(builder).process_values(Count)
    numbers(builder, "others").process_values(Count)
    (sub_topology,) = builder.build().sub_topologies
    assert [store.name for store in sub_topology.stores] == ["counts"]
    assert sub_topology.inputs == ("numbers", "others")


def refused(call) -> str:
    with pytest.raises(TopologyError) as caught:
        call()
    return str(caught.value)


def test_topics_that_lead_into_one_store_need_equal_numbers_of_partitions():
    builder = StreamsBuilder().add_state_store(COUNTS)
    numbers(builder).process_values(Count, name="one")
    others = numbers(builder, "others")
    others.process_values(Count, name="two")
    with pytest.raises(CoPartitioningError, match=r"numbers has 2, others has 3.*repartition the streams") as caught:
        builder.build().partition_counts({"numbers": 2, "others": 3})
    assert __file__.rpartition("/")[2] in str(caught.value)

    builder = StreamsBuilder().add_state_store(COUNTS)
    numbers(builder).process_values(Count, name="one")
    numbers(builder, "others").repartition("as-many", partitions=2).process_values(Count, name="two")
    assert builder.build().partition_counts({"numbers": 2, "others": 3}) == {0: 2, 1: 3}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda builder: builder.topology.add_processor("p", Pass, "numbers"),
            "'p' names the topic 'numbers' as its parent; name the node that reads it, 'KSTREAM-SOURCE-0000000000', or "
            "pass its stream",
        ),
        (
            lambda builder: builder.topology.add_processor("p", Pass, "nowhere"),
            "'p' names the parent 'nowhere', which is no stream of this topology; its streams are "
            "'KSTREAM-SOURCE-0000000000'; add the parent first, and of a table pass table.to_stream()",
        ),
        (
            lambda builder: builder.topology.add_processor("p", Pass),
            "'p' has no parent; name the nodes whose records it gets",
        ),
        (
            lambda builder: builder.topology.add_sink("s", "t", *["KSTREAM-SOURCE-0000000000"] * 2),
            "'s' names a parent twice; name each once",
        ),
        (
            lambda builder: builder.topology.add_sink("s", "t", numbers(StreamsBuilder())),
            "the two sides come from two StreamsBuilders",
        ),
        (
            lambda builder: builder.topology.add_sink(
                "s", "t", "KSTREAM-SOURCE-0000000000", builder.stream("words", key=String("user"), value=String("word"))
            ),
            "the sink 's' takes records with the columns user: String, number: Int64 and user: String, word: String; "
            "give both the same names and types with select_key(...) and map_values(...)",
        ),
        (
            lambda builder: builder.topology.add_sink(
                "s", "t", builder.topology.add_processor("ends", Ends, "KSTREAM-SOURCE-0000000000")
            ),
            "'s' names the parent 'ends', whose types say that it forwards nothing; give the types of the key and "
            "value that it forwards",
        ),
        (
            lambda builder: builder.topology.add_source(
                "KSTREAM-X-0000000001", "t", key=String("k"), value=String("v")
            ),
            "the source name 'KSTREAM-X-0000000001' is one that Weir makes up for nodes without a name; choose another",
        ),
        (
            lambda builder: [builder.topology.add_processor("p", Pass, numbers(builder, each)) for each in "ab"],
            "the name 'p' is given to two nodes; give each its own name",
        ),
        (
            lambda builder: [numbers(builder, each).process(Pass, name="p") for each in "ab"],
            "the name 'p' is given to two nodes; give each its own name",
        ),
        (
            lambda builder: numbers(builder, "more").process_values(Count, name="p"),
            "p is to be connected to the store 'counts', but no store is added; add it first, for example "
            'builder.add_state_store(KeyValueStore("counts", key=str, value=int))',
        ),
        (
            lambda builder: builder.add_state_store(COUNTS).topology.connect_processor_and_state_stores("p", "counts"),
            "the topology has no processor 'p' to connect to a store; it has no processors; name one with "
            'process(..., name="..."), or add it first',
        ),
        (
            lambda builder: builder.add_state_store("counts"),
            "add_state_store got 'counts'; pass a store with its types, for example "
            'KeyValueStore("counts", key=str, value=int)',
        ),
        (
            lambda builder: builder.add_state_store(COUNTS).add_state_store(COUNTS),
            "the store 'counts' is added twice; add it once, and name it in stores=['counts'] of each processor",
        ),
        (
            lambda builder: builder.add_state_store(COUNTS).build(),
            "the store 'counts' is connected to no processor; name it in process(..., stores=['counts']), or leave "
            "add_state_store out",
        ),
        (
            lambda builder: (
                builder.add_state_store(COUNTS),
                numbers(builder, "more").process_values(Count),
                numbers(builder, "others").group_by_key().count("counts"),
                builder.build(),
            ),
            "the store 'counts' is declared 2 times; give each its own name, or share one: "
            "builder.add_state_store(...), and its name in stores=[...]",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place_and_its_way_out(wrong, message):
    builder = StreamsBuilder()
    numbers(builder)
    text = refused(lambda: wrong(builder))
    assert message in text
    assert re.search(r"test_topology_builder\.py:\d+", text)


def test_two_processors_that_declare_one_store_are_told_how_to_share_it():
    builder = StreamsBuilder()
    for topic in ("one", "two"):
        numbers(builder, topic).process(Pass, stores=[COUNTS])
    assert "share one: builder.add_state_store(...), and its name in stores=[...]" in refused(builder.build)

    builder = StreamsBuilder().add_state_store(COUNTS)
    for topic in ("one", "two"):
        numbers(builder, topic).process(Pass, stores=["counts"])
    builder.build()


def test_a_processor_without_its_store_is_told_how_to_get_it():
    class Lacks(Pass):
        def init(self, context):
            context.state_store("counts")

    builder = StreamsBuilder().add_state_store(COUNTS)
    numbers(builder).process_values(Count)
    numbers(builder, "others").process(Lacks, name="lacks")
    with pytest.raises(
        UserFunctionError,
        match=r"lacks has no store 'counts'; no store is connected to it; connect it with stores=\['counts'\]",
    ):
        driver(builder).create_input_topic("others").pipe_input("ann", 1)
