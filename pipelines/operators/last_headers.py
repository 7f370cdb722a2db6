"""Folds that also keep the headers of the last record of a group, for results that are forwarded only later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from weir.pipelines.operators.aggregates import Accumulator
from weir.pipelines.operators.fold import ColumnFold, Fold
from weir.pipelines.operators.states import States
from weir.pipelines.serdes.headers import HEADERS, HEADERS_TYPE
from weir.state.frames import without

_LAST = Accumulator(
    name=HEADERS,
    state=pl.Schema({HEADERS: HEADERS_TYPE}),
    partial=[pl.col(HEADERS).last()],
    lift=[pl.col(HEADERS)],
    scan=[pl.col(HEADERS)],
    merge=[pl.col(HEADERS)],
    output=HEADERS_TYPE,
    finish=pl.col(HEADERS),
    is_ordered=True,
)
"""The newest record's, whatever was stored."""


def with_last_headers(fold: Fold) -> Fold:
    """The same fold over rows with ``_headers``, with those of the last record as a state column."""
    if isinstance(fold, ColumnFold):
        return ColumnFold((*fold.accumulators, _LAST))
    return _Beside(fold, ColumnFold((_LAST,)))


@dataclass(frozen=True)
class _Beside:
    """A fold of functions, and beside it one of columns, of the same records."""

    fold: Fold
    columns: ColumnFold

    @property
    def state(self) -> pl.Schema:
        return pl.Schema({**self.fold.state, **self.columns.state})

    def group(self, rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        groups = self.fold.group(rows, by)
        return groups.join(
            rows.group_by(by).agg(pl.col(HEADERS).last()), on=by, nulls_equal=True, maintain_order="left"
        )

    def merge(self, groups: pl.DataFrame, stored: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
        states = self.fold.merge(without(groups, HEADERS), without(stored, HEADERS), rows)
        return states.with_columns_seq(groups.get_column(HEADERS))

    def running(
        self, groups: pl.DataFrame, stored: pl.DataFrame, rows: pl.DataFrame, by: Sequence[str]
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        updates, states = self.fold.running(without(groups, HEADERS), without(stored, HEADERS), rows, by)
        return updates.with_columns_seq(rows.get_column(HEADERS)), states.with_columns_seq(groups.get_column(HEADERS))

    def states(self, rows: pl.DataFrame, stored: pl.DataFrame) -> States:
        return _BothStates(
            self.fold.states(rows, without(stored, HEADERS)),
            self.columns.states(rows, stored.select_seq(HEADERS, "_ts")),
        )

    def finish(self, states: pl.DataFrame) -> pl.DataFrame:
        return self.fold.finish(states)


class _BothStates:
    """The states of both folds, numbered together."""

    def __init__(self, functions: States, columns: States) -> None:
        self._functions, self._columns = functions, columns
        self._numbers: list[tuple[int, int]] = []

    def stored(self, row: int) -> int:
        return self._add(self._functions.stored(row), self._columns.stored(row))

    def fold(self, state: int | None, record: int) -> int:
        one, other = self._of(state)
        return self._add(self._functions.fold(one, record), self._columns.fold(other, record))

    def merge(self, state: int | None, other: int, record: int) -> int:
        (one, beside), (second, second_beside) = self._of(state), self._numbers[other]
        return self._add(self._functions.merge(one, second, record), self._columns.merge(beside, second_beside, record))

    def is_gone(self, state: int) -> bool:
        return self._functions.is_gone(self._numbers[state][0])

    def frame(self, states: Sequence[int | None]) -> pl.DataFrame:
        pairs = [self._of(state) for state in states]
        found = self._functions.frame([one for one, _ in pairs])
        return found.with_columns_seq(self._columns.frame([other for _, other in pairs]).get_column(HEADERS))

    def _of(self, state: int | None) -> tuple[int | None, int | None]:
        return (None, None) if state is None else self._numbers[state]

    def _add(self, one: int, other: int) -> int:
        self._numbers.append((one, other))
        return len(self._numbers) - 1
