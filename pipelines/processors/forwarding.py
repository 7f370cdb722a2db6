"""What processors send on: single records, and rows as columns, each with what the processor was called for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import polars as pl

from weir.pipelines.processors.records import FixedKeyRecord, Record
from weir.pipelines.serdes.headers import HEADERS, HEADERS_TYPE, with_headers
from weir.state.frames import framed, repeated

RESERVED = pl.Schema({"_ts": pl.Int64(), "_partition": pl.Int32(), "_offset": pl.Int64(), "_deleted": pl.Boolean()})
"""The columns that rows have beside those of key and value."""
PLACE = ("_partition", "_offset")
"""Those of them that say which record a row is from."""


class Cause(NamedTuple):
    """What a processor is called for."""

    partition: int
    offset: int
    time_ms: int
    is_record: bool = False
    """Whether it is called with the record of this place."""
    key: Any = None
    """That record's key, as the processor takes it."""
    call: str = "process"
    """The name of what is called."""


class Forwarded(NamedTuple):
    """A record that a processor has sent on."""

    record: Record[Any, Any] | FixedKeyRecord[Any, Any]
    cause: Cause
    child: int | None


class ForwardedRows(NamedTuple):
    """Rows that a batch processor has sent on."""

    rows: pl.DataFrame
    child: int | None


def forwarded_rows(
    given: Any, columns: pl.Schema, cause: Cause, batch: pl.DataFrame | None = None, *, has_headers: bool = False
) -> pl.DataFrame:
    """The rows that a batch processor gives: the key and value ``columns``, then those of ``RESERVED``.

    Rows without a place have those of the ``batch`` that it was given, if they are as many and have the same times, and
    else that of ``cause``; rows without ``_deleted`` are no tombstones. With ``has_headers``, ``_headers`` comes last,
    empty where it is not given.

    Raises:
        TypeError: It is no frame, or lacks a column, or one has another type.
    """
    if not isinstance(given, pl.DataFrame):
        way_out = "; call .collect() on it" if isinstance(given, pl.LazyFrame) else ""
        raise TypeError(f"a batch processor gives a polars DataFrame, but got {type(given).__name__}{way_out}")
    if missing := [name for name in (*columns, "_ts") if name not in given.columns]:
        raise TypeError(
            f"the rows to forward lack {' and '.join(map(repr, missing))}; they have "
            + (", ".join(given.columns) or "no columns")
            + (", and each needs its time in _ts (Int64, ms)" if "_ts" in missing else "")
        )
    if given.get_column("_ts").null_count():
        raise TypeError("the rows to forward have nulls in _ts; give each row its time (Int64, ms)")
    defaults = {"_partition": cause.partition, "_offset": cause.offset, "_deleted": False}
    schema = pl.Schema({**columns, **RESERVED})
    rows: pl.DataFrame = with_headers(given) if has_headers else given
    if batch is not None and not {*PLACE} & {*rows.columns} and rows.get_column("_ts").equals(batch.get_column("_ts")):
        rows = rows.with_columns_seq(batch.get_column(name) for name in PLACE)
    if has_headers:
        schema[HEADERS] = HEADERS_TYPE
    return framed(
        [
            _cast(rows.get_column(name), dtype)
            if name in rows.columns
            else repeated(name, defaults[name], rows.height, np.int64).cast(dtype)
            for name, dtype in schema.items()
        ]
    )


def _cast(column: pl.Series, dtype: pl.DataType) -> pl.Series:
    """The column as ``dtype``, if none of its values can change by that."""
    given = column.dtype
    is_harmless = (
        given == dtype
        or given == pl.Null
        or (given.is_integer() and (dtype.is_integer() or dtype.is_float()))
        or (given.is_float() and dtype.is_float())
        or (isinstance(given, pl.Datetime) and isinstance(dtype, pl.Datetime) and given.time_zone == dtype.time_zone)
        or (given.is_nested() and dtype.is_nested())
    )
    if not is_harmless:
        raise TypeError(
            f"the rows to forward have the column {column.name!r} as {given}, but it is declared {dtype}; cast it"
        )
    return column.cast(dtype)
