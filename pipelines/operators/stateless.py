"""Stateless operators that keep keys, on streams and on tables: filter, map the value, peek.

Those that choose a new key or give several records are in ``mapping``, splitting is in ``branching``.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

import polars as pl

from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.functions import KeyType, Records, UserFunction
from weir.pipelines.serdes.row_type import RowType
from weir.state.frames import framed, picked

Predicate = pl.Expr | UserFunction


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Keeps the rows for which the predicate is true (not null), or with ``is_negated`` the rest.

    A function is called with ``(key, value)``. In a table, a row that does not pass becomes a tombstone, and the
    predicate never sees a tombstone.
    """

    predicate: Predicate
    is_negated: bool
    key: KeyType
    value: RowType
    is_table: bool

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        found = meets(self.predicate, rows, self.key, self.value, is_table=self.is_table)
        passes = ~found if self.is_negated else found
        if not self.is_table:
            return rows.filter(passes)
        return with_tombstones(rows, self.value, self.key.row_type.columns, rows.get_column("_deleted") | ~passes)


@dataclass(frozen=True, kw_only=True)
class MapValues:
    """A new value per row: from expressions, one per column, or from a function of the value.

    On a stream, a function also gets null values, and returning None makes a tombstone. On a table, tombstones pass
    unmapped.
    """

    mapper: Mapping[str, pl.Expr] | UserFunction
    key_columns: tuple[str, ...]
    value: RowType
    result: RowType
    is_table: bool

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        deleted = rows.get_column("_deleted")
        if isinstance(self.mapper, UserFunction):
            asked = rows.filter(~deleted) if self.is_table else rows
            objects = self.value.to_objects(asked, asked.get_column("_deleted"))
            answers = self.mapper.over(((item,) for item in objects), Records(asked, self.key_columns))
            if self.is_table and asked.height < rows.height:
                given = iter(answers)
                answers = [None if gone else next(given) for gone in deleted.to_list()]
            columns = self.mapper.columns(self.result, answers, Records(rows, self.key_columns))
            deleted = pl.Series([answer is None for answer in answers], dtype=pl.Boolean())
        else:
            columns = computed(rows, self.mapper, self.result)
        kept = [name for name in self.key_columns if name not in self.result.columns]
        mapped = framed([*picked(rows, kept).get_columns(), *columns, *reserved(rows, deleted)])
        return with_tombstones(mapped, self.result, self.key_columns, deleted)


@dataclass(frozen=True, kw_only=True)
class Peek:
    """Shows each row to a function of ``(key, value)`` and forwards it.

    An epoch that is rolled back runs again, so the function sees each record at least once.
    """

    action: UserFunction
    key: KeyType
    value: RowType

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        values = self.value.to_objects(rows, rows.get_column("_deleted"))
        self.action.over(zip(self.key.to_objects(rows), values, strict=True), Records(rows, self.key.names))
        return rows


def meets(
    predicate: Predicate, rows: pl.DataFrame, key: KeyType, value: RowType, *, is_table: bool = False
) -> pl.Series:
    """Which rows meet the predicate; null counts as false.

    A function gets null values too, except those of a table, which are tombstones: what is said of these has no
    meaning.
    """
    if isinstance(predicate, pl.Expr):
        answers = rows.with_columns_seq(predicate.cast(pl.Boolean).alias("_meets")).get_column("_meets")
        return answers.fill_null(False)
    if is_table and (deleted := rows.get_column("_deleted")).any():
        return pl.repeat(False, rows.height, eager=True).scatter(
            (~deleted).arg_true(), meets(predicate, rows.filter(~deleted), key, value)
        )
    objects = value.to_objects(rows, rows.get_column("_deleted"))
    found = predicate.over(zip(key.to_objects(rows), objects, strict=True), Records(rows, key.names))
    return pl.Series([bool(answer) for answer in found], dtype=pl.Boolean())


def computed(rows: pl.DataFrame, expressions: Mapping[str, pl.Expr], types: RowType) -> list[pl.Series]:
    """The columns that ``expressions`` give over ``rows``, cast to their types in ``types``."""
    named = {f"_{name}": expression.cast(types.columns[name]) for name, expression in expressions.items()}
    frame = rows.with_columns_seq(**named)
    return [frame.get_column(f"_{name}").alias(name) for name in expressions]


def reserved(rows: pl.DataFrame, deleted: pl.Series | None = None) -> list[pl.Series]:
    """The columns of ``rows`` that are not the user's, in order, with ``_deleted`` as given."""
    columns = [column for column in rows.get_columns() if column.name.startswith("_")]
    if deleted is None:
        return columns
    return [deleted.alias("_deleted") if column.name == "_deleted" else column for column in columns]


def with_tombstones(
    rows: pl.DataFrame, value: RowType, key_columns: Container[str], deleted: pl.Series
) -> pl.DataFrame:
    """``rows`` with ``_deleted`` as given, and null values where it is true; columns that are also key columns stay."""
    if not deleted.any():
        return rows
    cleared = [
        pl.when(~pl.col("_deleted")).then(pl.col(name)).alias(name) for name in value.columns if name not in key_columns
    ]
    return rows.with_columns_seq(deleted.alias("_deleted")).with_columns_seq(cleared)
