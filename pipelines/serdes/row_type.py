"""Row types: how a Python type (a frozen dataclass, or a scalar) maps to the columns of a frame, and back.

Every key, value and state of a topology has one. Reading and writing bytes belongs to the serdes beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Any
from uuid import UUID

import polars as pl

from weir.pipelines.serdes.shapes import (
    Field,
    annotation_of,
    field_of,
    field_types,
    known_field,
    normal_dtype,
    record_of,
    row_of,
    without_none,
)
from weir.pipelines.serdes.values import constructor, kind_of, misfit, name_of, objects_of, series_of


@dataclasses.dataclass(frozen=True)
class RowType:
    """Typed columns and the Python type that they represent.

    ``python_type`` is None for columns that came from expressions; objects made from those belong to a dataclass
    with the same fields, shared by all row types with the same columns. A scalar has one column and no fields.
    """

    columns: pl.Schema
    is_scalar: bool = False
    python_type: Any = None
    declared: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Where there is no Python type: the annotations of columns that keep the one they were declared with."""

    @cached_property
    def annotations(self) -> dict[str, Any]:
        """The annotation of each column, without None."""
        if self.python_type is None:
            return {name: self.declared.get(name, annotation_of(dtype)) for name, dtype in self.columns.items()}
        if self.is_scalar:
            return dict.fromkeys(self.columns, self.python_type)
        return {name: without_none(kind)[0] for name, kind in field_types(self.python_type).items()}

    @cached_property
    def fields(self) -> dict[str, Field]:
        """What each column's values are."""
        return {name: known_field(annotation) for name, annotation in self.annotations.items()}

    def declared_as(self, names: Mapping[str, str]) -> dict[str, Any]:
        """The annotations of columns that go on under other names, where they say more than the columns' types;
        ``names`` has the new name of each of them."""
        return {
            new: self.annotations[name]
            for name, new in names.items()
            if name in self.columns and self.annotations[name] != annotation_of(self.columns[name])
        }

    def to_objects(self, frame: pl.DataFrame, absent: pl.Series | None = None) -> list[Any]:
        """One object per row, in order; None where ``absent`` (Boolean, same length) is true. Times are converted as
        by ``as_datetimes``."""
        lists = [objects_of(frame.get_column(name), field) for name, field in self.fields.items()]
        if self.is_scalar:
            objects = lists[0]
        else:
            make = constructor(self.python_type or row_of(self.columns, self.declared))
            objects = list(map(make, *lists))
        if absent is None or not absent.any():
            return objects
        return [None if missing else item for item, missing in zip(objects, absent.to_list(), strict=True)]

    def to_columns(self, objects: Sequence[Any]) -> list[pl.Series]:
        """The columns of ``objects``, all null where an object is None.

        Raises:
            AttributeError, OverflowError, TypeError, ValueError: An object does not fit the declared columns.
        """
        if self.is_scalar:
            ((name, field),) = self.fields.items()
            return [series_of(name, field, list(objects))]
        return [
            series_of(name, field, [None if item is None else getattr(item, name) for item in objects])
            for name, field in self.fields.items()
        ]

    def misfit(self, objects: Sequence[Any]) -> tuple[int, str] | None:
        """The first of ``objects`` that does not fit the declared columns, and why; None if all fit."""
        for index, item in enumerate(objects):
            for name, field in self.fields.items():
                if item is not None and not self.is_scalar and not hasattr(item, name):
                    return index, f"it returned {kind_of(item)}, which has no {name!r}"
                found = misfit(field, item if item is None or self.is_scalar else getattr(item, name), name)
                if found is not None:
                    return index, (
                        f"the column {found.path!r} is declared {name_of(found.field)}, and it returned "
                        f"{kind_of(found.value)}"
                    )
        return None


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
    fields = {name: known_field(annotation_of(normal_dtype(dtype, name))) for name, dtype in columns.items()}
    if isinstance(item, Mapping) and item.keys() == fields.keys():
        parts = {name: plain_key(part) for name, part in item.items()}
        if all(misfit(field, parts[name]) is None for name, field in fields.items()):
            return pl.DataFrame([series_of(name, fields[name], [parts[name]]).cast(columns[name]) for name in columns])
    named = ", ".join(f"{name} ({name_of(field)})" for name, field in fields.items())
    ways = "a tuple in their order, a dictionary, or an object with these fields" if len(columns) > 1 else "its value"
    raise TypeError(
        f"{key!r} does not fit the key, which has the column{'s' * (len(columns) > 1)} {named}; pass {ways}"
    )


def plain_key(part: Any) -> Any:
    """A part of a key as its column has it: a UUID as text, a member of an ``Enum`` as its value."""
    if isinstance(part, Enum):
        return part.value
    return str(part) if isinstance(part, UUID) else part


def row_type_of(annotation: Any, scalar_name: str) -> RowType:
    """The row type of a frozen dataclass, or of a scalar as the one column ``scalar_name``.

    Raises:
        TopologyError: The annotation is neither, or a field's type has no column type.
    """
    cls: Any = without_none(annotation)[0]
    if not dataclasses.is_dataclass(cls):
        return RowType(pl.Schema({scalar_name: field_of(cls, scalar_name).shape.dtype}), True, cls)
    return RowType(pl.Schema({name: field.shape.dtype for name, field in record_of(cls).fields}), False, cls)


def fits(annotation: Any, value: Any) -> bool:
    """Whether an object fits a column's annotation: integers count as floats, booleans do not count as numbers."""
    return type(value) is annotation or misfit(known_field(annotation), value) is None
