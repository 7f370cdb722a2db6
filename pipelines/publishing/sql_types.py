"""Types of a SQL database's columns: which one a column gets, and which ones of a table that is there take its values
without a loss."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import polars as pl
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Date,
    DateTime,
    Double,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    String,
    Text,
    Time,
    Uuid,
)
from sqlalchemy.dialects.postgresql import DOMAIN, JSONB
from sqlalchemy.types import NullType, TypeEngine

from weir.pipelines.serdes.shapes import Field
from weir.pipelines.sinks.sql import is_nested

SQLITE_DIGITS = 15
"""The most digits that SQLite keeps of a number with a point; those of more are text."""

_TYPES: dict[Any, TypeEngine[Any]] = {
    pl.String: Text(),
    pl.Int64: BigInteger(),
    pl.Float64: Double(),
    pl.Boolean: Boolean(),
    pl.Binary: LargeBinary(),
    pl.Datetime: DateTime(timezone=True),
    pl.Date: Date(),
    pl.Time: Time(),
}
_TEXT_IN_SQLITE = (DateTime, Date, Time, Uuid, JSONB)


def column_type(field: Field, dialect: str) -> TypeEngine[Any]:
    """The type of the column that a new table gets for a field."""
    found = _column_type(field)
    if dialect == "sqlite" and (
        isinstance(found, _TEXT_IN_SQLITE)
        or (isinstance(found, Numeric) and (found.precision is None or found.precision > SQLITE_DIGITS))
    ):
        return Text()
    return found


def _column_type(field: Field) -> TypeEngine[Any]:
    if is_nested(field):
        return JSONB()
    if getattr(field.shape, "kind", None) is UUID:
        return Uuid()
    dtype = field.shape.dtype
    if isinstance(dtype, pl.Decimal):
        return Numeric(dtype.precision, dtype.scale)
    return _TYPES[type(dtype)]


def takes(found: TypeEngine[Any], wanted: TypeEngine[Any], dialect: str) -> bool:
    """Whether a column of the type that was found keeps every value of the wanted type, or refuses it: a longer text,
    or a number that is out of its range, is refused and not cut."""
    if isinstance(found, DOMAIN):
        found = found.data_type
    if dialect == "sqlite" and isinstance(found, NullType):
        return True  # it keeps whatever it gets
    match wanted:
        case Text():
            # A column of SQLite for times or JSON keeps text that is no number.
            return isinstance(found, (String, DateTime, Date, Time, JSON) if dialect == "sqlite" else String)
        case BigInteger():
            return isinstance(found, Integer)
        case Double():
            return isinstance(found, Float if dialect == "sqlite" else Double)
        case Boolean():
            return isinstance(found, (Boolean, Integer) if dialect == "sqlite" else Boolean)
        case LargeBinary():
            return isinstance(found, LargeBinary)
        case DateTime():
            return isinstance(found, DateTime) and bool(found.timezone)
        case Date():
            return isinstance(found, Date)
        case Time():
            return isinstance(found, Time) and not found.timezone
        case Uuid():
            return isinstance(found, (Uuid, String))
        case JSONB():
            return isinstance(found, JSON)
        case Numeric():
            if not isinstance(found, Numeric) or isinstance(found, Float):
                return False
            return dialect == "sqlite" or found.precision is None or (found.scale or 0) >= (wanted.scale or 0)
    return False
