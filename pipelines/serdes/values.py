"""Values of a shape as columns, and columns as values: a whole batch at a time, column by column, to any depth.

Flat fields are single calls to polars; only structured ones are taken apart. Objects are read through ``Get``, so that
instances of a program's dataclasses, what msgspec decodes and Avro's dictionaries become columns in one way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import cache
from itertools import chain, islice
from operator import attrgetter
from types import NoneType
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import polars as pl
from polars.exceptions import PanicException, PolarsError

from weir.pipelines.serdes.shapes import (
    FIRST_TIME_MS,
    KEY,
    LAST_TIME_MS,
    Choice,
    Field,
    ListOf,
    MapOf,
    Record,
    Scalar,
)

Get = Callable[[Any, str], Any]
"""A field of an object."""

INT64 = range(-(2**63), 2**63)
_ACCEPTED: dict[Any, tuple[type, ...]] = {
    int: (int, np.integer),
    float: (float, int, np.floating, np.integer),
    bool: (bool, np.bool),
    Decimal: (Decimal, int),
}


def series_of(name: str, field: Field, values: list[Any], get: Get = getattr) -> pl.Series:
    """One column; None is null, at any depth.

    Raises:
        AttributeError, KeyError, OverflowError, TypeError, ValueError: A value does not fit; ``misfit`` tells which.
    """
    shape = field.shape
    match shape:
        case Scalar():
            return _scalars(name, shape, values)
        case Choice(values=known, enum=enum):
            if enum is not None:
                values = [value.value if isinstance(value, enum) else value for value in values]
            if not all(value is None or value in known for value in values):
                raise ValueError(f"{name} is not one of {', '.join(map(repr, known))}")
            return pl.Series(name, values, dtype=shape.dtype, strict=True)
        case ListOf() if is_direct(shape):
            _require_lists(name, shape, values)
            return _plain_column(name, values, shape.dtype)
        case ListOf(item=item):
            if not all(value is None or isinstance(value, (list, tuple)) for value in values):
                raise TypeError(f"{name} is not a list")
            return _lists(name, shape.dtype, values, lambda several: series_of("", item, several, get))
        case MapOf(value=value):

            def pairs(several: list[Any]) -> pl.Series:
                columns = [
                    series_of("key", KEY, [key for key, _ in several]),
                    series_of("value", value, [each for _, each in several], get),
                ]
                return pl.DataFrame(columns).to_struct()

            return _lists(name, shape.dtype, [None if each is None else each.items() for each in values], pairs)
        case Record(fields=fields):
            columns = [series_of(inner, inner_field, _parts(values, inner, get), get) for inner, inner_field in fields]
            structs = pl.DataFrame(columns).to_struct(name)
            gone = pl.Series([value is None for value in values], dtype=pl.Boolean)
            return nulled(structs, gone) if gone.any() else structs


def _parts(values: list[Any], name: str, get: Get) -> list[Any]:
    if get is getattr and None not in values:
        return list(map(attrgetter(name), values))
    return [None if value is None else get(value, name) for value in values]


def is_direct(shape: Any) -> bool:
    """Whether polars makes the column of the values as they are, and the values of the column."""
    if isinstance(shape, ListOf):
        item = shape.item.shape
        return is_direct(item) and not (isinstance(item, ListOf) and item.is_tuple)
    return isinstance(shape, Scalar) and shape.kind not in (Decimal, UUID, datetime, float, time)


def _scalars(name: str, shape: Scalar, values: list[Any]) -> pl.Series:
    if shape.kind is float:
        values = [float(value) if type(value) is int else value for value in values]
    elif shape.kind is datetime:
        if any(value is not None and value.tzinfo is None for value in values):
            raise TypeError(f"{name} is a datetime without a time zone")
    elif shape.kind is time:
        if any(value is not None and value.tzinfo is not None for value in values):
            raise TypeError(f"{name} is a time with a time zone")
    elif shape.kind is UUID:
        if not all(value is None or isinstance(value, UUID) for value in values):
            raise TypeError(f"{name} is not a UUID")
        values = [None if value is None else str(value) for value in values]
    elif shape.kind is Decimal:
        values = [None if value is None else fixed(value, shape.dtype) for value in values]
    return _plain_column(name, values, shape.dtype)


def _plain_column(name: str, values: list[Any], dtype: pl.DataType) -> pl.Series:
    """A column of values that polars takes as they are. It makes structs of dataclasses and named tuples, and lists of
    lists, whatever type it is told, and panics or fails otherwise at some."""
    try:
        column = pl.Series(name, values, dtype=dtype, strict=True)
    except (PanicException, PolarsError) as error:
        raise TypeError(f"{name} has values that are no {dtype}") from error
    if column.dtype != dtype:
        raise TypeError(f"{name} has values that are no {dtype}, but {column.dtype}")
    return column


def _require_lists(name: str, shape: ListOf, values: Iterable[Any]) -> None:
    """Polars makes a list of whatever can be iterated, such as a text, and text of dataclasses in lists of text."""
    _require(name, (list, tuple), values)
    items, inner = chain.from_iterable(filter(None, values)), shape.item.shape
    if isinstance(inner, ListOf):
        _require_lists(name, inner, list(items))
    elif isinstance(inner, Scalar) and inner.kind is str:
        _require(name, (str,), items)


def _require(name: str, kinds: tuple[type, ...], values: Iterable[Any]) -> None:
    if not all(issubclass(kind, (*kinds, NoneType)) for kind in set(map(type, values))):
        raise TypeError(f"{name} is not a list of what is declared")


def _lists(name: str, dtype: pl.DataType, values: Sequence[Any], items: Callable[[list[Any]], pl.Series]) -> pl.Series:
    """A column of lists, from the column of all their items together."""
    flat = items(list(chain.from_iterable(value for value in values if value is not None)))
    lengths = np.array([0 if value is None else len(value) for value in values], dtype=np.int64)
    row = np.repeat(np.arange(len(values)), lengths)
    grouped = pl.DataFrame({"row": row, "items": flat}).group_by("row", maintain_order=True).agg("items")
    gone = pl.Series([value is None for value in values], dtype=pl.Boolean)
    rows = pl.DataFrame({"row": np.arange(len(values)), "gone": gone})
    lists = rows.join(grouped, on="row", how="left", maintain_order="left")
    nothing = pl.lit([], dtype=dtype)
    return lists.select_seq(
        pl.when(~pl.col("gone")).then(pl.col("items").cast(dtype).fill_null(nothing)).alias(name)
    ).to_series()


def nulled(column: pl.Series, gone: pl.Series) -> pl.Series:
    """The column with null where ``gone`` is true."""
    frame = pl.DataFrame([column.alias("column"), gone.alias("gone")])
    return frame.select_seq(pl.when(~pl.col("gone")).then("column").alias(column.name)).to_series()


@cache
def _context(precision: int) -> Context:
    return Context(prec=precision, traps=[InvalidOperation, Inexact])


def fixed(value: Any, dtype: Any) -> Decimal:
    """A number with exactly the column's scale; raises ``ValueError`` if it would lose digits, or is not finite."""
    if isinstance(value, bool) or not isinstance(value, (Decimal, int)):
        raise TypeError(f"a {type(value).__name__} is not a Decimal")
    exponent = Decimal((0, (1,), -dtype.scale))
    try:
        scaled = Decimal(value).quantize(exponent, context=_context(dtype.precision))
    except (InvalidOperation, Inexact):
        raise ValueError(f"{value} does not fit {_decimal_text(dtype)}") from None
    if not scaled.is_finite():
        raise ValueError(f"{value} does not fit {_decimal_text(dtype)}")
    return scaled


