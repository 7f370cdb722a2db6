"""Batch processors beside their records: tombstones, children, the wall clock, the end of the input, the stop."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from threading import Event

import polars as pl
import pytest

from tests.pipelines.processors.runs import written
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, BatchProcessor, Int64, Processor, Punctuation, Record, StreamsBuilder, String
from weir.testing import TopologyTestDriver

SECOND = timedelta(seconds=1)
NINE = datetime(2026, 1, 1, 9, tzinfo=UTC)


def stream():
    builder = StreamsBuilder()
    return builder, builder.stream("numbers", key=String("user"), value=Int64("n"))


class Doubles(BatchProcessor[str, int, str, int]):
    def process_batch(self, rows):
        assert rows.columns == ["user", "n", "_ts", "_partition", "_offset", "_deleted"]
        return rows.with_columns(value=pl.col("n").fill_null(0) * 2)


def test_a_tombstone_that_is_returned_stays_one():
    builder, numbers = stream()
    numbers.process(Doubles).to_delta("out")
    with TopologyTestDriver(Application("doubles", builder)) as driver:
        driver.create_input_topic("numbers").pipe_key_value_list([("ann", 4), ("ann", None), (None, 3)])
        assert driver.create_output_table("out").read_key_values_to_list() == [("ann", 8), ("ann", None), (None, 6)]


class Splits(BatchProcessor[str, int, str, int]):
    """Odd numbers for one child, even ones for the other, and all negated ones for both."""

    def init(self, context):
        self.context = context

    def process_batch(self, rows):
        rows = rows.with_columns(value="n")
        self.context.forward_rows(rows.filter(pl.col("n") % 2 == 1), "odd")
        self.context.forward_rows(rows.filter(pl.col("n") % 2 == 0), "even")
        return rows.with_columns(value=-pl.col("n"))


class Same(BatchProcessor[str, int, str, int]):
    def process_batch(self, rows):
        return rows


def test_rows_may_be_for_one_child():
    builder, numbers = stream()
    split = numbers.process(Splits)
    for name in ("odd", "even"):
        split.process(Same, name=name).to_delta(name)
    with TopologyTestDriver(Application("splits", builder)) as driver:
        driver.create_input_topic("numbers").pipe_key_value_list([("ann", 1), ("ann", 2)])
        assert driver.create_output_table("odd").read_values_to_list() == [1, -1, -2]
        assert driver.create_output_table("even").read_values_to_list() == [-1, 2, -2]


class Wakes(BatchProcessor[str, int, str, str]):
    """Timers by both clocks, ten seconds after the record."""

    timer_resolution = 4 * SECOND

    def init(self, context):
        self.context = context

    def process_batch(self, rows):
        rows = rows.filter(pl.col("n") > 0)
        self.context.timers(rows, pl.col("_ts") + 10_000)
        now_ms = round(self.context.current_system_time.timestamp() * 1000)
        self.context.timers(rows, pl.lit(now_ms) + 10_000, Punctuation.WALL_CLOCK_TIME)

    def on_timers(self, rows):
        return rows.with_columns(value=pl.format("timer {}", pl.col("_ts") // 1000))

    def close(self):
        self.context.forward_rows(pl.DataFrame({"user": ["all"], "value": ["closed"], "_ts": [0]}))


def test_timers_by_the_wall_clock_are_called_when_it_gets_there():
    builder, numbers = stream()
    numbers.process(Wakes, name="wakes").to_delta("out")
    with TopologyTestDriver(Application("wakes", builder)) as driver:
        driver.create_input_topic("numbers").pipe_input("ann", 1, timestamp=NINE)
        out = driver.create_output_table("out")
        driver.advance_wall_clock_time(9 * SECOND)
        assert out.is_empty()
        driver.advance_wall_clock_time(SECOND)
        assert out.read_key_values_to_list() == [("ann", "timer 10")]


@pytest.mark.parametrize(("end_ms", "called"), [(11_999, False), (12_000, True), (60_000, True)])
def test_the_end_of_the_input_calls_timers_at_a_multiple_of_the_resolution(tmp_path, end_ms, called):
    builder, numbers = stream()
    numbers.process(Wakes, name="wakes").to_delta("out")
    rows = [(b"ann", (1).to_bytes(8, "big"), 0)] + [(b"bob", (0).to_bytes(8, "big"), at) for at in (9_000, 11_000)]
    place = Place(Application("wakes", builder), Topics({("numbers", 0): rows}), tmp_path)
    place.driver().run(Event(), until_caught_up=True, end_time_ms=end_ms)
    timers = [("ann", "timer 10", 10_000)] if called else []
    assert written(place, "out", "user", "value") == [*timers, ("all", "closed", 0)]


class Ticks(BatchProcessor[str, int, str, int]):
    """Its rows, -1 with each second, and -2 once their time has come."""

    timer_resolution = SECOND

    def init(self, context):
        self.context = context
        context.schedule(SECOND, Punctuation.STREAM_TIME, self.tick)

    def process_batch(self, rows):
        self.context.timers(rows, pl.col("_ts"))
        return rows

    def tick(self, now):
        at_ms = round(now.timestamp() * 1000)
        self.context.forward_rows(pl.DataFrame({"user": ["all"], "value": [-1], "_ts": [at_ms]}))

    def on_timers(self, rows):
        return rows.with_columns(value=pl.lit(-2))


class Placeless(BatchProcessor[str, int, str, int]):
    """Its rows, without the columns of their place."""

    def process_batch(self, rows):
        return rows.select("user", pl.col("n").alias("value"), "_ts")


class Ticked(Processor[str, int, str, int]):
    """Its records, and -1 with each second."""

    def init(self, context):
        self.context = context
        context.schedule(SECOND, Punctuation.STREAM_TIME, lambda now: context.forward(Record("all", -1, now)))

    def process(self, record):
        self.context.forward(record)


@pytest.mark.parametrize("is_one_epoch", [False, True])
@pytest.mark.parametrize(
    ("after", "wanted"), [(Ticks, [1, -1, 5, -1, -2, -2, 7, -1, -2]), (Ticked, [1, -1, 5, -1, 7, -1])]
)
def test_rows_given_one_for_one_without_their_places_are_rows_of_their_records(is_one_epoch, after, wanted):
    builder, numbers = stream()
    numbers.process(Placeless, name="placeless").process(after, name="after").to_delta("out")
    with TopologyTestDriver(Application("placeless", builder)) as driver:
        topic = driver.create_input_topic("numbers", start=NINE, auto_advance=SECOND)
        with driver.one_epoch() if is_one_epoch else nullcontext():
            topic.pipe_key_value_list([("ann", 1), ("bob", 5), ("ann", 7)])
        assert driver.create_output_table("out").read_values_to_list() == wanted


def and_the_next(n: int) -> list[int]:
    return [n, n + 1]


@pytest.mark.parametrize("is_one_epoch", [False, True])
def test_what_a_record_makes_due_follows_all_rows_that_it_has_become(is_one_epoch):
    builder, numbers = stream()
    numbers.flat_map_values(and_the_next).process(Ticks, name="ticks").to_delta("out")
    with TopologyTestDriver(Application("ticks", builder)) as driver:
        topic = driver.create_input_topic("numbers", start=NINE, auto_advance=SECOND)
        with driver.one_epoch() if is_one_epoch else nullcontext():
            topic.pipe_key_value_list([("ann", 1), ("ann", 5)])
        assert driver.create_output_table("out").read_values_to_list() == [1, 2, -1, 5, 6, -1, -2]
