"""Random dataclasses with fields of every type that a schema may have, nested in each other, and random objects."""

from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from itertools import count
from typing import Annotated, Any, Literal
from uuid import UUID

import polars as pl
from hypothesis import strategies as st


class Color(Enum):
    RED = "red"
    DARK_BLUE = "dark blue"


class Size(StrEnum):
    SMALL = "s"
    LARGE = "l"


class Level(IntEnum):
    LOW = -1
    HIGH = 7


TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(
    lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=UTC)
)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(1 << 63), (1 << 63) - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=4),
    bool: st.booleans(),
    bytes: st.binary(max_size=4),
    datetime: TIMES,
    date: st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    time: st.times(),
    Decimal: st.decimals(-(10**29) + 1, 10**29 - 1, places=9) | st.sampled_from([Decimal("1E+3"), Decimal("0.10")]),
    Annotated[Decimal, pl.Decimal(6, 2)]: st.decimals(-9999, 9999, places=2),
    UUID: st.uuids(),
    Color: st.sampled_from(Color),
    Size: st.sampled_from(Size),
    Level: st.sampled_from(Level),
    Literal["a", "b"]: st.sampled_from(["a", "b"]),
    Literal[1, 2]: st.sampled_from([1, 2]),
}
Typed = tuple[Any, st.SearchStrategy[Any]]
"""An annotation and its values."""

_NUMBERS = count()


def _optional(typed: Typed) -> Typed:
    return typed[0] | None, st.none() | typed[1]


def _list(typed: Typed) -> Typed:
    return list[typed[0]], st.lists(typed[1], max_size=3)


def _tuple(typed: Typed) -> Typed:
    return tuple[typed[0], ...], st.lists(typed[1], max_size=3).map(tuple)


def _dictionary(typed: Typed) -> Typed:
    return dict[str, typed[0]], st.dictionaries(st.text(max_size=3), typed[1], max_size=3)


def _dataclass(fields: list[Typed]) -> Typed:
    name = f"Made{next(_NUMBERS)}"
    cls = dataclasses.make_dataclass(
        name, [(f"f{index}", annotation) for index, (annotation, _) in enumerate(fields)], frozen=True
    )
    return cls, st.tuples(*(values for _, values in fields)).map(lambda row: cls(*row))


def _wrapped(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    plain = inner.filter(lambda typed: type(None) not in getattr(typed[0], "__args__", ()))
    return st.one_of(
        plain.map(_optional),
        inner.map(_list),
        inner.map(_tuple),
        inner.map(_dictionary),
        st.lists(inner, min_size=1, max_size=3).map(_dataclass),
    )


FIELDS = st.recursive(st.sampled_from(list(SCALARS)).map(lambda kind: (kind, SCALARS[kind])), _wrapped, max_leaves=6)


@st.composite
def objects(draw: st.DrawFn) -> tuple[type, list[Any]]:
    """A dataclass and some of its objects, None among them."""
    cls, values = _dataclass(draw(st.lists(FIELDS, min_size=1, max_size=4)))
    return cls, draw(st.lists(st.none() | values, min_size=1, max_size=5))


def gone(values: list[Any]) -> pl.Series:
    """Which values are None."""
    return pl.Series([value is None for value in values], dtype=pl.Boolean)