def _decimal_text(dtype: Any) -> str:
    return f"a Decimal of {dtype.precision} digits, {dtype.scale} of them after the point"


def objects_of(column: pl.Series, field: Field) -> list[Any]:
    """The values of a column; None for null, at any depth. Times are converted as by ``as_datetimes``."""
    shape = field.shape
    match shape:
        case Scalar(kind=kind):
            values = as_datetimes(column).to_list()
            return [None if value is None else UUID(value) for value in values] if kind is UUID else values
        case Choice(enum=enum):
            values = column.to_list()
            return values if enum is None else [None if value is None else enum(value) for value in values]
        case ListOf(item=item, is_tuple=is_tuple):
            lists = column.to_list() if is_direct(shape) else _regrouped(column, lambda inner: objects_of(inner, item))
            return [None if each is None else tuple(each) for each in lists] if is_tuple else lists
        case MapOf(value=value):
            entries = _regrouped(
                column,
                lambda inner: zip(
                    objects_of(inner.struct.field("key"), KEY),
                    objects_of(inner.struct.field("value"), value),
                    strict=True,
                ),
            )
            return [None if each is None else dict(each) for each in entries]
        case Record(cls=cls, fields=fields):
            make = constructor(cls)
            part = column.struct.field if column.null_count() else column.struct.unnest().get_column  # all at once
            lists = [objects_of(part(name), inner) for name, inner in fields]
            if not column.null_count():
                return [make(*row) for row in zip(*lists, strict=True)]
            gone = column.is_null().to_list()
            return [
                None if is_gone else make(*row) for is_gone, row in zip(gone, zip(*lists, strict=True), strict=True)
            ]


