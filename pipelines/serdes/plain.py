"""One value at a time between the form that a program uses and the plain form that a store keeps.

Plain values are those of polars: a dataclass is a dictionary, a ``dict`` a list of its entries, a UUID text, a member
of an ``Enum`` its value. Whole columns are converted in ``values``.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any
from uuid import UUID

from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.shapes import Choice, Field, ListOf, MapOf, Record, Scalar
from weir.pipelines.serdes.values import INT64, constructor, fixed, is_direct, misfit

Convert = Callable[[Any], Any]


class PlainRows:
    """Objects of a row type to their column values, and back."""

    def __init__(self, row_type: RowType) -> None:
        self.row_type = row_type
        self._parts = [
            (name, field, plain_of(field.shape), object_of(field.shape)) for name, field in row_type.fields.items()
        ]
        self._kinds = [_exact(field.shape) for field in row_type.fields.values()]
        self._make = None if row_type.is_scalar else constructor(row_type.python_type)

    def plain(self, item: Any) -> list[Any]:
        """The column values of ``item``.

        Raises:
            TypeError: It does not fit the declared columns.
        """
        values = []
        for (name, field, plain, _), kind in zip(self._parts, self._kinds, strict=True):
            try:
                part = item if self._make is None else getattr(item, name)
            except AttributeError:
                raise TypeError(
                    f"{self.row_type.python_type.__name__} is declared, and {item!r} has no {name!r}"
                ) from None
            if type(part) is kind and (kind is not int or part in INT64):
                values.append(part)
                continue
            if part is not None and (found := misfit(field, part, name)) is not None:
                raise TypeError(f"{found.path}: {found.reason}")
            values.append(None if part is None else plain(part))
        return values

    def item(self, values: list[Any]) -> Any:
        """The inverse of ``plain``."""
        parts = [None if value is None else back(value) for value, (*_, back) in zip(values, self._parts, strict=True)]
        return parts[0] if self._make is None else self._make(*parts)


def _exact(shape: Any) -> Any:
    """The type whose instances fit ``shape`` as they are, integers if they have 64 bits; None if there is no such
    type."""
    kind = shape.kind if isinstance(shape, Scalar) else None
    return kind if kind in (bool, bytes, float, int, str) else None


@cache
def plain_of(shape: Any) -> Convert:
    """A function from a value (not None) that fits ``shape`` to its plain form."""
    match shape:
        case Scalar(kind=kind) if kind is UUID:
            return str
        case Scalar(kind=kind, dtype=dtype) if kind is Decimal:
            return lambda value: fixed(value, dtype)
        case Scalar(kind=kind):
            return float if kind is float else _same
        case Choice(enum=enum):
            return _same if enum is None else lambda value: value.value if isinstance(value, enum) else value
        case ListOf(item=item):
            return list if is_direct(shape) else _each(item, plain_of(item.shape))
        case MapOf(value=field):
            inner = _or_none(plain_of(field.shape))
            return lambda value: [{"key": key, "value": inner(part)} for key, part in value.items()]
        case Record(fields=fields):
            parts = [(name, _or_none(plain_of(field.shape))) for name, field in fields]
            return lambda value: {name: convert(getattr(value, name)) for name, convert in parts}
    raise AssertionError(shape)


@cache
def object_of(shape: Any) -> Convert:
    """The inverse of ``plain_of``."""
    match shape:
        case Scalar(kind=kind):
            return UUID if kind is UUID else _same
        case Choice(enum=enum):
            return _same if enum is None else enum
        case ListOf(item=item, is_tuple=is_tuple):
            make: Convert = list if is_direct(shape) else _each(item, object_of(item.shape))
            return (lambda value: tuple(make(value))) if is_tuple else make
        case MapOf(value=field):
            inner = _or_none(object_of(field.shape))
            return lambda value: {entry["key"]: inner(entry["value"]) for entry in value}
        case Record(cls=cls, fields=fields):
            new = constructor(cls)
            parts = [(name, _or_none(object_of(field.shape))) for name, field in fields]
            return lambda value: new(*(convert(value[name]) for name, convert in parts))
    raise AssertionError(shape)


def _each(item: Field, convert: Convert) -> Convert:
    inner = _or_none(convert)
    return lambda value: [inner(each) for each in value]


def _or_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value
