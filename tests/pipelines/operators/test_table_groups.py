"""Tables grouped by another key (Kafka Streams features, section 3)."""

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars import col

from tests.examples import examples
from tests.pipelines.in_turn import in_turn
from tests.pipelines.memory_session import MemorySession
from weir import (
    Application,
    Count,
    Json,
    Last,
    Max,
    MaxBy,
    Mean,
    StreamsBuilder,
    String,
    StringAgg,
    Sum,
    TopK,
    TopologyError,
    ValueCounts,
    Variance,
)
from weir.pipelines.tasks.processor import TaskProcessor
from weir.testing import TopologyTestDriver


@dataclass(frozen=True)
class Town:
    country: str | None
    people: int | None


@dataclass(frozen=True)
class Total:
    people: int
    log: str


@contextmanager
def driven(program):
    """A function that pipes ``(key, value, ms)`` and returns the resulting updates."""
    builder = StreamsBuilder()
    program(builder.table("towns", key=String("town"), value=Json(Town), store="towns")).to_stream().to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        topic, out = driver.create_input_topic("towns"), driver.create_output_table("out")

        def pipe(key, value, ms=1):
            topic.pipe_input(key, value, timestamp_ms=ms)
            return [
                tuple(r.row.values()) if not r.is_deleted else (*r.row.values(), "deleted") for r in out.read_records()
            ]

        yield pipe


def test_an_update_leaves_its_group_and_enters_another():
    with driven(
        lambda towns: towns.group_by("country").agg("s", n=Count(), people=Sum("people"), mean=Mean("people"))
    ) as pipe:
        assert pipe("rome", Town("it", 4)) == [("it", 1, 4, 4.0)]
        assert pipe("bari", Town("it", 2)) == [("it", 2, 6, 3.0)]
        assert pipe("bari", Town("fr", None)) == [("it", 1, 4, 4.0), ("fr", 1, 0, None)]


def test_an_update_within_its_group_is_one_update():
    with driven(lambda towns: towns.group_by("country").agg("s", n=Count(), people=Sum("people"))) as pipe:
        pipe("rome", Town("it", 4))
        assert pipe("rome", Town("it", 7)) == [("it", 1, 7)]


def test_a_delete_only_subtracts():
    with driven(lambda towns: towns.group_by("country").count("s")) as pipe:
        pipe("rome", Town("it", 4))
        assert pipe("rome", None) == [("it", 0)]
        assert pipe("rome", None) == []
        assert pipe("oslo", None) == []


def test_a_row_whose_new_key_is_null_is_in_no_group():
    with driven(lambda towns: towns.group_by("country").count("s")) as pipe:
        assert pipe("rome", Town(None, 4)) == []
        assert pipe("rome", Town("it", 4)) == [("it", 1)]
        assert pipe("rome", Town(None, 4)) == [("it", 0)]


def add(key: str, town: Town, total: Total) -> Total:
    return Total(total.people + town.people, total.log + "+")


def subtract(key: str, town: Town, total: Total) -> Total | None:
    return None if town.people == 13 else Total(total.people - town.people, total.log + "-")


def test_functions_subtract_the_old_value_then_add_the_new():
    with driven(lambda towns: towns.group_by("country").aggregate("s", lambda: Total(0, ""), add, subtract)) as pipe:
        assert pipe("rome", Town("it", 4)) == [("it", 4, "+")]
        assert pipe("rome", Town("it", 13)) == [("it", 13, "+-+")]
        assert pipe("rome", None) == [("it", None, None, "deleted")]
        assert pipe("bari", Town("it", 1)) == [("it", 1, "+")]


def more(one: Town, other: Town) -> Town:
    return Town(one.country, one.people + other.people)


def less(one: Town, other: Town) -> Town:
    return Town(one.country, one.people - other.people)


def test_the_first_row_of_a_group_is_its_first_result():
    with driven(lambda towns: towns.group_by(land=col("country")).reduce("s", more, less)) as pipe:
        assert pipe("rome", Town("it", 4)) == [("it", "it", 4)]
        assert pipe("bari", Town("it", 3)) == [("it", "it", 7)]
        assert pipe("rome", Town("it", 1)) == [("it", "it", 4)]


