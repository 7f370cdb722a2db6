"""The sequence that the flights loader sends, compared with the package's CSV, without a broker."""

from __future__ import annotations

import msgspec
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from weir.pipelines.examples.load_flights import LATE_MS, SHUFFLE_MS, flight_records, read_flights

MINUTE_MS = 60_000


@pytest.fixture(scope="module")
def records() -> pl.DataFrame:
    return flight_records(4)


@pytest.mark.slow
def test_the_sequence_is_the_same_at_every_call(records):
    assert_frame_equal(flight_records(4), records)


@pytest.mark.slow
def test_every_flight_is_there_once_with_all_its_fields(records):
    flights = read_flights()
    fields = ["time_hour", "minute", "carrier", "flight", "origin"]
    values = msgspec.json.decode(f"[{','.join(records['value'])}]")
    sent = pl.DataFrame({name: [value[name] for value in values] for name in flights.columns}, schema=flights.schema)
    assert flights.height == 336_776
    assert_frame_equal(sent.sort(fields), flights.sort(fields))


@pytest.mark.slow
def test_key_and_timestamp_are_those_of_the_flight(records):
    fields = records.select(
        pl.col("value").str.json_path_match(f"$.{name}").alias(name)
        for name in ("carrier", "origin", "time_hour", "minute")
    )
    departure = pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ").dt.epoch("ms")
    wanted = fields.select(
        key=pl.col("carrier") + "-" + pl.col("origin"),
        timestamp_ms=departure + pl.col("minute").cast(pl.Int64) * MINUTE_MS,
    )
    assert_frame_equal(records.select("key", "timestamp_ms"), wanted)
    assert records["key"].n_unique() == 35


@pytest.mark.slow
def test_a_key_stays_in_one_partition_and_offsets_count_up_in_it(records):
    assert records.group_by("key").agg(pl.col("partition").n_unique())["partition"].max() == 1
    assert records["partition"].is_in([0, 1, 2, 3]).all()
    for (_,), part in records.group_by("partition"):
        assert part["offset"].to_list() == list(range(part.height))


def test_one_in_a_thousand_is_later_than_any_grace_and_the_rest_within_five_minutes(records):
    behind = records.select((pl.col("timestamp_ms").cum_max() - pl.col("timestamp_ms")).alias("ms"))["ms"]
    moved = (behind > SHUFFLE_MS).sum()
    assert 250 < moved < 420
    assert behind.max() < LATE_MS + SHUFFLE_MS
    assert ((behind > 0) & (behind <= SHUFFLE_MS)).sum() > 50_000
