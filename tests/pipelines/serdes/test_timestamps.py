"""Which time a record has (Kafka Streams features, section 1), one record at a time and cut into batches."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars import col

from tests.examples import examples
from weir import (
    Application,
    BadInputError,
    Count,
    FailOnInvalidTimestamp,
    Json,
    LogAndSkipOnInvalidTimestamp,
    StreamsBuilder,
    String,
    TimeWindows,
    TopologyError,
    UsePartitionTimeOnInvalidTimestamp,
    WallclockTimestampExtractor,
)
from weir.pipelines.serdes.source import RAW_SCHEMA, decode_source
from weir.pipelines.tasks.dead_letters import dead_letter_frame
from weir.testing import TopologyTestDriver

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Order:
    at: datetime | None = None
    ms: int | None = None
    day: date | None = None


def driver_of(timestamp, **settings):
    builder = StreamsBuilder()
    builder.stream("orders", key=String("user"), value=Json(Order), timestamp=timestamp).to_delta("out")
    return TopologyTestDriver(Application("test", builder, **settings), initial_wall_clock=NOON)


def times(driver):
    return [int(record.timestamp.timestamp() * 1000) for record in driver.create_output_table("out").read_records()]


def pipe(driver, *records):
    driver.create_input_topic("orders").pipe_records([("a", order, ms) for order, ms in records])


@pytest.mark.parametrize("timestamp", [None, FailOnInvalidTimestamp()])
def test_by_default_a_record_has_its_own_time_and_a_negative_one_stops_the_run(timestamp):
    with driver_of(timestamp) as driver:
        pipe(driver, (Order(), 7), (None, 3))
        assert times(driver) == [7, 3]
        with pytest.raises(BadInputError, match="offset 2: negative timestamp -4"):
            pipe(driver, (Order(), -4))


def test_a_time_in_microseconds_is_bad_input_and_makes_nothing_late():
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=String("user"), value=Json(Order))
    windowed = orders.group_by_key().windowed_by(TimeWindows.of_size_and_grace(timedelta(hours=1), timedelta(0)))
    windowed.agg("hourly", orders=Count()).to_delta("out")
    in_ms = int(NOON.timestamp() * 1000)
    with TopologyTestDriver(Application("test", builder, on_error="dead_letter")) as driver:
        pipe(driver, (Order(), in_ms), (Order(), in_ms * 1000), (Order(), in_ms))
        assert [record.row["orders"] for record in driver.create_output_table("out").read_records()] == [1, 2]
        (letter,) = driver.dead_letters
    for fact in (f"timestamp {in_ms * 1000} ", "year 9999", "milliseconds since 1970"):
        assert fact in letter.reason
    assert dead_letter_frame([letter], 1)["timestamp"].to_list() == [None]


@pytest.mark.parametrize(
    ("of", "order", "ms"),
    [
        ("ms", Order(ms=17), 17),
        ("at", Order(at=NOON), int(NOON.timestamp() * 1000)),
        ("day", Order(day=date(1970, 1, 2)), 86_400_000),
        (col("ms") * 1000, Order(ms=3), 3000),
    ],
)
def test_a_field_or_an_expression_gives_the_time(of, order, ms):
    with driver_of(FailOnInvalidTimestamp(of)) as driver:
        pipe(driver, (order, 5))
        assert times(driver) == [ms]
        with pytest.raises(BadInputError, match="no timestamp in "):
            pipe(driver, (Order(), 5))
        with pytest.raises(BadInputError, match="no timestamp in "):
            pipe(driver, (None, 5))


def test_records_without_a_valid_time_are_skipped_and_counted():
    with driver_of(LogAndSkipOnInvalidTimestamp("ms")) as driver:
        pipe(driver, (Order(ms=5), 1), (Order(ms=-1), 1), (Order(), 1), (None, 1), (Order(ms=0), 1))
        assert times(driver) == [5, 0]
        assert (driver.counts["invalid_timestamps"], driver.counts["records_in"]) == (3, 5)


def test_the_partition_time_replaces_an_invalid_time_once_there_is_one():
    with driver_of(UsePartitionTimeOnInvalidTimestamp(), on_error="dead_letter") as driver:
        pipe(driver, (Order(), -1), (Order(), 9), (Order(), -1), (Order(), 4), (Order(), -7))
        assert times(driver) == [9, 9, 4, 9]
        (bad,) = driver.dead_letters
        assert re.fullmatch("negative timestamp -1, .*no record before it in its partition.*", bad.reason)


def test_the_wall_clock_can_give_the_time():
    with driver_of(WallclockTimestampExtractor()) as driver:
        pipe(driver, (Order(), -1))
        driver.advance_wall_clock_time(timedelta(seconds=1))
        pipe(driver, (Order(), 3))
        noon = int(NOON.timestamp() * 1000)
        assert times(driver) == [noon, noon + 1000]


def test_a_table_takes_its_times_from_an_extractor_too():
    builder = StreamsBuilder()
    builder.table(
        "orders", key=String("user"), value=Json(Order), store="t", timestamp=FailOnInvalidTimestamp("ms")
    ).to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        pipe(driver, (Order(ms=8), 1))
        assert times(driver) == [8]


@pytest.mark.parametrize(
    ("timestamp", "message"),
    [
        ("at", "timestamp is 'at'; pass an extractor"),
        (FailOnInvalidTimestamp("nope"), "'nope'; the columns here are"),
        (FailOnInvalidTimestamp("user"), "has type String; it must be a datetime"),
        (FailOnInvalidTimestamp(col("ms").max()), "beyond its own record"),
    ],
)
def test_a_mistake_is_named(timestamp, message):
    with pytest.raises(TopologyError, match=message):
        driver_of(timestamp)


EXTRACTORS = [FailOnInvalidTimestamp, LogAndSkipOnInvalidTimestamp, UsePartitionTimeOnInvalidTimestamp]
VALUES = st.sampled_from([b'{"ms": 4}', b'{"ms": -1}', b'{"ms": 11}', b"{}", b"{", None])
RECORDS = st.lists(st.tuples(st.integers(-3, 20), st.sampled_from([b"a", b"a", b"\xff"]), VALUES), max_size=12)


def decoded(source, records, bounds):
    """Rows, bad records and skipped offsets of ``records`` decoded batch by batch."""
    rows, bad, skipped, newest = [], [], [], -1
    for start, end in pairwise(bounds):
        frame = pl.DataFrame(
            [(key, value, time, offset) for offset, (time, key, value) in enumerate(records[start:end], start)],
            schema=RAW_SCHEMA,
            orient="row",
        )
        found = decode_source(
            source, SimpleNamespace(topic="orders", partition=0, frame=frame), partition_time_ms=newest, now_ms=99
        )
        rows += found.frame.rows()
        bad += [(record.offset, record.reason) for record in found.bad]
        skipped += found.skipped
        newest = max(newest, found.frame.select(pl.col("_ts").max().fill_null(-1)).item())
    return rows, bad, skipped


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXTRACTORS)
@pytest.mark.parametrize("of", [None, "ms"])
@settings(max_examples=examples(40))
@given(records=RECORDS, cuts=st.sets(st.integers(1, 11), max_size=3))
def test_any_cut_into_batches_gives_the_times_of_single_records(kind, of, records, cuts):
    builder = StreamsBuilder()
    builder.stream("orders", key=String("user"), value=Json(Order), timestamp=kind(of))
    source = builder.build().source("orders")
    batches = decoded(source, records, [0, *sorted(cut for cut in cuts if cut < len(records)), len(records)])
    assert batches == decoded(source, records, range(len(records) + 1))
