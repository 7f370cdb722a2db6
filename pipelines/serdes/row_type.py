"""Row types: how a Python type (a frozen dataclass, or a scalar) maps to the columns of a frame, and back.

Every key, value and state of a topology has one. Reading and writing bytes belongs to the serdes beside it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import cache, cached_property
from typing import Any

import numpy as np
import polars as pl

from weir.pipelines.errors import TopologyError

TIME = pl.Datetime("ms", "UTC")
FIRST_TIME_MS = -62_135_596_800_000
"""The first millisecond of the year 1."""
LAST_TIME_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, the latest that a datetime can hold."""

_DTYPES: dict[Any, pl.DataType] = {
    int: pl.Int64(),
    float: pl.Float64(),
    str: pl.String(),
    bool: pl.Boolean(),
    bytes: pl.Binary(),
    datetime: TIME,
    date: pl.Date(),
}
_ACCEPTED: dict[Any, tuple[type, ...]] = {
    int: (int, np.integer),
    float: (float, int, np.floating, np.integer),
    str: (str,),
    bool: (bool, np.bool),
    bytes: (bytes,),
    datetime: (datetime,),
    date: (date,),
}
_ANNOTATIONS = {dtype: annotation for annotation, dtype in _DTYPES.items()}


@dataclasses.dataclass(frozen=True)
class RowType:
    """Typed columns and the Python type that they represent.

    ``python_type`` is None for columns that came from expressions; objects made from those belong to a dataclass
    with the same fields, shared by all row types with the same columns. A scalar has one column and no fields.
    """

    columns: pl.Schema
    is_scalar: bool = False
    python_type: type | None = None

    @cached_property
    def annotations(self) -> dict[str, Any]:
        """The Python type of each column's values, apart from None."""
        return {name: annotation_of(dtype) for name, dtype in self.columns.items()}

    def to_objects(self, frame: pl.DataFrame, absent: pl.Series | None = None) -> list[Any]:
        """One object per row, in order; None where ``absent`` (Boolean, same length) is true. Times are converted as
        by ``as_datetimes``."""
        lists = [as_datetimes(frame.get_column(name)).to_list() for name in self.columns]
        if self.is_scalar:
            objects = lists[0]
        else:
            make = self._constructor()
            objects = [make(*row) for row in zip(*lists, strict=True)]
        if absent is None:
            return objects
        return [None if missing else item for item, missing in zip(objects, absent.to_list(), strict=True)]

    def to_columns(self, objects: Sequence[Any]) -> list[pl.Series]:
        """The columns of ``objects``, all null where an object is None.

        Raises:
            TypeError: An object does not fit the declared columns.
        """
        if self.is_scalar:
            ((name, dtype),) = self.columns.items()
            return [_series(name, dtype, list(objects))]
        return [
            _series(name, dtype, [None if item is None else getattr(item, name) for item in objects])
            for name, dtype in self.columns.items()
        ]

    def misfit(self, objects: Sequence[Any]) -> tuple[int, str] | None:
        """The first of ``objects`` that does not fit the declared columns, and why; None if all fit."""
        for index, item in enumerate(objects):
            for name, dtype in self.columns.items():
                if item is not None and not self.is_scalar and not hasattr(item, name):
                    return index, f"it returned {_kind(item)}, which has no {name!r}"
                value = item if item is None or self.is_scalar else getattr(item, name)
                try:
                    _series(name, dtype, [value])
                except (AttributeError, TypeError, OverflowError):
                    return index, (
                        f"the column {name!r} is declared {_name(self.annotations[name])}, and it returned "
                        f"{_kind(value)}"
                    )
        return None

    def _constructor(self) -> Callable[..., Any]:
        """Makes one object from the columns' values, in their order."""
        cls = self.python_type
        if cls is not None:
            if not any(field.kw_only for field in dataclasses.fields(cls)):
                return cls
            names = list(self.columns)
            return lambda *values: cls(**dict(zip(names, values, strict=True)))
        return _row_class(tuple(self.annotations.items()))


