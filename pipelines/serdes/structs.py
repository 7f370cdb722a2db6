"""Objects that msgspec decodes into a declared schema, and their columns; shared by JSON and msgpack."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, time
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import polars as pl

from weir.pipelines.serdes.row_type import RowType, row_type_of
from weir.pipelines.serdes.shapes import Choice, Field, ListOf, MapOf, Record, Scalar, record_of, schema_class
from weir.pipelines.serdes.values import is_direct, misfit, series_of


class StructSerde:
    """Base of the two: a declared schema, the struct that it is decoded into, and its columns."""

    def __init__(self, schema: Any, encoder: msgspec.json.Encoder | msgspec.msgpack.Encoder) -> None:
        self._schema = schema
        self.cls = schema_class(schema)
        self._struct = struct_of(record_of(self.cls))
        self._row_type = row_type_of(self.cls, "")
        self._encode = encoder.encode

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return type(self), (self._schema,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.cls.__name__})"

    def row_type(self, default_name: str) -> RowType:
        return self._row_type

    def encode(self, item: Any) -> bytes | None:
        return None if item is None else self._encode(item)


def struct_of(record: Record) -> type[msgspec.Struct]:
    """The struct that a dataclass is decoded into: a field of ``X | None`` may be missing, a datetime must have a zone
    and a time must not, an ``Enum`` is its value."""
    fields = []
    for name, field in record.fields:
        kind = _decoded(field)
        fields.append((name, kind, None) if field.is_optional else (name, kind))
    return msgspec.defstruct(record.cls.__name__, fields, kw_only=True, gc=False)


def _decoded(field: Field) -> Any:
    match field.shape:
        case Scalar(kind=kind):
            decoded: Any = Annotated[kind, msgspec.Meta(tz=kind is datetime)] if kind in (datetime, time) else kind
        case Choice(values=values):
            decoded = Literal[values]
        case ListOf(item=item):
            decoded = list[_decoded(item)]  # type: ignore[misc]
        case MapOf(value=value):
            decoded = dict[str, _decoded(value)]  # type: ignore[misc]
        case Record():
            decoded = struct_of(field.shape)
    return decoded | None if field.is_optional else decoded


def columns_of(row_type: RowType, objects: list[Any], without: Sequence[int]) -> list[pl.Series]:
    """``without`` are the rows whose object is None.

    Raises:
        OverflowError, TypeError, ValueError: An integer or Decimal does not fit its column.
    """
    columns = []
    for name, field in row_type.fields.items():
        values = (
            [None if item is None else getattr(item, name) for item in objects]
            if without
            else list(map(attrgetter(name), objects))
        )
        columns.append(
            pl.Series(name, values, dtype=row_type.columns[name])
            if _is_as_decoded(field)
            else series_of(name, field, values)
        )
    return columns


def _is_as_decoded(field: Field) -> bool:
    """Whether polars makes the column of what msgspec decodes, without another look at each value."""
    shape = field.shape
    if isinstance(shape, ListOf):
        return is_direct(shape)
    return isinstance(shape, Choice) or (isinstance(shape, Scalar) and shape.kind not in (Decimal, UUID))


def check_numbers(row_type: RowType, value: Any, root: str = "$.") -> None:
    """Raises ``ValueError`` when a number of ``value`` does not fit its column; ``root`` is the beginning of paths."""
    for name, field in row_type.fields.items():
        found = misfit(field, getattr(value, name), name)
        if found is not None:
            raise ValueError(f"{found.reason} - at `{root}{found.path}`")
