"""The vectorized aggregates of ``agg``: what each keeps in the state and how it folds a batch into it.

Each is a few polars expressions; running them over batches and stores belongs to ``fold``. Here are those that keep
numbers and the least and greatest values; the others are in ``chosen_values``, ``collected``, ``ranked``,
``value_counts``, ``variance`` and ``sketches``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from weir.pipelines.arguments import what_it_is
from weir.pipelines.errors import TopologyError
from weir.pipelines.serdes.headers import HEADERS
from weir.pipelines.serdes.shapes import normal_dtype

STORED = "__stored"
"""Suffix of a stored state column, to tell it from the batch's column of the same name."""


@dataclass(frozen=True, kw_only=True)
class Accumulator:
    """An aggregate bound to its name and its input's types."""

    name: str
    state: pl.Schema
    """The state columns."""
    partial: list[pl.Expr]
    """The state columns of a group of rows, inside ``group_by().agg()``."""
    lift: list[pl.Expr]
    """The state columns of a single row."""
    scan: list[pl.Expr]
    """The state columns after each row or earlier state, from all in order; to be used ``over`` a group."""
    merge: list[pl.Expr]
    """The state columns from the batch's and the stored ones (suffix ``STORED``, null where nothing is stored)."""
    output: pl.DataType
    finish: pl.Expr
    """The finished value from the state columns."""
    is_ordered: bool
    """Whether the finished value depends on the order of records and of the states that are merged."""
    pack: Callable[[pl.Series], pl.Series] | None = None
    """Makes the state column of the column that ``partial`` gives, where no expression can."""
    adds_up: bool = False
    """Whether states are merged by adding their columns, all of them integers, up."""

    @cached_property
    def is_finished(self) -> bool:
        """Whether its one state column is the finished value."""
        return self.state.names() == [self.name] and self.finish.meta.eq(pl.col(self.name))


@dataclass(frozen=True, eq=False)
class Aggregate:
    """Base of the aggregates over one input: a column's name, or an expression over a record's columns."""

    of: str | pl.Expr

    def inputs(self) -> dict[str, pl.Expr]:
        """By field of the aggregate, what it reads of a record."""
        return {"of": expression_of(self.of)}

    def bind(self, name: str, schema: pl.Schema) -> Accumulator:
        """The accumulator for records of ``schema``; raises ``TopologyError`` when an input does not fit."""
        return self.accumulate(name, *self._bound("of", name, schema))

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        raise NotImplementedError

    def _bound(self, field: str, name: str, schema: pl.Schema) -> tuple[pl.Expr, pl.DataType]:
        """One of ``inputs``, and its type."""
        expression = self.inputs()[field]
        dtype = normal_dtype(expression_dtype(expression, schema, name), name)
        if not expression.meta.root_names():
            raise TopologyError(f"{name} uses no column; name one, or use Count() to count records")
        return expression.cast(dtype), dtype

    def _needs(self, ok: bool, name: str, dtype: pl.DataType, what: str, verb: str = "aggregates") -> None:
        if not ok:
            raise TopologyError(f"{name}={type(self).__name__}(...) {verb} a column of type {dtype}; it needs {what}")


class Count:
    """The number of records of the key or window; in windows, records with a null value count too.

    >>> builder = StreamsBuilder()
    >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
    >>> clicks.group_by_key().agg("visits", clicks=Count()).to_delta("clicks_per_user")
    >>> with TopologyTestDriver(Application("shop", builder)) as driver:
    ...     driver.create_input_topic("clicks").pipe_records([("ann", "home", 1), ("ann", "cart", 2)])
    ...     driver.create_output_table("clicks_per_user").read_rows()
    [{'user': 'ann', 'clicks': 1}, {'user': 'ann', 'clicks': 2}]
    """

    def bind(self, name: str, schema: pl.Schema) -> Accumulator:
        """The accumulator; any schema fits."""
        return Accumulator(
            name=name,
            state=pl.Schema({name: pl.Int64()}),
            output=pl.Int64(),
            finish=pl.col(name),
            partial=[pl.len().cast(pl.Int64).alias(name)],
            lift=[pl.lit(1, dtype=pl.Int64).alias(name)],
            scan=[pl.col(name).cum_sum()],
            merge=[_plus(name)],
            is_ordered=False,
            adds_up=True,
        )


