"""Objects that msgspec decodes into a declared schema, and their columns; shared by JSON and msgpack."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import polars as pl

from weir.pipelines.serdes.row_type import RowType, field_types, row_type_of, schema_class, without_none

_INT64 = range(-(2**63), 2**63)


class StructSerde:
    """Base of the two: a declared schema, the struct that it is decoded into, and its columns."""

    def __init__(self, schema: Any, encoder: msgspec.json.Encoder | msgspec.msgpack.Encoder) -> None:
        self._schema = schema
        self.cls = schema_class(schema)
        self._struct = struct_of(self.cls)
        self._row_type = row_type_of(self.cls, "")
        self._encode = encoder.encode

    def __reduce__(self) -> tuple[type, tuple[Any]]:
        return type(self), (self._schema,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.cls.__name__})"

    def row_type(self, default_name: str) -> RowType:
        return self._row_type

    def encode(self, item: Any) -> bytes | None:
        return None if item is None else self._encode(item)


def struct_of(cls: Any) -> type[msgspec.Struct]:
    """The struct that ``cls`` is decoded into: a field of ``X | None`` may be missing, a time must have a zone."""
    fields = []
    for name, annotation in field_types(cls).items():
        kind, is_optional = without_none(annotation)
        if kind is datetime:
            kind = Annotated[datetime, msgspec.Meta(tz=True)]
        fields.append((name, kind | None, None) if is_optional else (name, kind))
    return msgspec.defstruct(cls.__name__, fields, kw_only=True, gc=False)


def columns_of(row_type: RowType, objects: list[Any], without: Sequence[int]) -> list[pl.Series]:
    """``without`` are the rows whose object is None.

    Raises:
        OverflowError, TypeError: An integer does not fit into 64 bits.
    """
    if without:
        return [
            pl.Series(name, [None if item is None else getattr(item, name) for item in objects], dtype=dtype)
            for name, dtype in row_type.columns.items()
        ]
    return [
        pl.Series(name, list(map(attrgetter(name), objects)), dtype=dtype) for name, dtype in row_type.columns.items()
    ]


def check_integers(row_type: RowType, value: Any) -> None:
    """Raises ``ValueError`` when an integer of ``value`` does not fit into 64 bits."""
    for name, dtype in row_type.columns.items():
        if not _fits(dtype, getattr(value, name)):
            raise ValueError(f"an integer does not fit into 64 bits - at `$.{name}`")


def _fits(dtype: pl.DataType, value: Any) -> bool:
    if isinstance(dtype, pl.List):
        return value is None or all(_fits(dtype.inner, item) for item in value)  # type: ignore[arg-type]
    return dtype != pl.Int64() or value is None or value in _INT64
