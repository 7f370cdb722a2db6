"""Folds: how the records of one group (a key, or a key and a window) become that group's new state.

A fold works on a batch and the stored states of its groups; which records reach it, and what happens to the store,
belongs to ``aggregation`` and ``final_results``. There are two folds: expressions over columns, and a
Python function called once per record. States that are copied or merged are in ``states``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np
import polars as pl

from weir.pipelines.errors import UserFunctionError
from weir.pipelines.operators import calls, time_limit
from weir.pipelines.operators.aggregates import STORED, Accumulator
from weir.pipelines.operators.functions import KeyType, Places, Records, UserFunction
from weir.pipelines.operators.states import ColumnStates, FunctionStates, States
from weir.pipelines.operators.time_limit import OutOfTimeError, check_time
from weir.pipelines.serdes.row_type import RowType
from weir.state.frames import in_order, inverse, picked, renamed, repeated, with_series, without
from weir.state.own_code import failures

PLACE = ("_partition", "_offset")
"""The place of the record that caused a row."""
BEGINS = "_begins"
"""Optional: whether a row and the next of its group are one update, which keeps its time across a deleted state."""
OBJECTS = 4_096
"""Values that are Python objects at the same time."""

_OF_GROUPS = (pl.col("_ts").max(), *(pl.col(name).last() for name in PLACE))


class Fold(Protocol):
    """Folds the rows of a batch, in order, into states by group.

    There is at least one row, with the record's columns. Groups are distinct values of the group columns. States have
    the group columns, the state columns, ``_ts`` (greatest timestamp folded in), ``_partition`` and ``_offset`` (of
    the last record) and ``_deleted`` (the fold deleted the state).
    """

    @property
    def state(self) -> pl.Schema:
        """The state columns."""
        ...

    def group(self, rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        """One row per group: the group columns first, then what ``merge`` needs."""
        ...

    def merge(self, groups: pl.DataFrame, stored: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
        """States aligned with ``groups``, as is ``stored``: state columns, ``_ts``, ``_found``; null where none."""
        ...

    def running(
        self, groups: pl.DataFrame, stored: pl.DataFrame, rows: pl.DataFrame, by: Sequence[str]
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The state after each row, in the order of ``rows``, and the states that ``merge`` gives."""
        ...

    def states(self, rows: pl.DataFrame, stored: pl.DataFrame) -> States:
        """States over ``rows`` and ``stored`` (state columns, ``_ts``) that are copied and merged one by one."""
        ...

    def finish(self, states: pl.DataFrame) -> pl.DataFrame:
        """State columns replaced by finished values; all other columns stay, before and after them."""
        ...


