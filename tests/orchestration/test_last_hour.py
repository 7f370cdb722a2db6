"""The hour's plot, in text."""

from weir.infra.control import MinuteRow
from weir.orchestration.last_hour import MINUTE_MS, MINUTES_A_BAR, SHOWN_MINUTES, bars, last_hour_markdown


def test_bars_go_from_zero_to_the_greatest_value_and_leave_gaps_where_nothing_was_read():
    assert bars([0, 50, 100, None, 100]) == "▁▅█·█"
    assert bars([0, 0]) == "▁▁"


def test_the_hour_ends_with_the_newest_minute_and_older_ones_are_left_out():
    rows = [
        MinuteRow(at_ms=minute * MINUTE_MS, epoch=1, records_per_s=pace, lag=7, commit_ms=3.0)
        for minute, pace in ((100, 9_999.0), (140, 1_000.0), (199, 500.0))
    ]
    [line] = [line for line in last_hour_markdown(rows).splitlines() if line.startswith("| records/s")]
    _, _, now, most, plot, _ = (cell.strip() for cell in line.split("|"))
    assert (now, most) == ("500", "1,000")
    assert plot.strip("`") == "█" + "·" * (SHOWN_MINUTES // MINUTES_A_BAR - 2) + "▅"
