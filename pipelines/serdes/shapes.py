"""Shapes: what the annotation of a field may be, and the column that it becomes.

A shape is made once, where a program is declared. Values of a shape are turned into columns and back in ``values``,
into msgspec's types in ``structs``, and into Avro's in ``avro_schema``.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from functools import cache, cached_property
from typing import Any
from uuid import UUID

import polars as pl

from weir.pipelines.errors import TopologyError

TIME = pl.Datetime("ms", "UTC")
FIRST_TIME_MS = -62_135_596_800_000
"""The first millisecond of the year 1."""
LAST_TIME_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, the latest that a datetime can hold."""
DECIMAL = pl.Decimal(38, 9)
"""The column type of a ``Decimal`` that is not annotated with another."""

_DTYPES: dict[Any, pl.DataType] = {
    int: pl.Int64(),
    float: pl.Float64(),
    str: pl.String(),
    bool: pl.Boolean(),
    bytes: pl.Binary(),
    datetime: TIME,
    date: pl.Date(),
    time: pl.Time(),
    Decimal: DECIMAL,
    UUID: pl.String(),
}
_KINDS = {dtype: kind for kind, dtype in _DTYPES.items() if kind not in (Decimal, UUID)}
_KNOWN = (
    f"{', '.join(kind.__name__ for kind in _DTYPES)}, an Enum or Literal of text or of integers, a frozen dataclass, "
    "list[X], tuple[X, ...], dict[str, X], or X | None"
)


@dataclass(frozen=True)
class Scalar:
    """One value: a number, text, bytes, a time, a Decimal, or a UUID, whose column has its canonical text."""

    kind: type
    dtype: pl.DataType


@dataclass(frozen=True)
class Choice:
    """One of several texts or integers: those of a ``Literal``, or the values of an ``Enum``."""

    values: tuple[Any, ...]
    dtype: pl.DataType
    enum: type[enum.Enum] | None = None


@dataclass(frozen=True)
class ListOf:
    """``list[X]``, or ``tuple[X, ...]``."""

    item: Field
    is_tuple: bool = False

    @cached_property
    def dtype(self) -> pl.DataType:
        return pl.List(self.item.shape.dtype)


@dataclass(frozen=True)
class MapOf:
    """``dict[str, X]``: a list of structs with the fields ``key`` and ``value``, in the dictionary's order."""

    value: Field

    @cached_property
    def dtype(self) -> pl.DataType:
        return pl.List(pl.Struct({"key": pl.String(), "value": self.value.shape.dtype}))


@dataclass(frozen=True)
class Record:
    """A frozen dataclass as a struct."""

    cls: Any
    fields: tuple[tuple[str, Field], ...]

    @cached_property
    def dtype(self) -> pl.DataType:
        return pl.Struct({name: field.shape.dtype for name, field in self.fields})


Shape = Scalar | Choice | ListOf | MapOf | Record


@dataclass(frozen=True)
class Field:
    """A shape whose value may be None, or must not."""

    shape: Shape
    is_optional: bool = False


KEY = Field(Scalar(str, pl.String()))
"""The keys of a dictionary."""


def field_of(annotation: Any, where: str, within: tuple[type, ...] = ()) -> Field:
    """The shape of an annotation; ``within`` are the dataclasses around it.

    Raises:
        TopologyError: It has none; the text names ``where``.
    """
    annotation, is_optional = without_none(annotation)
    return Field(_shape(annotation, where, within), is_optional)


@cache
def known_field(annotation: Any) -> Field:
    """``field_of`` for an annotation that is known to have a shape."""
    return field_of(annotation, "a field")


def _shape(annotation: Any, where: str, within: tuple[type, ...]) -> Shape:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        given = [each for each in arguments[1:] if isinstance(each, pl.Decimal)]
        if arguments[0] is Decimal and given:
            return Scalar(Decimal, given[0])
        return _shape(arguments[0], where, within)
    if origin is list and len(arguments) == 1:
        return ListOf(field_of(arguments[0], where, within))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return ListOf(field_of(arguments[0], where, within), is_tuple=True)
    if origin is dict and arguments[0] is str:
        return MapOf(field_of(arguments[1], where, within))
    if origin is typing.Literal:
        return _choice(arguments, where, None)
    if isinstance(annotation, type):
        if issubclass(annotation, enum.Enum):
            return _choice(tuple(member.value for member in annotation), where, annotation)
        if dataclasses.is_dataclass(annotation):
            return record_of(annotation, within)
        if annotation in _DTYPES:
            return Scalar(annotation, _DTYPES[annotation])
    raise TopologyError(f"{where} is annotated {annotation!r}, which has no column type; use {_KNOWN}")


def record_of(cls: Any, within: tuple[type, ...] = ()) -> Record:
    """The shape of a frozen dataclass; raises ``TopologyError`` as ``field_of`` does."""
    if cls in within:
        raise TopologyError(f"{cls.__name__} contains itself, so it has no end; a struct has a fixed depth")
    annotations = field_types(cls)
    if not annotations:
        raise TopologyError(f"{cls.__name__} has no fields; give it at least one, each becomes a column")
    fields = {
        name: field_of(annotation, f"{cls.__name__}.{name}", (*within, cls)) for name, annotation in annotations.items()
    }
    return Record(cls, tuple(fields.items()))