@cache
def _row_class(fields: tuple[tuple[str, Any], ...]) -> type:
    """The frozen dataclass with these fields: one per process, so that equal rows compare equal; its rows pickle."""

    def reduced(row: Any) -> tuple[Any, ...]:
        return _row, (fields, *(getattr(row, name) for name, _ in fields))

    return dataclasses.make_dataclass("Row", fields, frozen=True, namespace={"__reduce__": reduced})


def _row(fields: tuple[tuple[str, Any], ...], *values: Any) -> Any:
    """Rebuilds a pickled row."""
    return _row_class(fields)(*values)


def key_frame(columns: Mapping[str, pl.DataType], key: Any) -> pl.DataFrame:
    """A key as one row of ``columns``, all null for None.

    It is a dataclass or dictionary with exactly these fields, a tuple in their order, or the value of a single column.

    Raises:
        TypeError: The key has another shape, or one of its values another type.
    """
    item = key
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        item = {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    elif item is None or (len(columns) == 1 and not isinstance(item, (tuple, Mapping))):
        item = dict.fromkeys(columns, item)
    elif isinstance(item, tuple) and len(item) == len(columns):
        item = dict(zip(columns, item, strict=True))
    kinds = {name: annotation_of(normal_dtype(dtype, name)) for name, dtype in columns.items()}
    try:
        if (
            isinstance(item, Mapping)
            and item.keys() == kinds.keys()
            and all(item[name] is None or fits(kind, item[name]) for name, kind in kinds.items())
        ):
            return pl.DataFrame([_series(name, dtype, [item[name]]) for name, dtype in columns.items()])
    except (TypeError, OverflowError):  # a naive time, or a number that is too large: refused below
        pass
    named = ", ".join(f"{name} ({_name(kind)})" for name, kind in kinds.items())
    ways = "a tuple in their order, a dictionary, or an object with these fields" if len(columns) > 1 else "its value"
    raise TypeError(
        f"{key!r} does not fit the key, which has the column{'s' * (len(columns) > 1)} {named}; pass {ways}"
    )


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _kind(value: Any) -> str:
    """The type of a value, without revealing the value."""
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}[{' | '.join(sorted({_kind(each) for each in value}))}]"
    if isinstance(value, datetime) and value.tzinfo is None:
        return "datetime without a time zone"
    is_large = isinstance(value, int) and value.bit_length() > 63
    return f"{type(value).__name__} beyond 64 bits" if is_large else type(value).__name__


