"""The last hour and day as text: bars in the ingest's metadata."""

import pytest

from weir.infra.control import MinuteRow
from weir.orchestration.drivers.metadata import (
    DAY_MINUTES,
    HOUR_MINUTES,
    MINUTE_MS,
    SHOWN_BARS,
    bars,
    pace_markdown,
)


def test_bars_are_scaled_from_zero_to_the_greatest_value_with_gaps_where_there_is_no_reading():
    assert bars([0, 50, 100, None, 100]) == "▁▅█·█"
    assert bars([0, 0]) == "▁▁"


@pytest.mark.parametrize(("span", "span_minutes", "per_bar"), [("hour", HOUR_MINUTES, 2), ("day", DAY_MINUTES, 48)])
def test_a_span_ends_with_the_newest_minute_and_leaves_older_ones_out(span, span_minutes, per_bar):
    newest = 10_000
    rows = [
        MinuteRow(at_ms=minute * MINUTE_MS, epoch=1, records_per_s=pace, lag=7, commit_ms=3.0)
        for minute, pace in (
            (newest - span_minutes, 9_999.0),
            (newest - span_minutes + 1, 1_000.0),
            (newest - per_bar, 250.0),
            (newest, 500.0),
        )
    ]
    shown = pace_markdown(rows, span, span_minutes)
    assert shown.startswith(f"| | newest minute | greatest | the {span} |")
    [line] = [line for line in shown.splitlines() if line.startswith("| records/s")]
    _, _, now, most, plot, _ = (cell.strip() for cell in line.split("|"))
    assert (now, most) == ("500", "1,000")
    assert "state" not in shown
    assert plot.strip("`") == "█" + "·" * (SHOWN_BARS - 3) + "▃▅"


def test_a_span_without_a_reading_is_one_sentence():
    assert pace_markdown([], "day", DAY_MINUTES) == "no reading in the last day"


def test_the_size_of_the_state_is_a_line_of_its_own_as_far_as_it_is_known():
    rows = [
        MinuteRow(at_ms=minute * MINUTE_MS, epoch=1, records_per_s=1.0, lag=7, commit_ms=3.0, state_bytes=size)
        for minute, size in ((140, None), (150, 3 << 20), (198, 6 << 20), (199, None))
    ]
    shown = pace_markdown(rows, "hour", HOUR_MINUTES)
    [line] = [line for line in shown.splitlines() if line.startswith("| state, MiB")]
    _, _, now, most, plot, _ = (cell.strip() for cell in line.split("|"))
    assert (now, most) == ("6", "6")
    assert plot.strip("`·") == "▅" + "·" * 23 + "█"