def _regrouped(column: pl.Series, objects: Callable[[pl.Series], Iterable[Any]]) -> list[Any]:
    """Each list of a column of lists, whose items are made all at once."""
    lengths = column.list.len()
    filled = column.filter((lengths > 0).fill_null(False))
    items = iter(objects(filled.explode()) if len(filled) else ())
    return [None if length is None else list(islice(items, length)) for length in lengths.to_list()]


@cache
def constructor(cls: Any) -> Callable[..., Any]:
    """Makes one object from the values of its fields, in their order."""
    fields = dataclasses.fields(cls)
    if not any(field.kw_only for field in fields):
        return cls  # type: ignore[no-any-return]
    names = [field.name for field in fields]
    return lambda *values: cls(**dict(zip(names, values, strict=True)))


class Misfit(NamedTuple):
    """A value that does not fit its field."""

    path: str
    """The field, such as ``address.zip`` or ``lines[2].price``."""
    field: Field
    value: Any

    @property
    def reason(self) -> str:
        """What is wrong with it, without revealing text."""
        shape, value = self.field.shape, self.value
        if isinstance(shape, Scalar) and shape.kind is int and isinstance(value, int):
            return "an integer does not fit into 64 bits"
        if isinstance(shape, Scalar) and shape.kind is Decimal and isinstance(value, (int, Decimal)):
            return f"{value} does not fit {_decimal_text(shape.dtype)}"
        return f"it is declared {name_of(self.field)}, and the value is {kind_of(value)}"


def misfit(field: Field, value: Any, path: str = "", get: Get = getattr) -> Misfit | None:
    """The first part of ``value`` that does not fit ``field``; None if all fit. None fits everywhere."""
    if value is None:
        return None
    shape = field.shape
    match shape:
        case Scalar():
            return None if _fits_scalar(shape, value) else Misfit(path, field, value)
        case Choice(values=values, enum=enum):
            plain = value.value if enum is not None and isinstance(value, enum) else value
            fits = plain in values and (type(plain) is not bool)
            return None if fits else Misfit(path, field, value)
        case ListOf(item=item):
            if not isinstance(value, (list, tuple)):
                return Misfit(path, field, value)
            inner: Iterable[Misfit | None] = (
                misfit(item, each, f"{path}[{index}]", get) for index, each in enumerate(value)
            )
        case MapOf(value=item):
            if not isinstance(value, Mapping):
                return Misfit(path, field, value)
            if not all(isinstance(key, str) for key in value):
                return Misfit(path, field, value)
            inner = (misfit(item, each, f"{path}[{key!r}]", get) for key, each in value.items())
        case Record(fields=fields):
            inner = _record_misfits(fields, value, field, path, get)
    return next((each for each in inner if each is not None), None)


