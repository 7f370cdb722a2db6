"""Headers of records: the column that holds them, and Python's view of one record's.

Headers are pairs of a name and bytes, or of a name and None, in order; a name may occur more than once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

Headers = tuple[tuple[str, bytes | None], ...]
HEADERS = "_headers"
HEADERS_TYPE = pl.List(pl.Struct({"key": pl.String(), "value": pl.Binary()}))
"""The type of the column. A record without headers has an empty list."""
NO_HEADERS = pl.Series(HEADERS, [[]], HEADERS_TYPE)


def headers_column(items: Iterable[Iterable[tuple[str, bytes | None]]]) -> pl.Series:
    """The headers of each record."""
    rows = [[{"key": key, "value": value} for key, value in pairs] for pairs in items]
    return pl.Series(HEADERS, rows, HEADERS_TYPE)


def headers_of(cell: Sequence[Mapping[str, Any]] | None) -> Headers:
    """One cell of the column as pairs."""
    return tuple([(each["key"], each["value"]) for each in cell]) if cell else ()


def with_headers(rows: pl.DataFrame) -> pl.DataFrame:
    """``rows`` with empty headers where they have none."""
    if HEADERS not in rows.columns:
        return rows.with_columns_seq(NO_HEADERS.new_from_index(0, rows.height))
    if not rows.get_column(HEADERS).null_count():
        return rows
    return rows.with_columns_seq(pl.col(HEADERS).fill_null(pl.lit(NO_HEADERS)))


def checked_headers(headers: Any) -> Headers:
    """Pairs that a program gives, as a tuple.

    Raises:
        TypeError: They are something else.
    """
    try:
        pairs = tuple((key, value) for key, value in headers)
    except (TypeError, ValueError):
        pairs = (None,)  # type: ignore[assignment]
    for pair in pairs:
        if pair is None or not (isinstance(pair[0], str) and (pair[1] is None or isinstance(pair[1], bytes))):
            raise TypeError(
                f"headers are pairs of a name and bytes or None, but got {headers!r}; pass for example "
                '[("trace", b"17")]'
            )
    return pairs
