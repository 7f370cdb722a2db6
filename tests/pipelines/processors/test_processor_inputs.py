"""What processors get: updates of tables, windowed keys, and where each record was read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from tests.pipelines.processors.runs import written
from tests.pipelines.spark.inline import Place, Topics
from weir import (
    Application,
    BatchProcessor,
    FixedKeyProcessor,
    Int64,
    Processor,
    Punctuation,
    StreamsBuilder,
    String,
    TimeWindows,
    TopologyError,
    UnlimitedWindows,
    Windowed,
)
from weir.state.commit.tables import read_rows
from weir.testing import TopologyTestDriver

MINUTE = timedelta(minutes=1)
NINE = datetime(2026, 1, 1, 9, tzinfo=UTC)


def counts(builder: StreamsBuilder):
    clicks = builder.stream("clicks", key=String("user"), value=String("page"))
    return clicks.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(MINUTE)).count("by_minute")


class Ended(FixedKeyProcessor[Windowed, int, str]):
    """Forwards each update, and when a window has ended."""

    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.timer(record.key, record.key.window_end)
        self.context.forward(record.with_value(f"count {record.value}"))

    def on_timer(self, record):
        self.context.forward(record.with_value(f"over at {record.key.window_end:%H:%M}"))


def test_a_processor_of_a_windowed_table_gets_windowed_keys_and_may_set_timers_for_them():
    builder = StreamsBuilder()
    counts(builder).process_values(Ended, name="ended").to_delta("out")
    with TopologyTestDriver(Application("windows", builder)) as driver:
        clicks = driver.create_input_topic("clicks")
        for user, seconds in (("ann", 0), ("ann", 30), ("bob", 70)):
            clicks.pipe_input(user, "/", timestamp=NINE + timedelta(seconds=seconds))
        rows = driver.create_output_table("out").read_rows()
    assert [
        (row["user"], row["window_start"], row["window_end"] - row["window_start"], row["value"]) for row in rows
    ] == [
        ("ann", NINE, MINUTE, "count 1"),
        ("ann", NINE, MINUTE, "count 2"),
        ("bob", NINE + MINUTE, MINUTE, "count 1"),
        ("ann", NINE, MINUTE, "over at 09:01"),
    ]


class Told(FixedKeyProcessor[Windowed, int, int]):
    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.forward(record)


def test_a_window_without_an_end_stays_one(tmp_path):
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=String("page"))
    table = clicks.group_by_key().windowed_by(UnlimitedWindows.start_on(NINE)).count("ever")
    table.to_delta("counted")
    table.process_values(Told).to_delta("told")
    time_ms = round(NINE.timestamp() * 1000)
    place = Place(Application("ever", builder), Topics({("clicks", 0): [(b"ann", b"/", time_ms)]}), tmp_path)
    place.run()
    counted, told = (
        read_rows(place.warehouse / "ever" / name)["window_end"].to_physical() for name in ("counted", "told")
    )
    assert told.to_list() == counted.to_list()


class Starts(BatchProcessor[Windowed, int, str, datetime]):
    def process_batch(self, rows):
        self.context.timers(rows, pl.col("window_end"))
        return rows.select("user", "_ts", value="window_start")

    def init(self, context):
        self.context = context

    def on_timers(self, rows):
        return rows.select("user", "_ts", value="window_end")


def test_a_batch_processor_of_a_windowed_table_gets_the_bounds_as_columns():
    builder = StreamsBuilder()
    counts(builder).process(Starts, name="starts").to_delta("out")
    with TopologyTestDriver(Application("windows", builder)) as driver:
        clicks = driver.create_input_topic("clicks")
        clicks.pipe_input("ann", "/", timestamp=NINE)
        clicks.pipe_input("bob", "/", timestamp=NINE + MINUTE)
        assert driver.create_output_table("out").read_key_values_to_list() == [
            ("ann", NINE),
            ("bob", NINE + MINUTE),
            ("ann", NINE + MINUTE),
        ]


class Plain(Processor[str, int, str, int]):
    def process(self, record):
        pass


class Wide(Processor[Windowed, int, Windowed, int]):
    process = Plain.process


def test_windowed_keys_are_declared():
    with pytest.raises(TopologyError, match="keys are windowed; declare Windowed"):
        counts(StreamsBuilder()).process(Plain)
    with pytest.raises(TopologyError, match="the key of the records is user; declare its type"):
        StreamsBuilder().stream("clicks", key=String("user"), value=Int64("n")).process(Wide)
    with pytest.raises(TopologyError, match="gives windowed keys, which only process_values keeps"):
        counts(StreamsBuilder()).process(Wide)


class Places(FixedKeyProcessor[str, int, str]):
    """Forwards the place of each record, and of what comes without one."""

    def init(self, context):
        self.context, self.last = context, None
        context.schedule(MINUTE, Punctuation.STREAM_TIME, lambda now: self.tell(self.last))

    def process(self, record):
        self.last = record
        self.tell(record)
        self.context.timer(record.key, record.timestamp)

    def on_timer(self, record):
        self.tell(record)

    def tell(self, record):
        place = self.context.record_metadata
        self.context.forward(record.with_value("nowhere" if place is None else "{}-{}@{}".format(*place)))


def rows_at(*times_ms: int) -> list[tuple[bytes, bytes, int]]:
    return [(b"ann", (0).to_bytes(8, "big"), time_ms) for time_ms in times_ms]


@pytest.mark.parametrize("max_records", [1, 100])
def test_a_record_knows_where_it_was_read(tmp_path, max_records):
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=String("user"), value=Int64("number"))
    numbers.process_values(Places, name="places").to_delta("out")
    topics = Topics({("numbers", 0): [], ("numbers", 1): rows_at(1, 2, 60_000)})
    place = Place(Application("places", builder), topics, tmp_path, max_records=max_records)
    place.run()
    topics.rows["numbers", 1] += rows_at(60_001)
    place.run()
    assert written(place, "out", "value") == [
        ("numbers-1@0", 1),
        ("nowhere", 1),
        ("nowhere", 1),
        ("numbers-1@1", 2),
        ("nowhere", 2),
        ("numbers-1@2", 60_000),
        ("nowhere", 60_000),
        ("nowhere", 60_000),
        ("numbers-1@3", 60_001),
        ("nowhere", 60_001),
    ]


@pytest.mark.parametrize("max_records", [1, 100])
def test_a_record_of_several_topics_knows_where_it_was_read(tmp_path, max_records):
    builder = StreamsBuilder()
    left, right = (builder.stream(name, key=String("user"), value=Int64("number")) for name in ("left", "right"))
    left.merge(right).process_values(Tells).to_delta("out")
    topics = Topics({("left", 0): rows_at(1, 4, 6), ("right", 0): rows_at(2, 3, 5)})
    place = Place(Application("places", builder), topics, tmp_path, max_records=max_records)
    place.run()
    topics.rows["left", 0] += rows_at(7)
    place.run()
    assert [value for value, _ in written(place, "out", "value")] == [
        "left-0@0",
        "right-0@0",
        "right-0@1",
        "left-0@1",
        "right-0@2",
        "left-0@2",
        "left-0@3",
    ]


class Tells(FixedKeyProcessor[str, int, str]):
    def init(self, context):
        self.context = context

    process = tell = Places.tell


def test_a_record_behind_a_repartition_was_read_in_no_topic(tmp_path):
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=String("user"), value=Int64("number"))
    numbers.repartition("again").process_values(Tells).to_delta("out")
    place = Place(Application("places", builder), Topics({("numbers", 0): rows_at(1, 2)}), tmp_path)
    place.run()
    assert written(place, "out", "value") == [("nowhere", 1), ("nowhere", 2)]


class Asks(BatchProcessor[str, int, str, str]):
    def init(self, context):
        self.context = context

    def process_batch(self, rows):
        assert self.context.record_metadata is None
        return rows.with_columns(value=pl.format("{}@{}", "_partition", "_offset"))


def test_a_batch_has_the_places_as_columns(tmp_path):
    builder = StreamsBuilder()
    builder.stream("numbers", key=String("user"), value=Int64("number")).process(Asks).to_delta("out")
    place = Place(Application("places", builder), Topics({("numbers", 0): rows_at(1, 2)}), tmp_path)
    place.run()
    assert written(place, "out", "value") == [("0@0", 1), ("0@1", 2)]


class Updates(FixedKeyProcessor[str, int, str]):
    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.forward(record.with_value("gone" if record.value is None else f"now {record.value}"))


def test_a_processor_of_a_table_gets_every_update_with_none_for_a_tombstone():
    builder = StreamsBuilder()
    table = builder.table("prices", key=String("item"), value=Int64("cents"), store="prices")
    table.process_values(Updates, name="updates").to_delta("out")
    with TopologyTestDriver(Application("prices", builder)) as driver:
        topic = driver.create_input_topic("prices")
        topic.pipe_key_value_list([("tea", 3), ("tea", None), ("milk", 2), ("tea", 4)])
        found = driver.create_output_table("out").read_key_values_to_list()
    assert found == [("tea", "now 3"), ("tea", "gone"), ("milk", "now 2"), ("tea", "now 4")]


def test_a_processor_that_keeps_keys_takes_one_computed_by_an_expression_as_a_scalar():
    """The key then is a row with one column; where that is called ``key``, it fits a declared ``str``."""
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=String("user"), value=Int64("n"))
    numbers.select_key(key=pl.format("n{}", pl.col("n") % 2)).process_values(Updates, name="updates").to_delta("out")
    with TopologyTestDriver(Application("numbers", builder)) as driver:
        driver.create_input_topic("numbers").pipe_key_value_list([("a", 1), ("b", 2)])
        found = driver.create_output_table("out").read_rows()
    assert [(row["key"], row["value"]) for row in found] == [("n1", "now 1"), ("n0", "now 2")]


def test_batches_by_the_key_of_the_topic_need_no_repartition_and_others_do():
    for change, expected in ((lambda stream: stream, 1), (lambda stream: stream.select_key(n=pl.col("n")), 2)):
        builder = StreamsBuilder()
        numbers = builder.stream("numbers", key=String("user"), value=Int64("n"))
        change(numbers).batch(max_records=3, name="batches").to_delta("out")
        assert len(builder.build().sub_topologies) == expected
