"""Cogrouping: the records of several grouped streams beside each other as one, for one aggregation to fold.

Each input has its own columns; a row has those of its input, and nulls in all others. The aggregation is the same as
that of one stream, so windows, stores and suppressions know nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.merge import in_turn
from weir.pipelines.serdes.row_type import RowType

INPUT = "_input"
"""Where functions fold: the number of a row's input, Int8."""


def beside(index: int, column: str) -> str:
    """What ``column`` of input ``index`` is called beside the others."""
    return f"_{index}_{column}"


@dataclass(frozen=True, kw_only=True)
class Cogroup:
    """All rows of all inputs in the order of their records; of one record, those of the input that has it first."""

    columns: tuple[tuple[pl.Expr, ...], ...]
    """Of each input, all columns that are forwarded."""
    by_arrival: tuple[int, ...]

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        return self.process_all([rows], epoch)

    def process_all(self, inputs: Sequence[pl.DataFrame], epoch: Epoch) -> pl.DataFrame:
        return in_turn([inputs[index].select(self.columns[index]) for index in self.by_arrival])


@dataclass(frozen=True)
class CogroupedValues(RowType):
    """Values of several inputs beside each other; an object is an input's number and the value."""

    inputs: tuple[RowType, ...] = ()

    @classmethod
    def of(cls, inputs: Sequence[RowType]) -> CogroupedValues:
        columns = {
            beside(index, name): dtype for index, values in enumerate(inputs) for name, dtype in values.columns.items()
        }
        return cls(pl.Schema({**columns, INPUT: pl.Int8()}), inputs=tuple(inputs))

    def to_objects(self, frame: pl.DataFrame, absent: pl.Series | None = None) -> list[Any]:
        objects: list[Any] = [None] * frame.height
        for index, values in enumerate(self.inputs):
            places = (frame.get_column(INPUT) == index).arg_true()
            if places.len():
                rows = frame[places].select(pl.col(beside(index, name)).alias(name) for name in values.columns)
                found = values.to_objects(rows, None if absent is None else absent[places])
                for place, value in zip(places.to_list(), found, strict=True):
                    objects[place] = index, value
        return objects
