"""Mappers that choose a new key or give any number of records; those that map one value to one are in ``stateless``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import polars as pl

from weir.pipelines.arguments import what_it_is
from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.functions import KeyType, Records, UserFunction
from weir.pipelines.operators.stateless import computed, reserved, with_tombstones
from weir.pipelines.serdes.row_type import RowType
from weir.state.frames import framed, picked


class PairExpressions(NamedTuple):
    """A new key and a new value, by column."""

    key: Mapping[str, pl.Expr]
    value: Mapping[str, pl.Expr]


@dataclass(frozen=True, kw_only=True)
class MapColumns:
    """A new key and a new value per row, from expressions; a null value stays null."""

    mapper: PairExpressions
    key: RowType
    result: RowType

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        values = {name: expression for name, expression in self.mapper.value.items() if name not in self.key.columns}
        mapped = pl.DataFrame(
            [*computed(rows, self.mapper.key, self.key), *computed(rows, values, self.result), *reserved(rows)]
        )
        return with_tombstones(mapped, self.result, self.key.columns, mapped.get_column("_deleted"))


@dataclass(frozen=True, kw_only=True)
class MapPairs:
    """New records from a function of ``(key, value)``: one pair per record or any number if ``is_flat``, and none for
    None."""

    mapper: UserFunction
    is_flat: bool
    key: KeyType
    value: RowType
    key_result: RowType
    result: RowType

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        values = self.value.to_objects(rows, rows.get_column("_deleted"))
        arguments, records = zip(self.key.to_objects(rows), values, strict=True), Records(rows, self.key.names)
        answers = (
            self.mapper.over_each(arguments, records)
            if self.is_flat
            else [[] if pair is None else [pair] for pair in self.mapper.over(arguments, records)]
        )
        pairs = [pair for several in answers for pair in several]
        rows = rows[_repeats(answers)]
        records = Records(rows, self.key.names)
        for index, pair in enumerate(pairs):
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise self.mapper.failed(
                    f"it returned {what_it_is(pair)}, which is not a pair of key and value", records, index
                )
        new_values = [value for _, value in pairs]
        return pl.DataFrame(
            [
                *self.mapper.columns(self.key_result, [key for key, _ in pairs], records),
                *self.mapper.columns(self.result, new_values, records),
                *reserved(rows, _is_none(new_values)),
            ]
        )


@dataclass(frozen=True, kw_only=True)
class FlatMapValues:
    """Any number of values per row, under its key.

    A function is called with each value, nulls included; a None among what it gives becomes a null value. With
    expressions, each element of the list column ``exploded`` becomes a row with the other columns beside it; a null
    value, a null list and an empty list give no rows.
    """

    mapper: Mapping[str, pl.Expr] | UserFunction
    exploded: str | None
    key_columns: tuple[str, ...]
    value: RowType
    result: RowType

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        kept = [name for name in self.key_columns if name not in self.result.columns]
        if isinstance(self.mapper, UserFunction):
            objects = self.value.to_objects(rows, rows.get_column("_deleted"))
            answers = self.mapper.over_each(((item,) for item in objects), Records(rows, self.key_columns))
            values = [value for several in answers for value in several]
            rows = rows[_repeats(answers)]
            columns = self.mapper.columns(self.result, values, Records(rows, self.key_columns))
            return framed([*picked(rows, kept).get_columns(), *columns, *reserved(rows, _is_none(values))])
        assert self.exploded is not None  # expressions always come with it
        types = RowType(pl.Schema({**self.result.columns, self.exploded: pl.List(self.result.columns[self.exploded])}))
        rows = rows.filter(~pl.col("_deleted"))
        mapped = framed([*picked(rows, kept).get_columns(), *computed(rows, self.mapper, types), *reserved(rows)])
        return mapped.filter(pl.col(self.exploded).list.len() > 0).explode(self.exploded)


@dataclass(frozen=True, kw_only=True)
class SelectKey:
    """A new key per row, from columns and expressions or from a function of ``(key, value)``."""

    selector: Mapping[str, pl.Expr] | UserFunction
    key: KeyType
    value: RowType
    result: RowType

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        if isinstance(self.selector, UserFunction):
            values = self.value.to_objects(rows, rows.get_column("_deleted"))
            records = Records(rows, self.key.names)
            keys = self.selector.over(zip(self.key.to_objects(rows), values, strict=True), records)
            columns = self.selector.columns(self.result, keys, records)
        else:
            columns = computed(rows, self.selector, self.result)
        kept = [name for name in self.value.columns if name not in self.result.columns]
        return framed([*columns, *picked(rows, kept).get_columns(), *reserved(rows)])


def _repeats(answers: list[list[Any]]) -> pl.Series:
    """The index of the row that each answer came from."""
    return pl.Series([index for index, several in enumerate(answers) for _ in several], dtype=pl.UInt32())


def _is_none(values: list[Any]) -> pl.Series:
    return pl.Series([value is None for value in values], dtype=pl.Boolean())
