"""Rows for people and for programs: a polars frame as a table on the terminal or as JSON."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import polars as pl
from rich.console import Console

from weir.pipelines.serdes.row_type import as_datetimes, is_datetime

BOOKKEEPING = ("_ts", "_epoch", "_seq", "_deleted")
"""Columns that Weir adds to its tables; ``show`` and ``query`` leave them out."""

console = Console(highlight=False)
"""Results go to standard output; messages about the work go to ``notices``."""
notices = Console(stderr=True, highlight=False)


def without_bookkeeping(frame: pl.DataFrame) -> pl.DataFrame:
    """The columns that the application itself declared."""
    return frame.drop([name for name in frame.columns if name in BOOKKEEPING])


def as_dictionaries(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """One dictionary a row; a time that no datetime holds is text, as ``+10000-01-01T00:00:00Z``."""
    columns = [_values(column) for column in frame.get_columns()]
    return [dict(zip(frame.columns, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pl.Series) -> list[Any]:
    values = as_datetimes(column).to_list()
    if isinstance(column.dtype, pl.Datetime):
        for place in (~is_datetime(column)).arg_true():
            values[place] = column[place : place + 1].dt.strftime("%Y-%m-%dT%H:%M:%SZ")[0]
    return values


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M" if value.second == value.microsecond == 0 else "%Y-%m-%d %H:%M:%S")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def print_table(frame: pl.DataFrame, title: str = "") -> None:
    """One row a line, never cropped: numbers to the right, times in UTC, ``-`` where a value is null."""
    lines = [frame.columns, *([_cell(value) for value in row.values()] for row in as_dictionaries(frame))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    is_number = [dtype.is_numeric() for dtype in frame.dtypes]
    if title:
        console.print(title, style="bold", markup=False, soft_wrap=True)
    for number, line in enumerate(lines):
        text = "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_number, strict=True)
        )
        console.print(text.rstrip(), style=None if number else "bold", markup=False, soft_wrap=True)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def print_json(value: Any) -> None:
    """Write one JSON document to standard output; times as ISO 8601, bytes as text."""
    console.file.write(json.dumps(value, default=_plain, indent=2) + "\n")
