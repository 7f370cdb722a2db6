"""Table-table joins, record by record (Kafka Streams features, sections 5 and 7)."""

from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from polars import col

from weir import Application, CoPartitioningError, Count, Json, StreamsBuilder, String
from weir.testing import TopologyTestDriver


@dataclass(frozen=True)
class Name:
    name: str


@dataclass(frozen=True)
class City:
    city: str


def tables(builder):
    return (
        builder.table("names", key=String("user"), value=Json(Name), store="names"),
        builder.table("cities", key=String("id"), value=Json(City), store="cities"),
    )


@contextmanager
def driven(program):
    """A function that pipes ``(topic, key, value, ms)`` and returns the resulting updates: key, name, city, ms."""
    builder = StreamsBuilder()
    program(*tables(builder)).to_stream().to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        topics = {name: driver.create_input_topic(name) for name in ("names", "cities")}
        out = driver.create_output_table("out")

        def pipe(topic, key, value, ms):
            topics[topic].pipe_input(key, value, timestamp_ms=ms)
            return [
                (r.row["user"], r.row["name"], r.row["city"], r.is_deleted, int(r.timestamp.timestamp() * 1000))
                for r in out.read_records()
            ]

        yield pipe


ANN, BOB, ROME, OSLO = Name("ann"), Name("bob"), City("rome"), City("oslo")


def test_an_inner_join_has_the_keys_of_both_and_the_greater_time():
    with driven(lambda names, cities: names.join(cities)) as pipe:
        assert pipe("names", "a", ANN, 5) == []
        assert pipe("cities", "a", ROME, 3) == [("a", "ann", "rome", False, 5)]
        assert pipe("names", "a", BOB, 9) == [("a", "bob", "rome", False, 9)]
        assert pipe("cities", "b", OSLO, 10) == []


def test_an_inner_join_sends_a_tombstone_while_the_other_side_has_a_row_even_twice():
    with driven(lambda names, cities: names.join(cities)) as pipe:
        pipe("names", "a", ANN, 5)
        pipe("cities", "a", ROME, 8)
        gone = ("a", None, None, True, 8)
        assert pipe("names", "a", None, 6) == [gone]
        assert pipe("names", "a", None, 7) == [gone]
        assert pipe("cities", "a", None, 9) == []


def test_a_left_join_has_the_keys_of_the_left_table():
    with driven(lambda names, cities: names.left_join(cities)) as pipe:
        assert pipe("cities", "a", ROME, 9) == []
        assert pipe("names", "a", ANN, 5) == [("a", "ann", "rome", False, 9)]
        assert pipe("cities", "a", None, 10) == [("a", "ann", None, False, 10)]
        assert pipe("cities", "a", None, 7) == [("a", "ann", None, False, 7)]
        assert pipe("names", "a", None, 6) == [("a", None, None, True, 6)]
        assert pipe("names", "a", None, 6) == []
        assert pipe("names", "b", None, 6) == []


def test_an_outer_join_has_the_keys_of_either_table():
    with driven(lambda names, cities: names.outer_join(cities)) as pipe:
        assert pipe("cities", "a", ROME, 9) == [("a", None, "rome", False, 9)]
        assert pipe("names", "a", ANN, 5) == [("a", "ann", "rome", False, 9)]
        assert pipe("cities", "a", None, 10) == [("a", "ann", None, False, 10)]
        assert pipe("names", "a", None, 11) == [("a", None, None, True, 11)]
        assert pipe("names", "a", None, 12) == []
        assert pipe("cities", "b", None, 12) == []


@pytest.mark.parametrize("join", ["join", "left_join", "outer_join"])
def test_null_keys_are_dropped(join):
    with driven(lambda names, cities: getattr(names, join)(cities)) as pipe:
        assert pipe("names", None, ANN, 5) == pipe("cities", None, ROME, 5) == []


def test_a_row_that_a_filter_removes_does_not_exist_for_the_join():
    with driven(lambda names, cities: names.join(cities.filter(col("city") != "oslo"))) as pipe:
        pipe("names", "a", ANN, 1)
        assert pipe("cities", "a", OSLO, 2) == [("a", None, None, True, 2)]
        assert pipe("cities", "a", ROME, 3) == [("a", "ann", "rome", False, 3)]
        assert pipe("cities", "a", OSLO, 4) == [("a", None, None, True, 4)]
        assert pipe("names", "a", BOB, 5) == []


def test_a_filter_that_knows_the_old_row_does_not_forward_changes_from_nothing_to_nothing():
    with driven(lambda names, cities: names.outer_join(cities.filter(col("city") != "oslo"))) as pipe:
        pipe("names", "a", ANN, 1)
        assert pipe("cities", "a", OSLO, 2) == []
        assert pipe("cities", "a", ROME, 3) == [("a", "ann", "rome", False, 3)]
        assert pipe("cities", "a", OSLO, 4) == [("a", "ann", None, False, 4)]
        assert pipe("cities", "a", OSLO, 5) == []


def test_a_delta_table_of_a_join_has_the_newest_row_of_each_key():
    builder = StreamsBuilder()
    names, cities = tables(builder)
    names.outer_join(cities).to_delta("out")
    (spec,) = builder.build().table_specs()
    assert spec.keys == ("user",)


def test_an_aggregate_joins_as_a_table():
    builder = StreamsBuilder()
    visits = builder.stream("visits", key=String("who"), value=Json(City)).group_by_key().agg("visits", n=Count())
    visits.left_join(tables(builder)[0]).to_stream().to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        driver.create_input_topic("names").pipe_input("a", ANN, timestamp_ms=1)
        for ms in (2, 3):
            driver.create_input_topic("visits").pipe_input("a", ROME, timestamp_ms=ms)
        assert driver.create_output_table("out").read_rows() == [
            dict(who="a", n=1, name="ann"),
            dict(who="a", n=2, name="ann"),
        ]


def test_tables_that_are_joined_need_equal_partition_counts():
    builder = StreamsBuilder()
    names, cities = tables(builder)
    names.left_join(cities.map_values(city="city")).to_stream().to_delta("out")
    topology = builder.build()
    with pytest.raises(CoPartitioningError, match="cities has 2, names has 3"):
        topology.partition_counts({"names": 3, "cities": 2})
