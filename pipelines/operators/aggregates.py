"""The vectorised aggregates of ``agg``: what each keeps in the state and how it folds a batch into it.

Each is a few polars expressions; running them over batches and stores belongs to ``fold`` beside this. Those that
keep sketches and lists are in ``sketches``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from weir.pipelines.errors import TopologyError
from weir.pipelines.serdes.row_type import normal_dtype

STORED = "__stored"
"""Suffix of a state column that comes from the store when it meets the batch's."""


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
    """From the state columns of rows or earlier states, in order, those after each; to be taken ``over`` a group."""
    merge: list[pl.Expr]
    """The state columns from the batch's and the stored ones (suffix ``STORED``, null where none)."""
    output: pl.DataType
    finish: pl.Expr
    """The finished value from the state columns."""
    pack: Callable[[pl.Series], pl.Series] | None = None
    """From the column that ``partial`` gives to the state column, where no expression can."""


@dataclass(frozen=True, eq=False)
class Aggregate:
    """Base of the aggregates over one input, a column's name or an expression over a record's columns."""

    of: str | pl.Expr

    def input(self) -> pl.Expr:
        return pl.col(self.of) if isinstance(self.of, str) else self.of

    def bind(self, name: str, schema: pl.Schema) -> Accumulator:
        """The accumulator for records of ``schema``; raises ``TopologyError`` when the input does not fit."""
        dtype = normal_dtype(expression_dtype(self.input(), schema, name), name)
        if not self.input().meta.root_names():
            raise TopologyError(f"{name} uses no column; name one, or use Count() to count records")
        return self.accumulate(name, self.input().cast(dtype), dtype)

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        raise NotImplementedError

    def _needs(self, ok: bool, name: str, dtype: pl.DataType, what: str) -> None:
        if not ok:
            raise TopologyError(f"{name}={type(self).__name__}(...) is over a column of type {dtype}; it needs {what}")


class Count:
    """How many records reached the window or key, null values in windows included."""

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
        )


class Sum(Aggregate):
    """The sum, nulls ignored, 0 of nothing. Of a boolean expression: how often it was true."""

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        self._needs(dtype.is_numeric() or dtype == pl.Boolean(), name, dtype, "numbers or booleans")
        total = pl.Float64() if dtype.is_float() else pl.Int64()
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
        )


class Mean(Aggregate):
    """The mean, nulls ignored, null of nothing; kept as a sum and a count."""

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        self._needs(dtype.is_numeric() or dtype == pl.Boolean(), name, dtype, "numbers or booleans")
        total = pl.Float64() if dtype.is_float() else pl.Int64()
        value = value.cast(total)
        sums, counts = f"{name}__sum", f"{name}__count"
        return Accumulator(
            name=name,
            state=pl.Schema({sums: total, counts: pl.Int64()}),
            output=pl.Float64(),
            finish=pl.when(pl.col(counts) > 0).then(pl.col(sums) / pl.col(counts)).alias(name),
            partial=[value.sum().alias(sums), value.count().cast(pl.Int64).alias(counts)],
            lift=[value.fill_null(0).alias(sums), value.is_not_null().cast(pl.Int64).alias(counts)],
            scan=[pl.col(sums).cum_sum(), pl.col(counts).cum_sum()],
            merge=[_plus(sums), _plus(counts)],
        )


class Min(Aggregate):
    """The smallest value, nulls ignored, null of nothing."""

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        self._needs(not dtype.is_nested(), name, dtype, "values that have an order")
        return _kept(
            name,
            dtype,
            value,
            value.min(),
            pl.col(name).cum_min().forward_fill(),
            pl.min_horizontal(name, name + STORED),
        )


class Max(Aggregate):
    """The greatest value, nulls ignored, null of nothing."""

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        self._needs(not dtype.is_nested(), name, dtype, "values that have an order")
        return _kept(
            name,
            dtype,
            value,
            value.max(),
            pl.col(name).cum_max().forward_fill(),
            pl.max_horizontal(name, name + STORED),
        )


class First(Aggregate):
    """The value that arrived first (not: with the smallest timestamp), nulls ignored, null of nothing."""

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        kept = pl.col(name)
        return _kept(
            name,
            dtype,
            value,
            value.drop_nulls().first(),
            pl.when(kept.forward_fill().is_not_null()).then(kept.drop_nulls().first()),
            pl.coalesce(name + STORED, name),
        )


class Last(Aggregate):
    """The value that arrived last (not: with the greatest timestamp), nulls ignored, null of nothing."""

    def accumulate(self, name: str, value: pl.Expr, dtype: pl.DataType) -> Accumulator:
        return _kept(
            name, dtype, value, value.drop_nulls().last(), pl.col(name).forward_fill(), pl.coalesce(name, name + STORED)
        )


def _plus(column: str) -> pl.Expr:
    return (pl.col(column) + pl.col(column + STORED).fill_null(0)).alias(column)


def _kept(
    name: str, dtype: pl.DataType, value: pl.Expr, partial: pl.Expr, scan: pl.Expr, merge: pl.Expr
) -> Accumulator:
    return Accumulator(
        name=name,
        state=pl.Schema({name: dtype}),
        output=dtype,
        finish=pl.col(name),
        partial=[partial.alias(name)],
        lift=[value.alias(name)],
        scan=[scan.alias(name)],
        merge=[merge.alias(name)],
    )


def expression_dtype(expression: pl.Expr, schema: pl.Schema, name: str) -> pl.DataType:
    """The type that ``expression`` has over records of ``schema``.

    Raises:
        TopologyError: It names an unknown column, does not fit the types, or looks beyond its own record.
    """
    unknown = [column for column in expression.meta.root_names() if column not in schema]
    if unknown:
        raise TopologyError(f"{name} uses the column {unknown[0]!r}; the columns here are {', '.join(schema)}")
    if not _stays_in_its_row(expression):
        raise TopologyError(
            f"{name} may look beyond its own record; use an expression of one record's columns, "
            "a plain function instead of map_elements, and an aggregation for what spans records"
        )
    try:
        selected = pl.DataFrame(schema=schema).clear(1).with_columns(expression.alias("_"))
    except pl.exceptions.PolarsError as error:
        raise TopologyError(f"{name} does not fit the columns {dict(schema)}: {error}") from None
    return selected.schema["_"]


def _stays_in_its_row(expression: pl.Expr) -> bool:
    meta = expression.meta
    try:
        return (meta.is_length_preserving() or not meta.root_names()) and _is_separable(expression)
    except pl.exceptions.PolarsError:  # map_elements and its kin cannot be looked into
        return False


def _is_separable(expression: pl.Expr) -> bool:
    """Polars answers for the outermost operation only, so every part is asked."""
    return expression.meta.is_row_separable() and all(map(_is_separable, expression.meta.pop()))