class Sum(Aggregate):
    """The sum; nulls are ignored, and the sum of nothing is 0. Of a boolean expression: how often it was true.

    The sum of decimals is exact, with their scale and up to 38 digits.

    >>> builder = StreamsBuilder()
    >>> orders = builder.stream("orders", key=String("user"), value=Int64("cents"))
    >>> orders.group_by_key().agg("spent", spent=Sum("cents"), big=Sum(col("cents") > 100)).to_delta("spent")
    >>> with TopologyTestDriver(Application("shop", builder)) as driver:
    ...     driver.create_input_topic("orders").pipe_records([("ann", 80, 1), ("ann", 120, 2)])
    ...     driver.create_output_table("spent").read_rows()[-1]
    {'user': 'ann', 'spent': 200, 'big': 1}
    """

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        self._needs(dtype.is_numeric() or dtype == pl.Boolean(), name, dtype, "numbers or booleans")
        total = _total(dtype)
        value = value.cast(total)
        return Accumulator(
            name=name,
            state=pl.Schema({name: total}),
            output=total,
            finish=pl.col(name),
            partial=[value.sum().alias(name)],
            lift=[value.fill_null(0).alias(name)],
            scan=[pl.col(name).cum_sum()],
            merge=[_plus(name)],
            is_ordered=False,
            adds_up=total == pl.Int64,
        )


class Mean(Aggregate):
    """The mean as a float; nulls are ignored, and the mean of nothing is null. The state is a sum and a count.

    >>> builder = StreamsBuilder()
    >>> orders = builder.stream("orders", key=String("user"), value=Int64("cents"))
    >>> orders.group_by_key().agg("usual", usual=Mean("cents")).to_delta("usual")
    >>> with TopologyTestDriver(Application("shop", builder)) as driver:
    ...     driver.create_input_topic("orders").pipe_records([("ann", 80, 1), ("ann", 120, 2)])
    ...     driver.create_output_table("usual").read_rows()[-1]
    {'user': 'ann', 'usual': 100.0}
    """

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        self._needs(dtype.is_numeric() or dtype == pl.Boolean(), name, dtype, "numbers or booleans")
        total = _total(dtype)
        value = value.cast(total)
        sums, counts = f"{name}__sum", f"{name}__count"
        return Accumulator(
            name=name,
            state=pl.Schema({sums: total, counts: pl.Int64()}),
            output=pl.Float64(),
            finish=pl.when(pl.col(counts) > 0).then(pl.col(sums).cast(pl.Float64) / pl.col(counts)).alias(name),
            partial=[value.sum().alias(sums), value.count().cast(pl.Int64).alias(counts)],
            lift=[value.fill_null(0).alias(sums), value.is_not_null().cast(pl.Int64).alias(counts)],
            scan=[pl.col(sums).cum_sum(), pl.col(counts).cum_sum()],
            merge=[_plus(sums), _plus(counts)],
            is_ordered=False,
            adds_up=total == pl.Int64,
        )


class Min(Aggregate):
    """The smallest value; nulls are ignored, and the minimum of nothing is null.

    >>> builder = StreamsBuilder()
    >>> orders = builder.stream("orders", key=String("user"), value=Int64("cents"))
    >>> orders.group_by_key().agg("range", least=Min("cents"), most=Max("cents")).to_delta("range")
    >>> with TopologyTestDriver(Application("shop", builder)) as driver:
    ...     driver.create_input_topic("orders").pipe_records([("ann", 80, 1), ("ann", 120, 2)])
    ...     driver.create_output_table("range").read_rows()[-1]
    {'user': 'ann', 'least': 80, 'most': 120}
    """

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        self._needs(not dtype.is_nested(), name, dtype, "values that have an order")
        return kept_value(
            name,
            dtype,
            value,
            value.min(),
            pl.col(name).cum_min().forward_fill(),
            pl.min_horizontal(name, name + STORED),
            is_ordered=False,
        )