def test_the_time_of_a_group_never_goes_back():
    builder = StreamsBuilder()
    towns = builder.table("towns", key=String("town"), value=Json(Town), store="towns")
    towns.group_by("country").count("s").to_stream().to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        topic, out = driver.create_input_topic("towns"), driver.create_output_table("out")
        topic.pipe_records([("rome", Town("it", 1), 9), ("bari", Town("it", 1), 3)])
        assert [int(r.timestamp.timestamp() * 1000) for r in out.read_records()] == [9, 9]


def test_the_time_of_a_group_survives_a_subtractor_that_leaves_nothing_before_the_adder():
    """Within one update; a group that an earlier update emptied starts over."""
    builder = StreamsBuilder()
    towns = builder.table("towns", key=String("town"), value=Json(Town), store="towns")
    towns.group_by("country").aggregate("s", lambda: Total(0, ""), add, subtract).to_stream().to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        topic, out = driver.create_input_topic("towns"), driver.create_output_table("out")
        topic.pipe_records(
            [("rome", Town("it", 13), 47), ("rome", Town("it", 13), 1), ("rome", None, 2), ("bari", Town("it", 1), 3)]
        )
        assert [(r.row["log"], int(r.timestamp.timestamp() * 1000)) for r in out.read_records()] == [
            ("+", 47),
            ("+", 47),
            (None, 47),
            ("+", 3),
        ]


@pytest.mark.parametrize(
    "aggregate",
    [
        Max("people"),
        Last("people", by_time=True),
        MaxBy("people", by="people"),
        TopK("people", 2),
        StringAgg(col("people").cast(pl.String), ", ", 9),
        ValueCounts(col("people").cast(pl.String), 9),
        Variance("people"),
    ],
    ids=lambda aggregate: type(aggregate).__name__,
)
def test_aggregates_that_cannot_subtract_are_refused_with_the_way_out(aggregate):
    towns = StreamsBuilder().table("towns", key=String("town"), value=Json(Town), store="towns")
    with pytest.raises(TopologyError, match=rf"n={type(aggregate).__name__}\(.*cannot subtract.*aggregate.*subtractor"):
        towns.group_by("country").agg("s", n=aggregate)


PROGRAMS = {
    "columns": lambda t: t.group_by("country").agg("s", n=Count(), people=Sum("people"), mean=Mean("people")),
    "functions": lambda t: (
        t.filter(col("people") > 0).group_by("country").aggregate("s", lambda: Total(0, ""), add, subtract)
    ),
}
ROWS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.one_of(st.none(), st.tuples(st.sampled_from(["it", "fr", None]), st.sampled_from([1, 2, 13]))),
    ),
    min_size=1,
    max_size=20,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=examples(12))
@given(rows=ROWS, cuts=st.sets(st.integers(1, 19), max_size=4))
def test_any_cut_into_batches_gives_what_single_records_give(name, rows, cuts):
    builder = StreamsBuilder()
    towns = builder.table("towns", key=String("town"), value=Json(Town), store="towns")
    PROGRAMS[name](towns).to_stream().to_delta("out")
    topology = builder.build()
    frame = pl.DataFrame(
        [
            (town, *(value or (None, None)), index % 7, 0, index, value is None)
            for index, (town, value) in enumerate(rows)
        ],
        orient="row",
        schema={
            "town": pl.String,
            "country": pl.String,
            "people": pl.Int64,
            "_ts": pl.Int64,
            "_partition": pl.Int32,
            "_offset": pl.Int64,
            "_deleted": pl.Boolean,
        },
    )

    def outcome(bounds):
        first, second = (TaskProcessor(sub_topology) for sub_topology in topology.sub_topologies)
        sessions, clocks, facts = (MemorySession(), MemorySession()), [{}, {}], []
        for start, end in pairwise(bounds):
            moved = first.run(in_turn({"towns": frame[start:end]}), sessions[0], clocks[0], 0)
            done = second.run(in_turn(moved.edges), sessions[1], clocks[1], 0)
            clocks = [moved.clocks, done.clocks]
            facts += [row for rows in done.sinks.values() for row in rows.drop("_seq").to_dicts()]
        return facts, [session.rows for session in sessions]

    facts, stores = outcome([0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)])
    single_facts, single_stores = outcome(range(len(rows) + 1))
    assert facts == single_facts
    assert [{name: rows for name, rows in each.items() if rows} for each in stores] == [
        {name: rows for name, rows in each.items() if rows} for each in single_stores
    ]
