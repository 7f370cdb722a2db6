"""Approximate aggregates, collected lists, and every update in a table."""

from datetime import timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings

from tests.examples import examples
from tests.pipelines.in_turn import in_turn
from tests.pipelines.memory_session import MemorySession
from tests.pipelines.operators.one_topic import CUTS, RECORDS, batched_and_single, build, frame
from tests.pipelines.operators.programs import Click, driven
from weir import (
    ApproxDistinct,
    ApproxQuantiles,
    BufferConfig,
    Collect,
    SessionWindows,
    StreamsBuilder,
    String,
    Suppressed,
    TopologyError,
)
from weir.pipelines.serdes import Int64
from weir.pipelines.tasks.processor import TaskProcessor

SESSIONS = SessionWindows.of_inactivity_gap_and_grace(timedelta(milliseconds=4), timedelta(milliseconds=5))
SKETCHES = dict(
    words=ApproxDistinct("word"),
    amounts=ApproxDistinct("amount"),
    middle=ApproxQuantiles("amount", at=(0, 0.5, 1)),
    first=Collect("amount", 3),
    all=Collect("word", 100),
)

PROGRAMS = {
    "table": lambda s: s.group_by_key().agg("s", **SKETCHES).to_delta("out"),
    "every update": lambda s: s.group_by_key().agg("s", **SKETCHES).to_delta("out", emit="record"),
    "sessions": lambda s: s.group_by_key().windowed_by(SESSIONS).agg("s", **SKETCHES).to_stream().to_delta("out"),
    "final sessions": lambda s: (
        s.group_by_key()
        .windowed_by(SESSIONS)
        .agg("s", **SKETCHES)
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_delta("out")
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=examples(10))
@given(records=RECORDS, cuts=CUTS)
def test_any_cut_into_batches_gives_what_single_records_give(name, records, cuts):
    batched, single = batched_and_single(build(PROGRAMS[name]), records, cuts)
    assert batched["facts"] == single["facts"]  # sketches of equal content may differ in their bytes
    assert batched["counts"] == single["counts"]


def test_nulls_alone_give_null_quantiles_no_distinct_values_and_an_empty_list():
    def program(clicks):
        clicks.group_by_key().agg(
            "a",
            pages=ApproxDistinct("page"),
            slow=ApproxQuantiles("ms"),
            took=ApproxDistinct("ms"),
            first=Collect("ms", 2),
        ).to_delta("out")

    with driven(program) as (topic, out, driver):
        topic.pipe_input("a", Click("x"), timestamp_ms=1)
        assert out.read_row() == dict(user="a", pages=1, slow=None, took=0, first=[])
        for page, ms in (("y", 7), ("x", 3), ("y", 9)):
            topic.pipe_input("a", Click(page, ms), timestamp_ms=1)
        assert out.read_rows()[-1] == dict(user="a", pages=2, slow=[7.0, 9.0, 9.0], took=3, first=[7, 3])
        assert driver.get_key_value_store("a").get("a") == dict(pages=2, slow=[7.0, 9.0, 9.0], took=3, first=[7, 3])


def test_sketches_of_many_values_stay_small_and_accurate_whatever_the_batches():
    builder = StreamsBuilder()
    (
        builder.stream("in", key=String("user"), value=Int64("n"))
        .group_by_key()
        .agg("s", distinct=ApproxDistinct("n"), at=ApproxQuantiles("n", at=(0.1, 0.5, 0.9)))
        .to_delta("out")
    )
    processor, session, clocks = TaskProcessor(builder.build().sub_topologies[0]), MemorySession(), {}
    numbers = np.random.default_rng(7).permutation(np.repeat(np.arange(20_000), 2))
    for part in np.array_split(numbers, 7):
        rows = pl.DataFrame(
            {"user": ["a"] * len(part), "n": part, "_ts": 0, "_partition": 0, "_offset": 0, "_deleted": False},
            schema_overrides={"_partition": pl.Int32, "_ts": pl.Int64, "_offset": pl.Int64},
        )
        output = processor.run(in_turn({"in": rows}), session, clocks, 0)
        clocks = output.clocks
    row = output.sinks["out"].row(0, named=True)
    assert row["distinct"] == pytest.approx(20_000, rel=0.05)
    assert row["at"] == pytest.approx([2_000, 10_000, 18_000], abs=600)
    assert len(next(iter(session.rows["s"].values()))) < 10_000


def test_a_table_keeps_every_update_if_asked_to():
    batch = frame([("a", 1, (1, "x")), ("a", 2, (2, "y")), ("b", 3, (3, "z"))])
    for emit, counts in (("newest", [("a", 2), ("b", 1)]), ("record", [("a", 1), ("a", 2), ("b", 1)])):
        sub_topology = build(lambda s, e=emit: s.group_by_key().count("c").to_delta("out", emit=e))
        rows = TaskProcessor(sub_topology).run(in_turn({"events": batch}), MemorySession(), {}, 0).sinks["out"]
        assert sorted(rows.select("user", "count").rows()) == counts


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda s: s.group_by_key().agg("s", n=ApproxQuantiles("word")), "needs numbers"),
        (lambda s: s.group_by_key().agg("s", n=ApproxQuantiles("amount", at=(2,))), "between 0 and 1"),
        (
            lambda s: s.group_by_key().agg("s", n=Collect("amount", 0)),
            "limit of n is 0; it must be a whole number from 1",
        ),
        (lambda s: s.group_by_key().count("s").to_delta("out", emit="all"), "newest"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(TopologyError, match=words):
        build(make)
