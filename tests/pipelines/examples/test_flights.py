"""The flights example under the test driver."""

from datetime import UTC, datetime, timedelta

from weir.pipelines.examples.flights import Flight, Route, app
from weir.testing import TopologyTestDriver


def test_an_hour_is_final_ten_minutes_after_its_end():
    with TopologyTestDriver(app) as driver:
        topic, ten = driver.create_input_topic("flights"), datetime(2013, 1, 1, 10, tzinfo=UTC)
        out = driver.create_output_table("late_departures")
        topic.pipe_input(Route("UA", "EWR"), Flight(1020, 20), timestamp=ten)
        topic.pipe_input(Route("AA", "JFK"), Flight(None, None), timestamp=ten + timedelta(minutes=69))
        assert out.is_empty()
        topic.pipe_input(Route("AA", "JFK"), Flight(1110, 0), timestamp=ten + timedelta(minutes=70))
        assert out.read_row() == dict(
            carrier="UA",
            origin="EWR",
            window_start=ten,
            window_end=ten + timedelta(hours=1),
            flights=1,
            late=1,
            mean_delay=20.0,
            max_delay=20,
            cancelled=0,
        )


def test_carrier_totals_are_updated_by_every_flight():
    with TopologyTestDriver(app) as driver:
        topic, ten = driver.create_input_topic("flights"), datetime(2013, 1, 1, 10, tzinfo=UTC)
        totals = driver.create_output_table("carrier_totals")
        topic.pipe_input(Route("UA", "EWR"), Flight(1020, 20), timestamp=ten)
        topic.pipe_input(Route("UA", "JFK"), Flight(None, None), timestamp=ten)
        assert totals.read_rows() == [
            dict(carrier="UA", flights=1, late=1, cancelled=0),
            dict(carrier="UA", flights=2, late=1, cancelled=1),
        ]
        assert driver.get_key_value_store("by_carrier").get("UA") == dict(flights=2, late=1, cancelled=1)
