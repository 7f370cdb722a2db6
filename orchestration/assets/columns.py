"""The columns of a table as Dagster shows them, with their types in words."""

from __future__ import annotations

import dagster as dg
import polars as pl
from polars._typing import PolarsDataType  # has no public name

from weir.state.commit.upserts import upserts_of
from weir.state.types import TableSpec


def column_schema(spec: TableSpec) -> dg.TableSchema:
    """The columns that people read; key columns of updates are marked."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(name, type_words(dtype), tags={"weir/key": ""} if name in spec.keys else None)
            for name, dtype in (upserts_of(spec) or spec).schema.items()
        ]
    )


def type_words(dtype: PolarsDataType) -> str:
    """Such as ``integer``, ``time (ms, UTC)`` or ``list of text``; polars' own name for what has no plainer one."""
    match dtype:
        case pl.String():
            return "text"
        case pl.Boolean():
            return "true or false"
        case pl.Binary():
            return "bytes"
        case pl.Date():
            return "date"
        case pl.Int64():
            return "integer"
        case pl.Float64():
            return "number"
        case pl.Datetime(time_unit=unit, time_zone=zone):
            return f"time ({unit}, {zone or 'no time zone'})"
        case pl.Duration(time_unit=unit):
            return f"duration ({unit})"
        case pl.Decimal(precision=precision, scale=scale):
            return f"decimal ({precision} digits, {scale} after the point)"
        case pl.List(inner=inner):
            return f"list of {type_words(inner)}"
        case pl.Struct(fields=fields):
            return f"record ({', '.join(f'{field.name}: {type_words(field.dtype)}' for field in fields)})"
    if dtype.is_integer():
        return f"integer ({str(dtype).lower().removeprefix('u').removeprefix('int')} bits" + (
            ", not negative)" if dtype.is_unsigned_integer() else ")"
        )
    return str(dtype)
