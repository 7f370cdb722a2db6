"""Prints polars frames as tables, for people, and values as JSON, for programs."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rich.console import Console

from weir.state.printable import printable

if TYPE_CHECKING:
    import polars as pl

console = Console(highlight=False, emoji=False)
"""Results go to standard output; messages about the work go to ``notices``."""
notices = Console(stderr=True, highlight=False, emoji=False)


def _cell(value: Any, with_ms: bool) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", "milliseconds" if with_ms else "seconds")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, Decimal):
        return f"{value:,f}"
    if isinstance(value, bytes):
        return printable(value.decode("utf-8", "backslashreplace"))
    if isinstance(value, dict | list):
        return printable(json.dumps(value, default=_plain, ensure_ascii=False))
    return printable(str(value))


def _differ_within_seconds(values: Iterable[Any]) -> bool:
    times = {value for value in values if isinstance(value, datetime)}
    return len({each.replace(microsecond=0) for each in times}) < len(times)


def print_table(frame: pl.DataFrame, title: str = "") -> None:
    """One row per line, never truncated: numbers right-aligned, times in UTC, ``-`` for null, structured values as
    JSON. Times are given to the second, or to the millisecond where different ones of a column would look the same."""
    from weir.pipelines.operations.rows import as_dictionaries

    rows = [list(row.values()) for row in as_dictionaries(frame)]
    with_ms = list(map(_differ_within_seconds, zip(*rows, strict=True)))
    lines = [frame.columns, *(list(map(_cell, row, with_ms)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    is_number = [dtype.is_numeric() for dtype in frame.dtypes]
    if title:
        console.print(title, style="bold", markup=False, soft_wrap=True)
    for number, line in enumerate(lines):
        text = "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_number, strict=True)
        )
        console.print(text.rstrip(" "), style=None if number else "bold", markup=False, soft_wrap=True)


def _plain(value: Any) -> Any:
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def print_json(value: Any) -> None:
    """Write one JSON document to standard output; times as ISO 8601, decimals and bytes as text."""
    console.file.write(json.dumps(value, default=_plain, indent=2) + "\n")


def print_csv(frame: pl.DataFrame) -> None:
    """Write a line of column names and one per row: times as ISO 8601, structured values as JSON, nothing for null."""
    from weir.pipelines.operations.rows import as_dictionaries

    lines = csv.writer(console.file, lineterminator="\n")
    lines.writerow(frame.columns)
    lines.writerows([_field(value) for value in row.values()] for row in as_dictionaries(frame))


def _field(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return json.dumps(value, default=_plain, ensure_ascii=False)
    return value if value is None or isinstance(value, str | int | float) else _plain(value)


def print_json_line(value: Any) -> None:
    """Write one JSON document on a line of its own to standard output, at once."""
    console.file.write(json.dumps(value, default=_plain, ensure_ascii=False) + "\n")
    console.file.flush()
