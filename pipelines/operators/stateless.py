"""Operators without state, on streams and on tables: filter, map the value, choose another key."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

import polars as pl

from pipelines.operators.epoch import Epoch
from pipelines.operators.functions import KeyType, UserFunction
from pipelines.serdes.row_type import RowType


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Keeps the rows for which the predicate is true (not null). A function gets ``(key, value)``.

    Of a table, a row that does not pass becomes a tombstone, and the predicate never sees a tombstone.
    """

    predicate: pl.Expr | UserFunction
    key: KeyType
    value: RowType
    is_table: bool

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        deleted = rows.get_column("_deleted")
        if isinstance(self.predicate, pl.Expr):
            passes = rows.with_columns(self.predicate.cast(pl.Boolean).alias("_passes")).get_column("_passes")
            passes = passes.fill_null(False)
        else:
            asked = rows.filter(~deleted) if self.is_table else rows
            objects = self.value.to_objects(asked, asked.get_column("_deleted"))
            answers = self.predicate.over(zip(self.key.to_objects(asked), objects, strict=True))
            passes = pl.Series([bool(answer) for answer in answers], dtype=pl.Boolean())
            if self.is_table:
                passes = pl.Series(values=[False] * rows.height, dtype=pl.Boolean()).scatter(
                    (~deleted).arg_true(), passes)
        if not self.is_table:
            return rows.filter(passes)
        return _with_tombstones(rows, self.value, self.key.row_type.columns, deleted | ~passes)


@dataclass(frozen=True, kw_only=True)
class MapValues:
    """A new value a row: of expressions, each a column, or of a function that gets the value.

    Of a stream, a function also gets null values, and one that returns None makes a tombstone. Of a table, a
    tombstone passes unmapped.
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
            answers = self.mapper.over((item,) for item in objects)
            if self.is_table and asked.height < rows.height:
                given = iter(answers)
                answers = [None if gone else next(given) for gone in deleted.to_list()]
            columns = self.mapper.columns(self.result, answers)
            deleted = pl.Series([answer is None for answer in answers], dtype=pl.Boolean())
        else:
            named = {f"_{name}": expression.cast(self.result.columns[name])
                     for name, expression in self.mapper.items()}
            mapped = rows.with_columns(**named)
            columns = [mapped.get_column(f"_{name}").alias(name) for name in self.mapper]
        kept = [name for name in self.key_columns if name not in self.result.columns]
        mapped = pl.DataFrame([*rows.select(kept).get_columns(), *columns,
                               *rows.select("_ts", "_partition", "_offset").get_columns(), deleted.alias("_deleted")])
        return _with_tombstones(mapped, self.result, self.key_columns, deleted)


@dataclass(frozen=True, kw_only=True)
class SelectKey:
    """A new key a row: of columns and expressions, or of a function that gets ``(key, value)``."""

    selector: Mapping[str, pl.Expr] | UserFunction
    key: KeyType
    value: RowType
    result: RowType

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        if isinstance(self.selector, UserFunction):
            values = self.value.to_objects(rows, rows.get_column("_deleted"))
            keys = self.selector.over(zip(self.key.to_objects(rows), values, strict=True))
            columns = self.selector.columns(self.result, keys)
        else:
            named = {f"_{name}": expression.cast(self.result.columns[name])
                     for name, expression in self.selector.items()}
            selected = rows.with_columns(**named)
            columns = [selected.get_column(f"_{name}").alias(name) for name in self.selector]
        kept = [name for name in self.value.columns if name not in self.result.columns]
        return pl.DataFrame([*columns, *rows.select(*kept, "_ts", "_partition", "_offset", "_deleted").get_columns()])


def _with_tombstones(rows: pl.DataFrame, value: RowType, key_columns: Container[str],
                     deleted: pl.Series) -> pl.DataFrame:
    """``rows`` with ``_deleted`` as given, and no value where it is true; a column that is also key stays."""
    if not deleted.any():
        return rows
    cleared = [pl.when(~pl.col("_deleted")).then(pl.col(name)).alias(name)
               for name in value.columns if name not in key_columns]
    return rows.with_columns(deleted.alias("_deleted")).with_columns(cleared)
