"""The test driver itself: what it reads, what it refuses, what it leaves behind."""

import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from pipelines import Application, BadInputError, Json, StreamsBuilder, String
from pipelines.testing import TopologyTestDriver


@dataclass(frozen=True)
class Click:
    page: str


def application(**settings):
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click))
    clicks.group_by("page").count("pages").to_delta("totals")
    return Application("test", builder, **settings)


def test_reading_an_empty_table_raises():
    with TopologyTestDriver(application()) as driver:
        out = driver.create_output_table("totals")
        assert out.is_empty()
        for read in (out.read_row, out.read_record):
            with pytest.raises(LookupError, match="no unread row"):
                read()
        assert out.read_rows() == []


def test_unknown_names_are_refused_with_the_known_ones():
    with TopologyTestDriver(application()) as driver:
        for look, name, known in (
                (driver.create_input_topic, "x", "clicks"), (driver.create_output_table, "x", "totals"),
                (driver.get_key_value_store, "x", "pages"), (driver.get_window_store, "pages", "none")):
            with pytest.raises(LookupError, match=known):
                look(name)


@pytest.mark.parametrize(("key", "value", "timestamp_ms", "reason"), [
    ("a", b"{", 1, "value: "), ("a", b'{"page": 3}', 1, "Expected `str`"), (b"\xff", Click("x"), 1, "key: "),
    ("a", Click("x"), -1, "negative timestamp")])
def test_bad_input_stops_the_run_or_goes_to_the_dead_letters(key, value, timestamp_ms, reason):
    with TopologyTestDriver(application()) as driver:
        topic = driver.create_input_topic("clicks")
        topic.pipe_input("a", Click("x"), timestamp_ms=1)
        with pytest.raises(BadInputError, match="topic 'clicks', partition 0, offset 1: .*" + reason):
            topic.pipe_input(key, value, timestamp_ms=timestamp_ms)
    with TopologyTestDriver(application(on_error="dead_letter")) as driver:
        topic = driver.create_input_topic("clicks")
        topic.pipe_input(key, value, timestamp_ms=timestamp_ms)
        topic.pipe_input("a", Click("x"), timestamp_ms=1)
        assert [(bad.offset, reason in bad.reason) for bad in driver.dead_letters] == [(0, True)]
        assert driver.create_output_table("totals").read_rows() == [dict(page="x", count=1)]
        assert driver.counts["dead_letters"] == 1


def test_a_record_without_a_time_has_the_wall_clocks():
    start = datetime(2024, 1, 1, tzinfo=UTC)
    with TopologyTestDriver(application(), initial_wall_clock=start) as driver:
        driver.advance_wall_clock_time(timedelta(seconds=5))
        driver.create_input_topic("clicks").pipe_input("a", Click("x"))
        assert driver.create_output_table("totals").read_record().timestamp == start + timedelta(seconds=5)


def test_times_are_aware_and_given_once():
    with TopologyTestDriver(application()) as driver:
        topic = driver.create_input_topic("clicks")
        with pytest.raises(ValueError, match="time zone"):
            topic.pipe_input("a", Click("x"), timestamp=datetime(2024, 1, 1))
        with pytest.raises(ValueError, match="not both"):
            topic.pipe_input("a", Click("x"), timestamp=datetime(2024, 1, 1, tzinfo=UTC), timestamp_ms=1)


def test_nothing_touches_the_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with TopologyTestDriver(application()) as driver:
        driver.create_input_topic("clicks").pipe_input("a", Click("x"), timestamp_ms=1)
        assert list(tmp_path.iterdir()) == []
    driver.close()
    with pytest.raises(LookupError, match="no key-value store"):
        driver.get_key_value_store("pages")


def test_a_test_takes_well_under_a_tenth_of_a_second():
    app = application()
    best = min(_seconds_of_a_test(app) for _ in range(5))
    assert best < 0.1


def _seconds_of_a_test(app: Application) -> float:
    start = time.perf_counter()
    with TopologyTestDriver(app) as driver:
        topic = driver.create_input_topic("clicks")
        for index in range(5):
            topic.pipe_input("a", Click("x"), timestamp_ms=index)
        assert driver.create_output_table("totals").read_rows()[-1] == dict(page="x", count=5)
    return time.perf_counter() - start
