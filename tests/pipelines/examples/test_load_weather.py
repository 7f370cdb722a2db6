"""The weather topic's content, and the weather example over its first days."""

import json
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from weir.pipelines.examples.load_weather import weather_records
from weir.pipelines.examples.weather import Observation, app
from weir.testing import TopologyTestDriver


@pytest.fixture(scope="module")
def records() -> pl.DataFrame:
    return weather_records(2)


def test_every_observation_is_in_the_topic_once(records):
    assert records.height == 26_115
    assert records.select("partition", "offset").is_unique().all()
    assert records["timestamp_ms"].is_sorted()
    assert records.group_by("key").agg(pl.col("partition").n_unique())["partition"].to_list() == [1, 1, 1]


@pytest.mark.slow
def test_a_day_at_an_airport_sums_up_its_observations(records):
    day = datetime(2013, 1, 2, tzinfo=UTC)
    with TopologyTestDriver(app) as driver:
        topic, days = driver.create_input_topic("weather"), driver.create_output_table("daily_weather")
        for key, value, timestamp_ms in records.select("key", "value", "timestamp_ms").head(72 * 3).iter_rows():
            fields = json.loads(value)
            topic.pipe_input(
                key,
                Observation(*(fields[name] for name in ("temp", "wind_speed", "precip"))),
                timestamp=datetime.fromtimestamp(timestamp_ms / 1000, UTC),
            )
        found = {(row["origin"], row["window_start"]): row for row in days.read_rows()}
    begin, end = (int(moment.timestamp() * 1000) for moment in (day, day + timedelta(days=1)))
    of_day = records.filter(pl.col("key") == "JFK", pl.col("timestamp_ms").is_between(begin, end, closed="left"))
    values = pl.DataFrame([json.loads(text) for text in of_day["value"]])
    assert found["JFK", day]["observations"] == values.height == 24
    assert found["JFK", day]["max_temp"] == values["temp"].max()
    assert found["JFK", day]["mean_temp"] == pytest.approx(values["temp"].mean())
