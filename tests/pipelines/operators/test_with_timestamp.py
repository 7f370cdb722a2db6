"""Records of a stream get other times, and everything downstream goes by these; against plain models."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars import col

from tests.examples import examples
from tests.pipelines.operators.one_topic import CUTS, Event, batches, build, run
from tests.pipelines.operators.programs import in_ms
from tests.pipelines.spark.inline import Place, Topics
from weir import (
    Application,
    InvalidTimestampError,
    JoinWindows,
    Json,
    KStream,
    StreamsBuilder,
    String,
    TimeWindows,
    TopologyError,
)
from weir.pipelines.backfill.outputs import day_outputs
from weir.pipelines.spark.errors import TaskFailedError
from weir.state.commit.tables import read_rows
from weir.testing import TopologyTestDriver

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEN = TimeWindows.of_size_with_no_grace(timedelta(milliseconds=10))


@dataclass(frozen=True)
class Visit:
    left_ms: int | None = None
    left_at: datetime | None = None
    day: date | None = None


def left_ms(user: str | None, visit: Visit | None) -> int | None:
    return visit.left_ms if visit else None


def left_at(user: str | None, visit: Visit | None) -> datetime | None:
    return visit.left_at if visit else None


def a_second_later(user: str | None, visit: Visit | None, time: datetime) -> datetime:
    return time + timedelta(seconds=1)


def program(describe) -> Application:
    builder = StreamsBuilder()
    describe(builder, builder.stream("visits", key=String("user"), value=Json(Visit)))
    return Application("test", builder, commit_interval=timedelta(milliseconds=1))


def times(how, *visits, **options):
    """The times in ms of records that were piped at 5 s."""
    with TopologyTestDriver(program(lambda b, s: s.with_timestamp(how, **options).to_delta("out"))) as driver:
        for visit in visits:
            driver.create_input_topic("visits").pipe_input("ann", visit, timestamp_ms=5_000)
        return [in_ms(record.timestamp) for record in driver.create_output_table("out").read_records()], driver.counts


AT = EPOCH + timedelta(milliseconds=1_234)


@pytest.mark.parametrize(
    ("how", "visit", "expected"),
    [
        ("left_ms", Visit(left_ms=7), 7),
        (col("left_ms") * 1000, Visit(left_ms=7), 7_000),
        ("left_at", Visit(left_at=AT), 1_234),
        ("day", Visit(day=date(1970, 1, 2)), 86_400_000),
        (left_ms, Visit(left_ms=7), 7),
        (left_at, Visit(left_at=AT), 1_234),
        (a_second_later, Visit(), 6_000),
        (a_second_later, None, 6_000),
        (pl.lit(0), Visit(), 0),
    ],
)
def test_a_record_gets_the_time_of_a_column_an_expression_or_a_function(how, visit, expected):
    assert times(how, visit)[0] == [expected]


@pytest.mark.parametrize("how", ["left_ms", left_ms])
@pytest.mark.parametrize(
    ("visit", "reason"),
    [
        (Visit(), "no timestamp"),
        (None, "no timestamp"),
        (Visit(left_ms=-1), "negative timestamp -1"),
        (Visit(left_ms=1 << 60), "is after the year 9999; it must be in milliseconds"),
    ],
)
def test_an_invalid_time_stops_the_run_and_can_be_skipped_instead(how, visit, reason):
    with pytest.raises(InvalidTimestampError, match=reason) as raised:
        times(how, Visit(left_ms=3), visit)
    error = pickle.loads(pickle.dumps(raised.value))
    assert "gave the record of topic 'visits', partition 0, offset 1, key user='ann'" in str(error)
    assert 'with_timestamp(..., on_invalid="skip")' in str(error)
    found, counts = times(how, Visit(left_ms=3), visit, Visit(left_ms=2), on_invalid="skip")
    assert (found, counts["invalid_timestamps"]) == ([3, 2], 1)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (lambda s: s.with_timestamp("user"), "timestamp has type String; it must be a datetime, a date, or an integer"),
        (lambda s: s.with_timestamp("nowhere"), "nowhere"),
        (lambda s: s.with_timestamp(7), "pass a polars expression or a function"),
        (lambda s: s.with_timestamp(lambda user, visit: 1), "no return annotation"),
        (lambda s: s.with_timestamp("left_ms", on_invalid="drop"), 'must be "fail" or "skip"'),
    ],
)
def test_what_gives_no_times_is_refused(how, words):
    with pytest.raises(TopologyError, match=words):
        program(lambda b, s: how(s))


def test_the_joins_and_tables_downstream_go_by_the_new_times():
    near = JoinWindows.of_time_difference_with_no_grace(timedelta(milliseconds=1))

    def describe(builder, visits):
        other = builder.stream("calls", key=String("user"), value=Json(Event))
        visits.with_timestamp("left_ms").join(other, windows=near, store="near").to_delta("joined")
        rates = builder.table(
            "rates", key=String("user"), value=Json(Event), store="rates", history_retention=timedelta(days=1)
        )
        visits.with_timestamp("left_ms").join(rates).to_delta("rated")

    with TopologyTestDriver(program(describe)) as driver:
        for amount, time in ((1, 0), (2, 50)):
            driver.create_input_topic("rates").pipe_input("ann", Event(amount, "x"), timestamp_ms=time)
        driver.create_input_topic("calls").pipe_input("ann", Event(9, "x"), timestamp_ms=41)
        driver.create_input_topic("visits").pipe_input("ann", Visit(left_ms=40), timestamp_ms=5_000)
        joined = driver.create_output_table("joined").read_records()
        assert [(record.row["amount"], in_ms(record.timestamp)) for record in joined] == [(9, 41)]
        rated = driver.create_output_table("rated").read_records()
        assert [(record.row["amount"], in_ms(record.timestamp)) for record in rated] == [(1, 40)]


def by_amount(stream: KStream) -> KStream:
    return stream.with_timestamp("amount", on_invalid="skip")


RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]),
        st.integers(0, 60),
        st.one_of(st.none(), st.tuples(st.one_of(st.none(), st.integers(-2, 40)), st.sampled_from("xyz"))),
    ),
    min_size=1,
    max_size=30,
)


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(records=RECORDS, cuts=CUTS)
def test_windows_open_and_close_by_the_new_times_whatever_the_batches(records, cuts):
    def describe(stream):
        by_amount(stream).group_by_key().windowed_by(TEN).count("n").to_stream().to_delta("out")

    expected, counts, stream_time, late, skipped = [], {}, -1, 0, 0
    for key, _, value in records:
        time = value and value[0]
        if time is None or time < 0:
            skipped += 1
            continue
        if key is None:
            continue
        stream_time, start = max(stream_time, time), time - time % 10
        if start + 10 <= stream_time:
            late += 1
            continue
        count, newest = counts.get((key, start), (0, 0))
        counts[key, start] = count + 1, max(newest, time)
        expected.append((key, start, count + 1, max(newest, time)))
    found = run(build(describe), batches(records, cuts))
    rows = found["facts"].get("out", [])
    assert [(row["user"], in_ms(row["window_start"]), row["count"], in_ms(row["_ts"])) for row in rows] == expected
    assert (found["counts"].get("late_records", 0), found["counts"].get("invalid_timestamps", 0)) == (late, skipped)


def test_new_times_cross_a_repartition_and_are_counted_in_epochs_of_any_size(tmp_path):
    def describe(builder, visits):
        moved = visits.with_timestamp("left_ms", on_invalid="skip").repartition("moved")
        moved.to_delta("out")

    def records(*numbers):
        return [(b"u", json.dumps({"left_ms": number}).encode(), 5_000) for number in numbers]

    place = Place(program(describe), Topics({("visits", 0): records(30, 10, None, 20, -1)}), tmp_path, max_records=2)
    place.run()
    rows = read_rows(place.warehouse / "test" / "out").sort("_epoch", "_seq")
    assert rows["_ts"].dt.epoch("ms").to_list() == [30, 10, 20]
    place.application = program(lambda b, s: s.with_timestamp("left_ms").repartition("moved").to_delta("out"))
    place.topics.rows["visits", 0] += records(40, None)
    with pytest.raises(TaskFailedError, match="gave the record of topic 'visits', partition 0, offset 6"):
        place.run()


def test_a_backfill_of_days_leaves_out_what_has_other_times():
    def describe(builder, visits):
        visits.to_delta("as_read")
        visits.with_timestamp("left_ms").to_delta("moved")

    outputs = day_outputs(program(describe).topology)
    assert [output.table for output in outputs.swapped] == ["as_read"]
    assert "other times" in outputs.left_out["moved"]