@dataclass(frozen=True)
class ColumnFold:
    """The vectorized aggregates: combine within the batch first, then with the stored states."""

    accumulators: tuple[Accumulator, ...]
    state: pl.Schema = field(init=False)

    def __post_init__(self) -> None:
        columns = {name: dtype for accumulator in self.accumulators for name, dtype in accumulator.state.items()}
        object.__setattr__(self, "state", pl.Schema(columns))

    @property
    def is_ordered(self) -> bool:
        """Whether the finished values depend on the order of records and of the states that are merged."""
        return any(accumulator.is_ordered for accumulator in self.accumulators)

    def group(self, rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        if rows.height == 1:
            return rows.select_seq(*by, *self.lifts(), "_ts", *PLACE)
        partials = [partial for accumulator in self.accumulators for partial in accumulator.partial]
        groups = rows.group_by(by).agg(*partials, *_OF_GROUPS)
        packed = [
            accumulator.pack(groups.get_column(accumulator.name)).alias(accumulator.name)
            for accumulator in self.accumulators
            if accumulator.pack
        ]
        return groups.with_columns_seq(packed) if packed else groups

    def merge(self, groups: pl.DataFrame, stored: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
        deleted = repeated("_deleted", False, groups.height, np.bool_)
        if stored.get_column("_found").any():
            groups = _without_stored(groups.hstack(_as_stored(stored)).with_columns_seq(*self._merges()))
        return with_series(groups, deleted)

    def running(
        self, groups: pl.DataFrame, stored: pl.DataFrame, rows: pl.DataFrame, by: Sequence[str]
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        known = picked(groups, by).hstack(_as_stored(stored)).with_row_index("_group")
        met = rows.join(known, on=list(by), how="left", nulls_equal=True, maintain_order="left")
        running = [scan.over("_group") for accumulator in self.accumulators for scan in accumulator.scan]
        updates = _without_stored(
            met.select_seq(
                *by,
                *(column for column in known.columns if column.endswith(STORED)),
                "_group",
                *self.lifts(),
                pl.col("_ts").cum_max().over("_group"),
                *PLACE,
            )
            .with_columns_seq(running)
            .with_columns_seq(*self._merges(), pl.lit(False).alias("_deleted"))
        )
        states = updates.group_by("_group").last().sort("_group")
        return without(updates, "_group"), without(states, "_group")

    def states(self, rows: pl.DataFrame, stored: pl.DataFrame) -> States:
        return ColumnStates(rows.select_seq("_ts", *self.lifts()), stored, self.scans())

    def finish(self, states: pl.DataFrame) -> pl.DataFrame:
        return finish_columns(self.accumulators, states)

    def combine(self, states: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
        """Of each of ``states`` and the one of ``others`` beside it, that of the records of both (state columns and
        ``_ts``, null where there is none), if that needs no order."""
        return states.hstack(renamed(others, lambda name: name + STORED)).select_seq(self._combined)

    @cached_property
    def _combined(self) -> list[pl.Expr]:
        return [
            *(
                pl.coalesce(merge, pl.col(name), pl.col(name + STORED)).alias(name)
                for accumulator in self.accumulators
                for name, merge in zip(accumulator.state, accumulator.merge, strict=True)
            ),
            pl.max_horizontal("_ts", f"_ts{STORED}").alias("_ts"),
        ]

    def lifts(self) -> list[pl.Expr]:
        """The state columns of single rows."""
        return [lift for accumulator in self.accumulators for lift in accumulator.lift]

    def scans(self) -> list[pl.Expr]:
        """The state columns after each of several consecutive states."""
        return [scan for accumulator in self.accumulators for scan in accumulator.scan]

    def _merges(self) -> list[pl.Expr]:
        merges = [merge for accumulator in self.accumulators for merge in accumulator.merge]
        return [*merges, pl.max_horizontal("_ts", f"_ts{STORED}").alias("_ts")]


def finish_columns(accumulators: Sequence[Accumulator], states: pl.DataFrame) -> pl.DataFrame:
    """State columns replaced by the finished values, in the position of the first state column."""
    if all(accumulator.is_finished for accumulator in accumulators):
        return states
    state = [name for accumulator in accumulators for name in accumulator.state]
    at = states.columns.index(state[0])
    before = [name for name in states.columns[:at] if name not in state]
    after = [name for name in states.columns[at:] if name not in state]
    return states.select_seq(
        *before, *(accumulator.finish.alias(accumulator.name) for accumulator in accumulators), *after
    )


def _without_stored(met: pl.DataFrame) -> pl.DataFrame:
    return picked(met, (name for name in met.columns if not name.endswith(STORED)))


def _as_stored(stored: pl.DataFrame) -> pl.DataFrame:
    return renamed(without(stored, "_found"), lambda name: name + STORED)


@dataclass(frozen=True)
class FunctionFold:
    """``reduce`` and ``aggregate`` with plain functions, one Python call per record.

    ``step(key, value, state)`` gives the new state. None deletes it, and for the next record ``state`` is None again,
    which ``step`` turns into the initial state. Where states are merged, ``merger(key, one, other)`` gives the state of
    both; ``one`` is None for the first.
    """

    step: Callable[[Any, Any, Any], Any]
    node: str
    """Names the operator in errors."""
    function: str
    key: KeyType
    value: RowType
    state_type: RowType
    merger: Callable[[Any, Any, Any], Any] | None = None

    @property
    def state(self) -> pl.Schema:
        return self.state_type.columns

    @property
    def _named(self) -> UserFunction:
        """The function that errors name."""
        return UserFunction(self.step, self.node, self.function)

    def _records(self, rows: pl.DataFrame, order: Places | None = None) -> Records:
        return Records(rows, self.key.names, order)

    def group(self, rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        index = pl.int_range(pl.len(), dtype=pl.Int64).alias("_rows")
        return rows.select_seq(*by, index).group_by(by, maintain_order=True).agg("_rows")

    def merge(self, groups: pl.DataFrame, stored: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
        return self._fold(groups, stored, rows)

    def running(
        self, groups: pl.DataFrame, stored: pl.DataFrame, rows: pl.DataFrame, by: Sequence[str]
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        made: list[tuple[Any, int]] = []
        states = self._fold(groups, stored, rows, made)
        order = groups.get_column("_rows").explode().to_numpy()
        after = self._frame(rows, [state for state, _ in made], [time for _, time in made], order)
        after = in_order(after, inverse(order))
        return pl.concat([rows.select_seq(*by), after, rows.select_seq(PLACE)], how="horizontal"), states

    def states(self, rows: pl.DataFrame, stored: pl.DataFrame) -> States:
        return FunctionStates(
            keys=self.key.to_objects(rows),
            values=self.value.to_objects(rows, rows.get_column("_deleted")),
            times=rows.get_column("_ts").to_list(),
            stored=self.state_type.to_objects(stored),
            stored_times=stored.get_column("_ts").to_list(),
            step=partial(self._call, rows, self.step),
            merger=partial(self._call, rows, self.merger or self.step),
            frame=partial(self._frame, rows),
        )

    def finish(self, states: pl.DataFrame) -> pl.DataFrame:
        return states

    def _fold(
        self,
        groups: pl.DataFrame,
        stored: pl.DataFrame,
        rows: pl.DataFrame,
        made: list[tuple[Any, int]] | None = None,
    ) -> pl.DataFrame:
        """The states by group; ``made`` gets the state and the timestamp after each record, group by group.

        The records are brought into that order first: what is read one after another then lies so in memory.
        """
        members = groups.get_column("_rows")
        order, sizes = members.explode().to_numpy(), members.list.len().to_numpy()
        records = in_order(without(rows, *set(self.key.names).difference(self.value.columns)), order)
        states = self.state_type.to_objects(stored, ~stored.get_column("_found"))
        state_times = stored.get_column("_ts").to_list()
        step, (now_s, until_s) = self.step, time_limit.clock()
        running = calls.running = [self._called, rows, None]
        members_left = chain.from_iterable(self._parts(records, order, running))
        try:
            with calls.timed():
                for group, (key, size) in enumerate(zip(self.key.to_objects(groups), sizes.tolist(), strict=True)):
                    state, time, goes_on = states[group], state_times[group], False
                    for row, value, came, begun in islice(members_left, size):
                        if (state is None and not goes_on) or came > time:
                            time = came
                        running[2] = row
                        if now_s() > until_s:
                            raise OutOfTimeError
                        state, goes_on = step(key, value, state), begun
                        if made is not None:
                            made.append((state, time))
                    states[group], state_times[group] = state, time
        except failures() as error:
            if running[2] is None:
                raise
            raise self._failed(error, rows, running[2]) from error
        last = order[sizes.cumsum() - 1]
        return pl.concat(
            [
                groups.drop("_rows"),
                self._frame(rows, states, state_times, last),
                in_order(rows.select_seq(PLACE), last),
            ],
            how="horizontal",
        )

    def _parts(self, records: pl.DataFrame, order: np.ndarray, running: list[Any]) -> Iterator[Iterable[Any]]:
        """Of each record its row, value, time and ``BEGINS``, so many at a time that their objects take memory that is
        used again; no call is running while they are made."""
        for first in range(0, len(order), OBJECTS):
            running[2] = None
            part = records.slice(first, OBJECTS)
            begins = part.get_column(BEGINS).to_list() if BEGINS in part.columns else [False] * part.height
            values = self.value.to_objects(part, part.get_column("_deleted"))
            rows = order[first : first + OBJECTS].tolist()
            yield zip(rows, values, part.get_column("_ts").to_list(), begins, strict=True)

    def _call(
        self, rows: pl.DataFrame, function: Callable[[Any, Any, Any], Any], index: int, key: Any, one: Any, other: Any
    ) -> Any:
        """What ``function`` returns for the record at ``index`` of ``rows``."""
        calls.running = self._called, rows, index
        try:
            check_time()
            return function(key, one, other)
        except failures() as error:
            raise self._failed(error, rows, index) from error

    def _failed(self, error: BaseException, rows: pl.DataFrame, index: int) -> UserFunctionError:
        return self._named.failed(f"{type(error).__name__}: {error}", self._records(rows), index)

    def _called(self, rows: pl.DataFrame, index: int) -> calls.Call | None:
        return calls.of_record(self._named.failed("", self._records(rows), index))

    def _frame(self, rows: pl.DataFrame, states: list[Any], times: list[int], made_by: Places) -> pl.DataFrame:
        """States that records of ``rows`` produced, each record given by its index."""
        columns = self._named.columns(self.state_type, states, self._records(rows, made_by))
        return pl.DataFrame(
            [
                *columns,
                pl.Series("_ts", times, dtype=pl.Int64()),
                pl.Series("_deleted", [state is None for state in states], dtype=pl.Boolean()),
            ]
        )
