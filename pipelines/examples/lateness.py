"""A report on the flights' final results: how late departures are, by hour of the day."""

from __future__ import annotations

import polars as pl


def lateness_by_hour(finals: pl.DataFrame) -> pl.DataFrame:
    """``hour`` (UTC, of the window's start), ``flights``, ``late`` and the ``share`` that was late, by hour.

    ``finals`` are rows of ``late_departures``.
    """
    return (
        finals.group_by(hour=pl.col("window_start").dt.hour())
        .agg(pl.col("flights", "late").sum())
        .with_columns(share=pl.col("late") / pl.col("flights"))
        .sort("hour")
    )