def _choice(values: tuple[Any, ...], where: str, cls: type[enum.Enum] | None) -> Choice:
    for kind in (str, int):
        if values and all(isinstance(value, kind) and not isinstance(value, bool) for value in values):
            return Choice(tuple(kind(value) for value in values), _DTYPES[kind], cls)
    name = cls.__name__ if cls else "a Literal"
    raise TopologyError(
        f"{where} is {name} of the values {', '.join(map(repr, values)) or 'none'}, which have no common column type; "
        "give it only text, or only integers"
    )


def field_types(cls: Any) -> dict[str, Any]:
    """Field name to annotation of a frozen dataclass; raises ``TopologyError`` when it is not one."""
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise TopologyError(f"{cls!r} is not a dataclass; declare the schema as a frozen dataclass")
    if not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise TopologyError(f"dataclass {cls.__name__} is not frozen; write @dataclass(frozen=True)")
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise TopologyError(
            f"dataclass {cls.__name__} has a field of the type {error.name}, which is not defined yet; "
            f"define or import it above the line that uses {cls.__name__}"
        ) from None
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def without_none(annotation: Any) -> tuple[Any, bool]:
    """``X | None`` as ``(X, True)``, anything else as ``(annotation, False)``."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        arguments = typing.get_args(annotation)
        others = [argument for argument in arguments if argument is not types.NoneType]
        if len(others) == 1 and len(others) < len(arguments):
            return others[0], True
    return annotation, False


def normal_dtype(dtype: pl.DataType, where: str) -> pl.DataType:
    """The column type in which an expression's result is kept: all integers as Int64, all floats as Float64.

    Raises:
        TopologyError: It cannot be kept.
    """
    if dtype.is_integer():
        return pl.Int64()
    if dtype.is_float():
        return pl.Float64()
    if isinstance(dtype, pl.Datetime):
        return TIME
    if isinstance(dtype, pl.List):
        return pl.List(normal_dtype(dtype.inner, where))  # type: ignore[arg-type]
    if isinstance(dtype, pl.Struct) and dtype.fields:
        return pl.Struct({field.name: normal_dtype(field.dtype, where) for field in dtype.fields})  # type: ignore[arg-type]
    if isinstance(dtype, pl.Decimal) or dtype in _KINDS:
        return dtype
    raise TopologyError(
        f"{where} has type {dtype}, which cannot be kept; cast it to an integer, float, decimal, string, "
        "boolean, binary, date, time or datetime, or a list or struct of these"
    )


def annotation_of(dtype: pl.DataType) -> Any:
    """The annotation of a column of this type, without None. A struct gets a dataclass with its fields; a list of
    structs of a text ``key`` and a ``value`` is a dictionary."""
    if isinstance(dtype, pl.List):
        inner: Any = dtype.inner
        if isinstance(inner, pl.Struct) and [field.name for field in inner.fields] == ["key", "value"]:
            key, value = inner.fields
            if key.dtype == pl.String():
                return dict[str, annotation_of(value.dtype) | None]  # type: ignore[misc, arg-type]
        return list[annotation_of(inner)]  # type: ignore[misc]
    if isinstance(dtype, pl.Struct):
        return row_class(tuple((field.name, field.dtype, False) for field in dtype.fields))
    if isinstance(dtype, pl.Decimal):
        return Decimal if dtype == DECIMAL else typing.Annotated[Decimal, dtype]
    return _KINDS[dtype]


@cache
def row_class(fields: tuple[tuple[str, Any, bool], ...]) -> type:
    """The frozen dataclass with these fields: one per process, so that equal rows compare equal; its rows pickle.

    A field is its name, its column type or its annotation without None, and whether it is required.
    """

    def reduced(row: Any) -> tuple[Any, ...]:
        return _row, (fields, *(getattr(row, name) for name, *_ in fields))

    annotations = [
        (name, kind if is_required else kind | None)
        for name, kind, is_required in (
            (name, annotation_of(kind) if isinstance(kind, pl.DataType) else kind, is_required)
            for name, kind, is_required in fields
        )
    ]
    return dataclasses.make_dataclass("Row", annotations, frozen=True, namespace={"__reduce__": reduced})


def _row(fields: tuple[tuple[str, Any, bool], ...], *values: Any) -> Any:
    """Rebuilds a pickled row."""
    return row_class(fields)(*values)


def row_of(columns: Mapping[str, pl.DataType], declared: Mapping[str, Any]) -> type:
    """The dataclass of rows with these columns; ``declared`` has the annotations that some were declared with."""
    return row_class(tuple((name, declared.get(name, dtype), True) for name, dtype in columns.items()))


def schema_class(schema: Any) -> Any:
    """The frozen dataclass for ``schema``: itself, or one made from an Arrow or polars schema.

    An Arrow field that is not nullable is required; polars and structs have no such fields. Integers become 64 bits
    wide, floats double, times UTC in milliseconds.

    Raises:
        TopologyError: A field's type has no column type.
    """
    if isinstance(schema, type) or not (isinstance(schema, pl.Schema) or hasattr(schema, "__arrow_c_schema__")):
        return schema
    required = set()
    if not isinstance(schema, pl.Schema):
        required = {field.name for field in schema if not field.nullable}
        schema = pl.Schema(schema)
    return row_class(
        tuple((name, normal_dtype(dtype, f"the field {name!r}"), name in required) for name, dtype in schema.items())
    )
