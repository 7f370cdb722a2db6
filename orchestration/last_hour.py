"""The last hour of a run as Markdown: a line of bars each for pace, lag and commits, a bar every two minutes."""

from __future__ import annotations

from collections.abc import Sequence

from weir.infra.control.rows import MinuteRow

MINUTE_MS = 60_000
SHOWN_MINUTES = 60
MINUTES_A_BAR = 2
"""Sixty bars are wider than the column that Dagster gives them."""
BARS = "▁▂▃▄▅▆▇█"
NO_READING = "·"


def bars(values: Sequence[float | None]) -> str:
    """A character a value, from zero to the greatest of them; ``·`` where there is no reading."""
    top = max((value for value in values if value is not None), default=0.0)
    return "".join(
        NO_READING if value is None else BARS[round(value / top * (len(BARS) - 1)) if top > 0 else 0]
        for value in values
    )


def last_hour_markdown(minutes: Sequence[MinuteRow]) -> str:
    """A table of three lines over the hour that ends with the newest reading; one sentence where there is none."""
    if not minutes:
        return "no reading in the last hour"
    by_minute = {row.at_ms // MINUTE_MS: row for row in minutes}
    newest = max(by_minute)
    rows = [by_minute.get(minute) for minute in range(newest - SHOWN_MINUTES + 1, newest + 1)]
    lines = ["| | now | most | the hour |", "| --- | ---: | ---: | --- |"]
    for title, column in (("records/s", "records_per_s"), ("lag, records", "lag"), ("commit, ms", "commit_ms")):
        values = [None if row is None else getattr(row, column) for row in rows]
        most = max(value for value in values if value is not None)
        means = [_mean(values[start : start + MINUTES_A_BAR]) for start in range(0, SHOWN_MINUTES, MINUTES_A_BAR)]
        lines.append(f"| {title} | {values[-1]:,.0f} | {most:,.0f} | `{bars(means)}` |")
    return "\n".join(lines)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
