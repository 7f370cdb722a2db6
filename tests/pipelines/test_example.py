"""The flights example of the API, as a user writes it."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from polars import col

from pipelines import (
    Application,
    BufferConfig,
    Count,
    Delimited,
    Json,
    Max,
    Mean,
    StreamsBuilder,
    Sum,
    Suppressed,
    TimeWindows,
)
from pipelines.testing import TopologyTestDriver


@dataclass(frozen=True)
class Route:
    carrier: str
    origin: str


@dataclass(frozen=True)
class Flight:
    dep_time: int | None
    dep_delay: int | None


builder = StreamsBuilder()
flights = builder.stream("flights", key=Delimited(Route, sep="-"), value=Json(Flight))
late, cancelled = Sum(col("dep_delay") > 15), Sum(col("dep_time").is_null())
(flights.group_by_key()
    .windowed_by(TimeWindows.of_size_and_grace(timedelta(hours=1), timedelta(minutes=10)))
    .agg("hourly", flights=Count(), late=late, mean_delay=Mean("dep_delay"),
         max_delay=Max("dep_delay"), cancelled=cancelled)
    .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    .to_delta("late_departures"))
(flights.group_by("carrier")
    .agg("by_carrier", flights=Count(), late=late, cancelled=cancelled)
    .to_delta("carrier_totals"))
app = Application("flights", builder, commit_interval=timedelta(seconds=1))


def test_an_hour_is_final_ten_minutes_after_its_end():
    with TopologyTestDriver(app) as driver:
        topic, ten = driver.create_input_topic("flights"), datetime(2013, 1, 1, 10, tzinfo=UTC)
        out = driver.create_output_table("late_departures")
        topic.pipe_input(Route("UA", "EWR"), Flight(1020, 20), timestamp=ten)
        topic.pipe_input(Route("AA", "JFK"), Flight(None, None), timestamp=ten + timedelta(minutes=69))
        assert out.is_empty()
        topic.pipe_input(Route("AA", "JFK"), Flight(1110, 0), timestamp=ten + timedelta(minutes=70))
        assert out.read_row() == dict(carrier="UA", origin="EWR", window_start=ten,
                                      window_end=ten + timedelta(hours=1),
                                      flights=1, late=1, mean_delay=20.0, max_delay=20, cancelled=0)


def test_carrier_totals_are_updated_by_every_flight():
    with TopologyTestDriver(app) as driver:
        topic, ten = driver.create_input_topic("flights"), datetime(2013, 1, 1, 10, tzinfo=UTC)
        totals = driver.create_output_table("carrier_totals")
        topic.pipe_input(Route("UA", "EWR"), Flight(1020, 20), timestamp=ten)
        topic.pipe_input(Route("UA", "JFK"), Flight(None, None), timestamp=ten)
        assert totals.read_rows() == [dict(carrier="UA", flights=1, late=1, cancelled=0),
                                      dict(carrier="UA", flights=2, late=1, cancelled=1)]
        assert driver.get_key_value_store("by_carrier").get("UA") == dict(flights=2, late=1, cancelled=1)
