"""What leaves for a Kafka topic: bytes, topics, partitions and times as declared."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from polars import col

from weir import (
    Application,
    Float64,
    Int32,
    Int64,
    Json,
    StreamsBuilder,
    String,
    TimeWindowed,
    TimeWindows,
    TopologyError,
    UserFunctionError,
)
from weir.pipelines.sinks.kafka import BY_KEY
from weir.testing import TestRecord, TopologyTestDriver

NINE = datetime(2026, 1, 1, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Order:
    item: str
    cents: int | None


@dataclass(frozen=True)
class Named:
    item: str | None


@pytest.fixture
def builder():
    return StreamsBuilder()


@pytest.fixture
def orders(builder):
    return builder.stream("orders", key=String("customer"), value=Json(Order))


def outgoing(builder, **columns):
    """What the only sink sends for one row of the stream."""
    (node,) = builder.build().sinks
    row = {"customer": "ann", "item": "tea", "cents": 5, "_ts": 7, "_deleted": False, "_partition": 0, "_offset": 3}
    return node.sink.outgoing(pl.DataFrame({**row, **columns})).rows(named=True)


def test_keys_and_values_are_written_as_other_programs_read_them(builder, orders):
    orders.to("all")
    assert outgoing(builder) == [
        {
            "topic": "all",
            "partition": BY_KEY,
            "key": b"ann",
            "value": b'{"item":"tea","cents":5}',
            "time_ms": 7,
            "headers": None,
        }
    ]


def test_a_tombstone_has_no_value_and_a_null_key_is_none(builder, orders):
    orders.to("all")
    (row,) = outgoing(builder, customer=pl.Series([None], dtype=pl.String()), item=None, cents=None, _deleted=True)
    assert (row["key"], row["value"]) == (None, None)


def test_a_number_is_written_as_kafkas_own_serializers_do(builder):
    builder.stream("stock", key=Int64("item"), value=Float64("weight")).to("all")
    (node,) = builder.build().sinks
    (row,) = node.sink.outgoing(pl.DataFrame({"item": [258], "weight": [0.5], "_ts": [7], "_deleted": [False]})).rows(
        named=True
    )
    assert (row["key"], row["value"]) == (bytes([0] * 6 + [1, 2]), b"\x3f\xe0" + bytes(6))


def test_numbers_are_null_where_a_record_has_no_key_no_value_or_is_a_tombstone(builder):
    serdes = {"key": Int32("item"), "value": Int32("count")}
    builder.stream("stock", **serdes).to("all", **serdes)
    (node,) = builder.build().sinks
    records = [(1, 2, False), (None, -3, False), (4, None, False), (5, 6, True), (7, 1 << 40, True), (8, 9, False)]
    keys, values, gone = zip(*records, strict=True)
    rows = pl.DataFrame(
        {"item": keys, "count": values, "_ts": 7, "_deleted": gone},
        schema_overrides={"item": pl.Int64, "count": pl.Int64},
    )
    sent = node.sink.outgoing(rows)
    assert sent["key"].to_list() == [Int32().encode(key) for key in keys]
    assert sent["value"].to_list() == [None if is_gone else Int32().encode(value) for _, value, is_gone in records]


def test_each_record_may_have_its_topic_and_its_partition(builder, orders):
    orders.to(pl.concat_str(pl.lit("of-"), col("item")), partition=col("cents") % 4, name="by_item")
    with TopologyTestDriver(Application("app", builder)) as driver:
        topic = driver.create_input_topic("orders", start=NINE, auto_advance=MINUTE)
        topic.pipe_key_value_list([("ann", Order("tea", 6)), ("bob", Order("jam", None))])
        assert driver.create_output_topic("of-tea").read_records() == [TestRecord("ann", Order("tea", 6), NINE, 2)]
        assert driver.create_output_topic("of-jam").read_records() == [
            TestRecord("bob", Order("jam", None), NINE + MINUTE, None)
        ]


def of_item(customer: str, order: Order | None) -> str:
    return f"of-{order.item}" if order else f"gone-{customer}"


def test_a_function_of_key_and_value_may_name_the_topic(builder, orders):
    orders.to(of_item, name="by_item")
    counts = orders.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(MINUTE)).count("n").to_stream()
    counts.to(lambda key, n: f"{key.key}-{n}", key=TimeWindowed(String("customer"), size=MINUTE), name="counts")
    assert "(topic: by of_item)" in builder.build().describe()
    with TopologyTestDriver(Application("app", builder)) as driver:
        topic = driver.create_input_topic("orders", start=NINE)
        topic.pipe_key_value_list([("ann", Order("tea", 6)), ("bob", Order("jam", None)), ("ann", None)])
        assert driver.create_output_topic("of-tea").read_values_to_list() == [Order("tea", 6)]
        assert driver.create_output_topic("of-jam").read_values_to_list() == [Order("jam", None)]
        assert driver.create_output_topic("gone-ann").read_key_values_to_list() == [("ann", None)]
        assert [driver.create_output_topic(f"{name}-1").get_queue_size() for name in ("ann", "bob")] == [1, 1]


NO_NAMES = ["", "of tea", "tä", "x" * 250, "."]


@pytest.mark.parametrize("found", [None, 3, *NO_NAMES])
def test_a_function_that_names_no_topic_is_an_error_of_its_record(builder, orders, found):
    orders.to(lambda customer, order: "good" if customer == "ann" else found, name="by_item")
    assert builder.build().sub_topologies[0].calls_functions
    with TopologyTestDriver(Application("app", builder, on_processing_error="dead_letter")) as driver:
        topic = driver.create_input_topic("orders", start=NINE)
        topic.pipe_key_value_list([("ann", Order("tea", 6)), ("bob", Order("jam", 1)), ("ann", Order("nut", 2))])
        assert driver.create_output_topic("good").get_queue_size() == 2
        (letter,) = driver.dead_letters
        assert letter.stage == "production"
        assert f"it returned {found!r} for the topic, which has to be a name of up to 249 letters" in letter.reason


@pytest.mark.parametrize("item", [None, *NO_NAMES])
def test_an_expression_that_names_no_topic_is_an_error_of_its_record(builder, item):
    orders = builder.stream("orders", key=String("customer"), value=Json(Named))
    orders.to(col("item"), name="by_item")
    with TopologyTestDriver(Application("app", builder, on_processing_error="dead_letter")) as driver:
        topic = driver.create_input_topic("orders", start=NINE)
        topic.pipe_key_value_list([("ann", Named("tea")), ("bob", Named(item)), ("ann", Named("tea"))])
        assert driver.create_output_topic("tea").get_queue_size() == 2
        (letter,) = driver.dead_letters
        assert (letter.stage, letter.key) == ("production", b"bob")
        assert f"the expression for the topic gives {item!r}, which has to be a name of up to 249" in letter.reason


def test_windowed_keys_take_the_serde_that_the_program_names(builder, orders):
    windows = TimeWindows.of_size_with_no_grace(MINUTE)
    counts = orders.group_by_key().windowed_by(windows).count("n").to_stream()
    with pytest.raises(TopologyError, match=r"'all' gets windowed keys.*TimeWindowed\(String\(\), size"):
        counts.to("all")
    counts.to("all", key=TimeWindowed(String("customer"), size=MINUTE))
    with TopologyTestDriver(Application("app", builder)) as driver:
        driver.create_input_topic("orders").pipe_input("ann", Order("tea", 6), timestamp=NINE)
        ((key, value),) = driver.create_output_topic("all").read_key_values_to_list()
        assert (key.key, key.window_start, value) == ("ann", NINE, 1)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            {"value": String()},
            r"writes its value with String\(\), which has value \(String\), but the records have item",
        ),
        ({"key": Int64()}, r"writes its key with Int64\(\)"),
        ({"partition": col("item")}, "expression for the partition gives String; it has to give a whole number"),
        ({"topic": col("item")}, 'needs a name for the sink; add name="..."'),
        ({"topic": of_item}, 'a function for the topic needs a name for the sink; add name="..."'),
        ({"topic": lambda order: "x", "name": "x"}, r"the sink 'x': function .*is called with \(key, value\)"),
        ({"topic": 3, "name": "x"}, r"to\(\) got 3 for the topic; pass its name, or a polars expression or a function"),
        ({"topic": None}, r"to\(\) got None for the topic; pass its name"),
        ({"partition": "x"}, r"the sink 'all': partition is 'x'; pass a polars expression .*, for example col\("),
        ({"key": str}, r"the sink 'all': key is <class 'str'>; pass a serde, for example String\("),
        ({"value": String}, r"the sink 'all': value is <class .*String'>; pass a serde, for example String\("),
        ({"topic": col("cents"), "name": "x"}, "expression for the topic gives Int64; it has to give text"),
        ({"topic": ""}, "topic"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_program_is_built(orders, arguments, reason):
    with pytest.raises(TopologyError, match=reason):
        orders.to(**{"topic": "all", **arguments})


def test_two_sinks_of_one_name_are_refused(builder, orders):
    orders.to("all")
    orders.filter(col("cents") > 1).to("all")
    with pytest.raises(TopologyError, match="the sink 'all' is declared 2 times; give each its own name, as in name="):
        builder.build()


def test_one_topic_may_be_written_by_several_sinks(builder, orders):
    orders.to("all")
    orders.filter(col("cents") > 10).to("all", name="again")
    driver = TopologyTestDriver(Application("shop", builder))
    driver.create_input_topic("orders").pipe_key_value_list([("ann", Order("pen", 5)), ("ann", Order("ink", 50))])
    assert len(driver.create_output_topic("all").read_key_values_to_list()) == 3


def test_a_value_that_cannot_be_written_is_named_with_its_record(builder, orders):
    orders.map_values(cents=col("cents")).to("all", value=Int32("cents"))
    reason = r"the sink 'all': .*Int32.* failed on the record of key customer='ann'.*: the value: .*writes 4 bytes"
    with pytest.raises(UserFunctionError, match=reason):
        outgoing(builder, cents=1 << 40)