class Max(Aggregate):
    """The greatest value; nulls are ignored, and the maximum of nothing is null. For an example see ``Min``."""

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        self._needs(not dtype.is_nested(), name, dtype, "values that have an order")
        return kept_value(
            name,
            dtype,
            value,
            value.max(),
            pl.col(name).cum_max().forward_fill(),
            pl.max_horizontal(name, name + STORED),
            is_ordered=False,
        )


def _total(dtype: pl.DataType) -> pl.DataType:
    """The type of a sum."""
    if isinstance(dtype, pl.Decimal):
        return pl.Decimal(38, dtype.scale)
    return pl.Float64() if dtype.is_float() else pl.Int64()


def _plus(column: str) -> pl.Expr:
    return (pl.col(column) + pl.col(column + STORED).fill_null(0)).alias(column)


def kept_value(
    name: str,
    dtype: pl.DataType,
    value: pl.Expr,
    partial: pl.Expr,
    scan: pl.Expr,
    merge: pl.Expr,
    *,
    is_ordered: bool,
) -> Accumulator:
    """The accumulator whose state is one value of type ``dtype``, null where there is none yet."""
    return Accumulator(
        name=name,
        state=pl.Schema({name: dtype}),
        output=dtype,
        finish=pl.col(name),
        partial=[partial.alias(name)],
        lift=[value.alias(name)],
        scan=[scan.alias(name)],
        merge=[merge.alias(name)],
        is_ordered=is_ordered,
    )


def number_or_null(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """``value`` with null for what is not a number (NaN), which has no place in an order."""
    return value.fill_nan(None) if dtype.is_float() else value


def expression_of(column: str | pl.Expr) -> pl.Expr:
    """The expression that an input is given as, or names by its column; raises ``TopologyError`` if it is neither."""
    if not isinstance(column, (str, pl.Expr)):
        raise TopologyError(
            f"an aggregate got {what_it_is(column)} as its column; pass a column's name or an expression of columns"
        )
    return pl.col(column) if isinstance(column, str) else column


def expression_dtype(expression: pl.Expr, schema: pl.Schema, name: str) -> pl.DataType:
    """The type of ``expression`` over records of ``schema``.

    Raises:
        TopologyError: The expression names an unknown column, does not fit the types, or looks beyond its own record.
    """
    unknown = [column for column in expression.meta.root_names() if column not in schema]
    if HEADERS in unknown:
        raise TopologyError(
            f"{name}: expressions do not see headers; read them in a processor: process_values(...) gets "
            "record.headers where the topic is read with builder.stream(..., headers=True)"
        )
    if unknown:
        raise TopologyError(f"{name}: there is no column {unknown[0]!r}; the columns here are {', '.join(schema)}")
    if expression.meta.is_column():
        return schema[expression.meta.root_names()[0]]
    if not _stays_in_its_row(expression):
        raise TopologyError(
            f"{name} may look beyond its own record; use an expression of one record's columns, "
            "a plain function instead of map_elements, and an aggregation across records"
        )
    try:
        selected = pl.DataFrame(schema=schema).clear(1).with_columns_seq(expression.alias("_"))
    except pl.exceptions.PolarsError as error:
        raise TopologyError(f"{name} does not fit the columns {dict(schema)}: {error}") from None
    return selected.schema["_"]


def _stays_in_its_row(expression: pl.Expr) -> bool:
    meta = expression.meta
    try:
        return (meta.is_length_preserving() or not meta.root_names()) and _is_separable(expression)
    except pl.exceptions.PolarsError:  # map_elements and the like are opaque
        return False


def _is_separable(expression: pl.Expr) -> bool:
    """Polars answers for the outermost operation only, so each part is checked."""
    return expression.meta.is_row_separable() and all(map(_is_separable, expression.meta.pop()))
