"""The three programs of KIP-328, as they come with Weir."""

from datetime import UTC, datetime, timedelta

import polars as pl

from tests.pipelines.in_turn import in_turn
from tests.pipelines.memory_session import MemorySession
from weir.pipelines.examples import few_events, final_counts, rate_limit
from weir.pipelines.tasks.processor import TaskProcessor
from weir.testing import TopologyTestDriver

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def test_an_alert_goes_out_for_fewer_than_three_events_in_an_hour_ten_minutes_after_its_end():
    with TopologyTestDriver(few_events.app) as driver:
        events, alerts = driver.create_input_topic("events"), driver.create_output_table("alerts")
        events.pipe_records(
            [
                ("ann", "x", NOON),
                ("bob", "x", NOON),
                ("ann", "x", NOON + HOUR / 2),
                ("ann", "x", NOON + HOUR + 9 * MINUTE),
                ("ann", "x", NOON + HOUR - SECOND),
            ]
        )
        assert alerts.is_empty()
        events.pipe_input("eve", "x", timestamp=NOON + HOUR + 10 * MINUTE)
        assert alerts.read_rows() == [dict(user="bob", window_start=NOON, window_end=NOON + HOUR, count=1)]
        events.pipe_input("bob", "x", timestamp=NOON + 2 * MINUTE)
        assert driver.counts["late_records"] == 1
        assert alerts.is_empty()


def test_a_user_is_updated_once_in_thirty_seconds():
    with TopologyTestDriver(rate_limit.app) as driver:
        clicks, counts = driver.create_input_topic("clicks"), driver.create_output_table("click_counts")
        clicks.pipe_records([("ann", f"/{second}", NOON + second * SECOND) for second in range(95)])
        assert [(row["clicks"], row["page"]) for row in counts.read_rows()] == [(31, "/30"), (62, "/61"), (93, "/92")]


def test_the_update_that_has_waited_longest_is_emitted_early_when_a_thousand_wait():
    users = [f"user{number:04}" for number in range(1_001)]
    rows = pl.DataFrame(
        {"user": users, "page": "/", "_ts": range(1_001), "_partition": 0, "_offset": range(1_001), "_deleted": False},
        schema_overrides={"_partition": pl.Int32},
    )
    output = TaskProcessor(rate_limit.app.topology.sub_topologies[0], is_debug=True).run(
        in_turn({"clicks": rows}), MemorySession(), {}, 0
    )
    assert output.sinks["click_counts"]["user"].to_list() == ["user0000"]
    assert output.metrics.buffers["held_clicks-store"][0] == 1_000


def test_a_minutes_words_are_counted_once_and_late_ones_go_to_a_separate_table():
    with TopologyTestDriver(final_counts.app, initial_wall_clock=NOON) as driver:
        words = driver.create_input_topic("words")
        counts, late = driver.create_output_table("word_counts"), driver.create_output_table("late_words")
        words.pipe_records([(1, "weir", NOON), (2, "dam", NOON + MINUTE), (3, "weir", NOON + 59 * SECOND)])
        assert counts.is_empty()
        words.pipe_records([(4, "dam", NOON + 70 * SECOND), (5, "weir", NOON + SECOND)])
        window = dict(window_start=NOON, window_end=NOON + MINUTE)
        assert counts.read_rows() == [dict(word="weir", **window, count=2)]
        assert late.read_rows() == [dict(word="weir", **window)]
        driver.advance_wall_clock_time(3 * MINUTE)
        assert [(row["word"], row["count"]) for row in counts.read_rows()] == [("dam", 2)]
