"""Rows of tables and stores as plain values."""

from __future__ import annotations

from typing import Any

import polars as pl

from weir.pipelines.serdes.values import as_datetimes, is_datetime

BOOKKEEPING = ("_ts", "_epoch", "_seq", "_deleted")
"""The columns that Weir adds to its tables."""


def without_bookkeeping(frame: pl.DataFrame) -> pl.DataFrame:
    """The columns that the application itself declared."""
    return frame.drop([name for name in frame.columns if name in BOOKKEEPING])


def as_dictionaries(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """One dictionary per row; a time outside the range of ``datetime`` is text, such as ``+10000-01-01T00:00:00Z``."""
    columns = [_values(column) for column in frame.get_columns()]
    return [dict(zip(frame.columns, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pl.Series) -> list[Any]:
    values = as_datetimes(column).to_list()
    if isinstance(column.dtype, pl.Datetime):
        for place in (~is_datetime(column)).arg_true():
            values[place] = column[place : place + 1].dt.strftime("%Y-%m-%dT%H:%M:%SZ")[0]
    return values
