"""Records at the end of the year 9999: their windows end after what a datetime can hold, and nothing is lost."""

from datetime import UTC, datetime, timedelta

import pytest

from weir import (
    Application,
    BufferConfig,
    EmitStrategy,
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindows,
    TopologyError,
    UnlimitedWindows,
    Windowed,
)
from weir.testing import TopologyTestDriver

SECOND = timedelta(seconds=1)
LAST_MS = 253_402_300_799_999
LAST = datetime(9999, 12, 31, 23, 59, 59, 999000, UTC)
BEHIND = datetime.max.replace(tzinfo=UTC)
TUMBLING = TimeWindows.of_size_with_no_grace(10 * SECOND)
SLIDING = SlidingWindows.of_time_difference_and_grace(10 * SECOND, SECOND)


def far(describe):
    """A driver whose program has read one record in each of the last two milliseconds."""
    builder = StreamsBuilder()
    describe(builder, builder.stream("x", key=String("k"), value=String("v")))
    driver = TopologyTestDriver(Application("far", builder))
    topic = driver.create_input_topic("x")
    for time_ms in (LAST_MS - 1, LAST_MS):
        topic.pipe_input("a", "v", timestamp_ms=time_ms)
    return driver


@pytest.mark.parametrize(
    ("windows", "start", "end"),
    [
        (TUMBLING, LAST - 9.999 * SECOND, BEHIND),
        (TUMBLING.advance_by(5 * SECOND), LAST - 4.999 * SECOND, BEHIND),
        (SLIDING, LAST - 10 * SECOND, LAST),
        (UnlimitedWindows.of(), datetime(1970, 1, 1, tzinfo=UTC), LAST),
    ],
)
def test_windows_are_read_by_every_function_of_the_driver(windows, start, end):
    with far(lambda _, x: x.group_by_key().windowed_by(windows).count("counts").to_delta("out")) as driver:
        store = (driver.get_session_store if windows is SLIDING else driver.get_window_store)("counts")
        key = Windowed("a", start, end)
        assert dict(store.all())[key] == store.get(key) == 2
        assert store.get_with_timestamp(key) == (2, LAST)
        if windows is SLIDING:
            assert Windowed("a", LAST, BEHIND) in dict(store.all()), "the window after the last record but one"
            assert store.fetch_session("a", LAST, BEHIND) == 1
        else:
            assert store.fetch("a", start) == 2
        rows = driver.create_output_table("out").read_records()
        assert (start, end, 2) in [
            (each.row["window_start"], each.row["window_end"], each.row["count"]) for each in rows
        ]
        assert rows[-1].timestamp == LAST


@pytest.mark.parametrize(
    "describe",
    [
        lambda counted: counted.suppress(
            Suppressed.until_window_closes(BufferConfig.unbounded()).with_idle_after(SECOND)
        ),
        lambda counted: counted.suppress(
            Suppressed.until_time_limit(SECOND, BufferConfig.unbounded()).with_idle_after(SECOND)
        ),
    ],
)
def test_suppression_releases_them_while_the_input_is_idle(describe):
    with far(lambda _, x: describe(x.group_by_key().windowed_by(TUMBLING).count("counts")).to_delta("out")) as driver:
        driver.advance_wall_clock_time(60 * SECOND)
        assert driver.create_output_table("out").read_key_values_to_map() == {
            Windowed("a", LAST - 9.999 * SECOND, BEHIND): 2
        }


def test_final_results_sessions_and_functions_accept_them():
    def ends(windowed: Windowed, count: int) -> datetime:
        return windowed.window_end

    def describe(builder, x):
        grouped = x.group_by_key()
        sessions = grouped.windowed_by(
            SessionWindows.of_inactivity_gap_and_grace(10 * SECOND, SECOND), idle_after=SECOND
        )
        sessions.emit_strategy(EmitStrategy.on_window_close()).count("visits").to_delta("visits")
        grouped.windowed_by(TUMBLING).count("counts").to_stream().select_key(ends).to_delta("ends")
        near = JoinWindows.of_time_difference_and_grace(10 * SECOND, SECOND)
        x.join(x.map_values(other="v"), windows=near, store="near").to_delta("near")

    with far(describe) as driver:
        driver.advance_wall_clock_time(60 * SECOND)
        assert driver.create_output_table("visits").read_key_values_to_list() == [
            (Windowed("a", LAST - timedelta(milliseconds=1), LAST), 2)
        ]
        assert driver.create_output_table("ends").read_key_values_to_map() == {LAST: 2}, "kept in milliseconds"
        assert driver.create_output_table("near").get_queue_size() == 4


@pytest.mark.parametrize(
    "windows", [TimeWindows.of_size_with_no_grace, SlidingWindows.of_time_difference_with_no_grace]
)
def test_windows_that_would_all_end_after_the_year_9999_are_refused(windows):
    windows(timedelta(milliseconds=LAST_MS))
    for too_long in (timedelta(milliseconds=LAST_MS + 1), timedelta(days=999_999_999)):
        with pytest.raises(TopologyError, match=r"is \d+ days.* after the year 9999.*UnlimitedWindows"):
            windows(too_long)