def _record_misfits(
    fields: Sequence[tuple[str, Field]], value: Any, field: Field, path: str, get: Get
) -> Iterable[Misfit | None]:
    for name, inner in fields:
        try:
            part = get(value, name)
        except (AttributeError, KeyError, TypeError):
            yield Misfit(path, field, value)
            return
        yield misfit(inner, part, f"{path}.{name}" if path else name, get)


def _fits_scalar(shape: Scalar, value: Any) -> bool:
    kind: Any = shape.kind
    accepted: Any = _ACCEPTED.get(kind, (kind,))
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        return False
    if kind is int:
        return int(value) in INT64
    if kind is Decimal:
        try:
            fixed(value, shape.dtype)
        except ValueError:
            return False
    if kind is date:
        return not isinstance(value, datetime)
    return (value.tzinfo is None) is (kind is time) if kind in (datetime, time) else True


def name_of(field: Field) -> str:
    """An annotation as text."""
    shape = field.shape
    match shape:
        case Scalar(kind=kind):
            text = kind.__name__
        case Choice(values=values, enum=enum):
            text = enum.__name__ if enum else f"Literal[{', '.join(map(repr, values))}]"
        case ListOf(item=item, is_tuple=is_tuple):
            text = f"tuple[{name_of(item)}, ...]" if is_tuple else f"list[{name_of(item)}]"
        case MapOf(value=value):
            text = f"dict[str, {name_of(value)}]"
        case Record(cls=cls):
            text = cls.__name__
    return f"{text} | None" if field.is_optional else text


def kind_of(value: Any) -> str:
    """The type of a value, without revealing the value."""
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}[{' | '.join(sorted({kind_of(each) for each in value}))}]"
    if isinstance(value, datetime) and value.tzinfo is None:
        return "datetime without a time zone"
    if isinstance(value, time) and value.tzinfo is not None:
        return "time with a time zone"
    is_large = isinstance(value, int) and value.bit_length() > 63
    return f"{type(value).__name__} beyond 64 bits" if is_large else type(value).__name__


_PER_MS = {"ms": 1, "us": 1000, "ns": 1_000_000}


def as_datetimes(times: pl.Series) -> pl.Series:
    """The column with times that Python can hold: one after the year 9999, such as the end of a window, becomes
    ``datetime.max`` in UTC, one before the year 1 ``datetime.min``. Other columns are returned as they are."""
    if not isinstance(times.dtype, pl.Datetime):
        return times
    known, per_ms = times.drop_nulls() if times.null_count() else times, _PER_MS[times.dtype.time_unit]
    numbers = known.cast(pl.Int64).to_numpy()
    if not len(numbers) or (numbers.min() // per_ms >= FIRST_TIME_MS and numbers.max() // per_ms <= LAST_TIME_MS):
        return times
    bounds = pl.Series([datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
    lowest, highest = bounds.cast(pl.Datetime("us", "UTC"))
    # In microseconds, times much further away would not fit into 64 bits.
    near = times.cast(pl.Int64).clip(FIRST_TIME_MS * per_ms, (LAST_TIME_MS + 1) * per_ms).cast(times.dtype)
    return near.cast(pl.Datetime("us", "UTC")).clip(lowest, highest)


def is_datetime(times: pl.Series) -> pl.Series:
    """Which times a datetime can hold (Boolean), true for null."""
    return times.dt.timestamp("ms").is_between(FIRST_TIME_MS, LAST_TIME_MS).fill_null(True)
