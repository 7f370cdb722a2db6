"""Aggregates that choose the value of one record: the first, the last, or that with the least or greatest of another.

The state is that value and, where a time or another value decides, that one too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.aggregates import (
    STORED,
    Accumulator,
    Aggregate,
    expression_of,
    kept_value,
    number_or_null,
)
from weir.pipelines.serdes.shapes import TIME


@dataclass(frozen=True, eq=False)
class First(Aggregate):
    """The value that arrived first; with ``by_time`` that of the least timestamp, of equal ones the first to arrive.

    Nulls are ignored, and the first of nothing is null.

    >>> builder = StreamsBuilder()
    >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
    >>> visits = dict(entry=First("page"), exit=Last("page"), earliest=First("page", by_time=True))
    >>> clicks.group_by_key().agg("visits", **visits).to_delta("visits")
    >>> with TopologyTestDriver(Application("shop", builder)) as driver:
    ...     driver.create_input_topic("clicks").pipe_records([("ann", "home", 7), ("ann", "cart", 3)])
    ...     driver.create_output_table("visits").read_rows()[-1]
    {'user': 'ann', 'entry': 'home', 'exit': 'cart', 'earliest': 'cart'}
    """

    by_time: bool = False

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        if _is_by_time(name, self):
            return _chosen(name, value, dtype, _TIME, greatest=False)
        kept = pl.col(name)
        return kept_value(
            name,
            dtype,
            value,
            value.drop_nulls().first(),
            pl.when(kept.forward_fill().is_not_null()).then(kept.drop_nulls().first()),
            pl.coalesce(name + STORED, name),
            is_ordered=True,
        )


@dataclass(frozen=True, eq=False)
class Last(Aggregate):
    """The value that arrived last; with ``by_time`` that of the greatest timestamp, of equal ones the last to arrive.

    Nulls are ignored, and the last of nothing is null. For an example see ``First``.
    """

    by_time: bool = False

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        if _is_by_time(name, self):
            return _chosen(name, value, dtype, _TIME, greatest=True, takes_equals=True)
        return kept_value(
            name,
            dtype,
            value,
            value.drop_nulls().last(),
            pl.col(name).forward_fill(),
            pl.coalesce(name, name + STORED),
            is_ordered=True,
        )


@dataclass(frozen=True, eq=False)
class _ExtremeBy(Aggregate):
    by: str | pl.Expr
    _greatest: ClassVar[bool]

    def inputs(self) -> dict[str, pl.Expr]:
        return {**super().inputs(), "by": expression_of(self.by)}

    def bind(self, name: str, schema: pl.Schema) -> Accumulator:
        (value, dtype), (by, by_dtype) = (self._bound(field, name, schema) for field in ("of", "by"))
        self._needs(not by_dtype.is_nested(), name, by_dtype, "values that have an order", "compares")
        decides = _Deciding(("of", "by"), number_or_null(by, by_dtype), by_dtype)
        return _chosen(name, value, dtype, decides, greatest=self._greatest)


@dataclass(frozen=True, eq=False)
class MinBy(_ExtremeBy):
    """The value of the record with the least ``by``, a column or an expression; of equal ones, the first to arrive.

    Records with a null in either are ignored, and so are those whose ``by`` is NaN; nothing gives null.

    >>> @dataclass(frozen=True)
    ... class Order:
    ...     item: str
    ...     cents: int
    >>> builder = StreamsBuilder()
    >>> orders = builder.stream("orders", key=String("user"), value=Json(Order))
    >>> range = dict(cheapest=MinBy("item", by="cents"), dearest=MaxBy("item", by="cents"))
    >>> orders.group_by_key().agg("range", **range).to_delta("range")
    >>> with TopologyTestDriver(Application("shop", builder)) as driver:
    ...     topic = driver.create_input_topic("orders")
    ...     for item, cents in (("tea", 80), ("cup", 120)):
    ...         topic.pipe_input("ann", Order(item, cents), timestamp_ms=1)
    ...     driver.create_output_table("range").read_rows()[-1]
    {'user': 'ann', 'cheapest': 'tea', 'dearest': 'cup'}
    """

    _greatest = False


@dataclass(frozen=True, eq=False)
class MaxBy(_ExtremeBy):
    """The value of the record with the greatest ``by``; else as ``MinBy``, which has an example."""

    _greatest = True


@dataclass(frozen=True)
class _Deciding:
    """What decides which record is chosen."""

    columns: tuple[str, str]
    """The ends of the state columns' names: of the value, and of what decides. No aggregate shares its names with one
    that decides otherwise, so a store with the other's rows is not taken for its own."""
    of_record: pl.Expr
    dtype: pl.DataType


_TIME = _Deciding(("value", "time"), pl.col("_ts").cast(TIME), TIME)


def _is_by_time(name: str, aggregate: First | Last) -> bool:
    if not isinstance(aggregate.by_time, bool):
        other = "MinBy" if isinstance(aggregate, First) else "MaxBy"
        raise TopologyError(
            f"{name}={type(aggregate).__name__}(..., by_time={aggregate.by_time!r}) goes by the records' timestamps; "
            f"pass by_time=True, or use {other}(..., by=...) for a column"
        )
    return aggregate.by_time


def _chosen(
    name: str, value: pl.Expr, dtype: pl.DataType, decides: _Deciding, *, greatest: bool, takes_equals: bool = False
) -> Accumulator:
    """The value with the least or greatest of what decides: of equal ones the first, or with ``takes_equals`` the last.

    Both state columns are null until there is a record with both.
    """
    chosen, by = (f"{name}__{end}" for end in decides.columns)
    of_record = pl.when(value.is_not_null()).then(decides.of_record)
    value = pl.when(of_record.is_not_null()).then(value)
    latest_last = (value.reverse(), of_record.reverse()) if takes_equals else (value, of_record)
    best = _best(pl.col(by), greatest=greatest)
    is_taken = pl.col(by) == best if takes_equals else _is_beyond(pl.col(by), best.shift(1), greatest=greatest)
    is_new = _is_beyond(pl.col(by), pl.col(by + STORED), greatest=greatest)
    if takes_equals:
        is_new |= pl.col(by) == pl.col(by + STORED)
    return Accumulator(
        name=name,
        state=pl.Schema({chosen: dtype, by: decides.dtype}),
        output=dtype,
        finish=pl.col(chosen),
        partial=[
            latest_last[0].get(latest_last[1].arg_max() if greatest else latest_last[1].arg_min()).alias(chosen),
            (of_record.max() if greatest else of_record.min()).alias(by),
        ],
        lift=[value.alias(chosen), of_record.alias(by)],
        scan=[pl.when(is_taken).then(pl.col(chosen)).forward_fill(), best.alias(by)],
        merge=[
            pl.when(is_new).then(pl.col(column)).otherwise(pl.col(column + STORED)).alias(column)
            for column in (chosen, by)
        ],
        is_ordered=True,
    )


def _best(states: pl.Expr, *, greatest: bool) -> pl.Expr:
    return (states.cum_max() if greatest else states.cum_min()).forward_fill()


def _is_beyond(one: pl.Expr, other: pl.Expr, *, greatest: bool) -> pl.Expr:
    """Whether there is ``one``, and it is beyond ``other`` or there is no other."""
    return one.is_not_null() & (other.is_null() | (one > other if greatest else one < other))
