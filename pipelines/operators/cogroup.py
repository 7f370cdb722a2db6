"""Cogrouping: the records of several grouped streams side by side in one frame, for one aggregation to fold.

Each input has its own columns; a row has values in those of its input and nulls in all others. The aggregation is the
same as for one stream, so windows, stores and suppressions need not know of cogrouping.
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
"""The number of a row's input, Int8; only where functions fold."""


def beside(index: int, column: str) -> str:
    """The name of ``column`` of input ``index`` in the common frame."""
    return f"_{index}_{column}"


@dataclass(frozen=True, kw_only=True)
class Cogroup:
    """All rows of all inputs, ordered by record; rows of one record in the order of the inputs it reaches."""

    columns: tuple[tuple[pl.Expr, ...], ...]
    """For each input, all columns to forward."""
    by_arrival: tuple[int, ...]

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        return self.process_all([rows], epoch)

    def process_all(self, inputs: Sequence[pl.DataFrame], epoch: Epoch) -> pl.DataFrame:
        return in_turn([inputs[index].select_seq(self.columns[index]) for index in self.by_arrival])


@dataclass(frozen=True)
class CogroupedValues(RowType):
    """Values of several inputs side by side; an object is the input's number and its value."""

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
                rows = frame[places].select_seq(pl.col(beside(index, name)).alias(name) for name in values.columns)
                found = values.to_objects(rows, None if absent is None else absent[places])
                for place, value in zip(places.to_list(), found, strict=True):
                    objects[place] = index, value
        return objects