def as_datetimes(times: pl.Series) -> pl.Series:
    """The column with times that Python can hold: one after the year 9999, such as the end of a window, becomes
    ``datetime.max`` in UTC, one before the year 1 ``datetime.min``. Other columns are returned as they are."""
    if not isinstance(times.dtype, pl.Datetime) or is_datetime(times).all():
        return times
    bounds = pl.Series([datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
    lowest, highest = bounds.cast(pl.Datetime("us", "UTC"))
    return times.cast(pl.Datetime("us", "UTC")).clip(lowest, highest)


def is_datetime(times: pl.Series) -> pl.Series:
    """Which times a datetime can hold (Boolean), true for null."""
    return times.dt.timestamp("ms").is_between(FIRST_TIME_MS, LAST_TIME_MS).fill_null(True)


def _series(name: str, dtype: pl.DataType, values: list[Any]) -> pl.Series:
    if dtype == pl.Float64():
        values = [float(value) if type(value) is int else value for value in values]
    elif dtype == TIME and any(value is not None and value.tzinfo is None for value in values):
        raise TypeError(f"{name} is a datetime without a time zone")
    return pl.Series(name, values, dtype=dtype, strict=True)


def row_type_of(annotation: Any, scalar_name: str) -> RowType:
    """The row type of a frozen dataclass, or of a scalar as the one column ``scalar_name``.

    Raises:
        TopologyError: The annotation is neither, or a field's type has no column type.
    """
    cls: Any = without_none(annotation)[0]
    fields = field_types(cls) if dataclasses.is_dataclass(cls) else None
    if fields is None:
        return RowType(pl.Schema({scalar_name: dtype_of(cls, scalar_name)}), True, cls)
    if not fields:
        raise TopologyError(f"{cls.__name__} has no fields; give it at least one, each becomes a column")
    columns = {name: dtype_of(kind, f"{cls.__name__}.{name}") for name, kind in fields.items()}
    return RowType(pl.Schema(columns), False, cls)


def field_types(cls: Any) -> dict[str, Any]:
    """Field name to annotation of a frozen dataclass; raises ``TopologyError`` when it is not one."""
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise TopologyError(f"{cls!r} is not a dataclass; declare the schema as a frozen dataclass")
    if not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise TopologyError(f"dataclass {cls.__name__} is not frozen; write @dataclass(frozen=True)")
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def without_none(annotation: Any) -> tuple[Any, bool]:
    """``X | None`` as ``(X, True)``, anything else as ``(annotation, False)``."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        arguments = typing.get_args(annotation)
        others = [argument for argument in arguments if argument is not types.NoneType]
        if len(others) == 1 and len(others) < len(arguments):
            return others[0], True
    return annotation, False


def dtype_of(annotation: Any, where: str) -> pl.DataType:
    """The column type of a field's annotation; raises ``TopologyError`` naming ``where`` when there is none."""
    annotation, _ = without_none(annotation)
    if typing.get_origin(annotation) is list:
        return pl.List(dtype_of(typing.get_args(annotation)[0], where))
    try:
        return _DTYPES[annotation]
    except (KeyError, TypeError):
        known = ", ".join(kind.__name__ for kind in _DTYPES)
        raise TopologyError(
            f"{where} is annotated {annotation!r}, which has no column type; use one of {known}, "
            "a list of one, or X | None"
        ) from None


def fits(annotation: Any, value: Any) -> bool:
    """Whether an object fits a column's annotation: integers count as floats, booleans do not count as numbers."""
    if type(value) is annotation:
        return True
    if typing.get_origin(annotation) is list:
        inner = typing.get_args(annotation)[0]
        return isinstance(value, (list, tuple)) and all(each is None or fits(inner, each) for each in value)
    return isinstance(value, _ACCEPTED[annotation]) and (not isinstance(value, bool) or annotation is bool)


def normal_dtype(dtype: pl.DataType, where: str) -> pl.DataType:
    """The column type in which an expression's result is kept: all integers as Int64, all floats as Float64."""
    if dtype.is_integer():
        return pl.Int64()
    if dtype.is_float():
        return pl.Float64()
    if isinstance(dtype, pl.Datetime):
        return TIME
    if isinstance(dtype, pl.List):
        return pl.List(normal_dtype(dtype.inner, where))  # type: ignore[arg-type]
    if dtype in _ANNOTATIONS:
        return dtype
    raise TopologyError(
        f"{where} has type {dtype}, which cannot be kept; cast it to an integer, float, string, "
        "boolean, binary, date or datetime"
    )


def schema_class(schema: Any) -> Any:
    """The frozen dataclass for ``schema``: itself, or one made from an Arrow or polars schema.

    An Arrow field that is not nullable is required; polars has no such fields. Integers become 64 bits wide, floats
    double, times UTC in milliseconds.

    Raises:
        TopologyError: A field's type has no column type.
    """
    if isinstance(schema, type) or not (isinstance(schema, pl.Schema) or hasattr(schema, "__arrow_c_schema__")):
        return schema
    required = set()
    if not isinstance(schema, pl.Schema):
        required = {field.name for field in schema if not field.nullable}
        schema = pl.Schema(schema)
    fields = []
    for name, dtype in schema.items():
        kind = annotation_of(normal_dtype(dtype, f"the field {name!r}"))
        fields.append((name, kind if name in required else kind | None))
    return _row_class(tuple(fields))


def annotation_of(dtype: pl.DataType) -> Any:
    """The annotation of a column of this type, without None."""
    return list[annotation_of(dtype.inner)] if isinstance(dtype, pl.List) else _ANNOTATIONS[dtype]  # type: ignore[misc, arg-type]
