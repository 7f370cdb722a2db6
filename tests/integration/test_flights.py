"""The flights application on a real broker, Spark and Delta, against the same tables computed by plain polars.

The recomputation shares no code with Weir: it reads the topic with a plain consumer and applies the
rules of event time to each record in offset order.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from confluent_kafka import Consumer, TopicPartition
from polars.testing import assert_frame_equal

from weir.infra.settings import Settings
from weir.pipelines.examples.load_flights import load, read_flights
from weir.pipelines.spark.progress import RunSummary
from weir.pipelines.spark.runner import run

pytestmark = [pytest.mark.broker, pytest.mark.spark]
HOUR_MS, GRACE_MS = 3_600_000, 600_000
UTC_MS = pl.Datetime("ms", "UTC")
FLIGHTS, LATE, CANCELLED, KEYS, KEY_HOURS = 336_776, 70_774, 8_255, 35, 116_904
REFERENCE = "weir.pipelines.examples.flights:app"
COUNTS = [pl.len().alias("flights"), (pl.col("dep_delay") > 15).sum().alias("late")]
CANCELLED_COUNT = pl.col("dep_time").is_null().sum().alias("cancelled")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(dir=tmp_path_factory.mktemp("flights"), slots=2)


@pytest.fixture(scope="module")
def records(broker: str) -> pl.DataFrame:
    """The topic's records in offset order, with stream time by partition and each record's window."""
    ends = load(broker).end_offsets
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "plain"})
    consumer.assign([TopicPartition("flights", partition, 0) for partition in ends])
    rows = []
    while missing := sum(ends.values()) - len(rows):
        for message in consumer.consume(min(missing, 10_000), timeout=10.0):
            assert message.error() is None
            rows.append((message.partition(), message.offset(), message.timestamp()[1],
                         message.key().decode(), message.value().decode()))  # fmt: skip
    consumer.close()
    raw = pl.DataFrame(rows, schema=["partition", "offset", "ts", "key", "value"], orient="row")
    value = pl.col("value").str.json_decode(pl.Struct({"dep_time": pl.Int64, "dep_delay": pl.Int64}))
    return (
        raw.sort("partition", "offset")
        .with_columns(
            value.struct.unnest(),
            carrier=pl.col("key").str.split("-").list.get(0),
            origin=pl.col("key").str.split("-").list.get(1),
            stream_time=pl.col("ts").cum_max().over("partition"),
            end_of_input=pl.col("ts").max().over("partition"),
            start=pl.col("ts") // HOUR_MS * HOUR_MS,
        )
        .with_columns(closes=pl.col("start") + HOUR_MS + GRACE_MS)
    )


@pytest.fixture(scope="module")
def summary(records: pl.DataFrame, broker: str, place: Settings, spark) -> RunSummary:
    return run(REFERENCE, place, bootstrap_servers=broker, until_caught_up=True, spark=spark)


def table(place: Settings, name: str) -> pl.DataFrame:
    return pl.read_delta(str(Path(place.warehouse, "flights", name)))


def newest(updates: pl.DataFrame, key: str) -> pl.DataFrame:
    return updates.sort("_epoch", "_seq").group_by(key).last().filter(~pl.col("_deleted"))


def test_the_topic_holds_the_flights_of_the_package(records):
    csv = read_flights()
    assert csv.height == records.height == FLIGHTS
    assert csv.select((pl.col("dep_delay") > 15).sum()).item() == LATE
    assert csv["dep_time"].null_count() == records["dep_time"].null_count() == CANCELLED
    assert records["key"].n_unique() == KEYS
    assert records.select(pl.struct("key", "start").n_unique()).item() == KEY_HOURS


def test_everything_is_read_in_one_run(summary):
    assert (summary.reason, summary.records_in) == ("caught_up", FLIGHTS)


def test_final_hours_equal_those_of_a_plain_recomputation(records, summary, place):
    in_time = records.filter(pl.col("stream_time") < pl.col("closes"))
    wanted = (
        in_time.filter(pl.col("closes") <= pl.col("end_of_input"))
        .group_by("carrier", "origin", "start")
        .agg(
            *COUNTS,
            CANCELLED_COUNT,
            (pl.col("dep_delay").sum() / pl.col("dep_delay").count()).alias("mean"),
            pl.col("dep_delay").max().alias("max_delay"),
        )
        .select(
            "carrier",
            "origin",
            pl.col("start").cast(UTC_MS).alias("window_start"),
            (pl.col("start") + HOUR_MS).cast(UTC_MS).alias("window_end"),
            pl.col("flights").cast(pl.Int64),
            pl.col("late").cast(pl.Int64),
            pl.when(pl.col("mean").is_not_nan()).then("mean").alias("mean_delay"),
            "max_delay",
            pl.col("cancelled").cast(pl.Int64),
        )
    )
    found = table(place, "late_departures")
    assert found.columns[: wanted.width] == wanted.columns
    assert not found["_deleted"].any()
    keys = ["carrier", "origin", "window_start"]
    found = found.select(wanted.columns).cast({"window_start": UTC_MS, "window_end": UTC_MS})
    assert_frame_equal(found.sort(keys), wanted.sort(keys), rel_tol=0, abs_tol=1e-9)


def test_late_records_and_open_windows_are_counted(records, summary):
    late = records.filter(pl.col("stream_time") >= pl.col("closes"))
    still_open = records.filter(pl.col("closes") > pl.col("end_of_input"))
    assert 100 < late.height < 400
    assert summary.totals["late_records"] == late.height
    assert summary.totals["open_windows"] == still_open.select("key", "start").n_unique() > 0


def test_carrier_totals_equal_those_of_the_csv(records, summary, place):
    csv = read_flights()
    wanted = csv.group_by("carrier").agg(*COUNTS, CANCELLED_COUNT).with_columns(pl.exclude("carrier").cast(pl.Int64))
    found = newest(table(place, "carrier_totals"), "carrier").select(wanted.columns)
    assert_frame_equal(found.sort("carrier"), wanted.sort("carrier"))
    assert found.select(pl.exclude("carrier").sum()).row(0) == (FLIGHTS, LATE, CANCELLED)


def test_a_second_run_finds_nothing_to_do(summary, place, broker, spark):
    before = {name: table(place, name).height for name in ("late_departures", "carrier_totals")}
    again = run(REFERENCE, place, bootstrap_servers=broker, until_caught_up=True, spark=spark)
    assert (again.reason, again.records_in) == ("caught_up", 0)
    assert {name: table(place, name).height for name in before} == before
    assert again.totals == summary.totals
