"""The last hour as text: bars in the ingest's metadata."""

from weir.infra.control import MinuteRow
from weir.orchestration.drivers.metadata import (
    MINUTE_MS,
    MINUTES_PER_BAR,
    SHOWN_MINUTES,
    bars,
    last_hour_markdown,
)


def test_bars_are_scaled_from_zero_to_the_greatest_value_with_gaps_where_there_is_no_reading():
    assert bars([0, 50, 100, None, 100]) == "▁▅█·█"
    assert bars([0, 0]) == "▁▁"


def test_the_hour_ends_with_the_newest_minute_and_leaves_older_ones_out():
    rows = [
        MinuteRow(at_ms=minute * MINUTE_MS, epoch=1, records_per_s=pace, lag=7, commit_ms=3.0)
        for minute, pace in ((100, 9_999.0), (140, 1_000.0), (199, 500.0))
    ]
    [line] = [line for line in last_hour_markdown(rows).splitlines() if line.startswith("| records/s")]
    _, _, now, most, plot, _ = (cell.strip() for cell in line.split("|"))
    assert (now, most) == ("500", "1,000")
    assert "state" not in last_hour_markdown(rows)
    assert plot.strip("`") == "█" + "·" * (SHOWN_MINUTES // MINUTES_PER_BAR - 2) + "▅"


def test_the_size_of_the_state_is_a_line_of_its_own_as_far_as_it_is_known():
    rows = [
        MinuteRow(at_ms=minute * MINUTE_MS, epoch=1, records_per_s=1.0, lag=7, commit_ms=3.0, state_bytes=size)
        for minute, size in ((140, None), (150, 3 << 20), (198, 6 << 20), (199, None))
    ]
    [line] = [line for line in last_hour_markdown(rows).splitlines() if line.startswith("| state, MiB")]
    _, _, now, most, plot, _ = (cell.strip() for cell in line.split("|"))
    assert (now, most) == ("6", "6")
    assert plot.strip("`·") == "▅" + "·" * 23 + "█"
