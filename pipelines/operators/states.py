"""States that are copied and merged, for sessions and sliding windows: identified by numbers, computed together.

What is copied and merged is decided record by record; the states themselves are computed over columns at the end, or
immediately where the fold is a Python function. A state never changes once made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Protocol

import polars as pl


class States(Protocol):
    """States of one batch, each identified by a number; None is the empty state."""

    def stored(self, row: int) -> int:
        """The state in a row of the store."""
        ...

    def fold(self, state: int | None, record: int) -> int:
        """``state`` plus one more record of the batch, given by its row."""
        ...

    def merge(self, state: int | None, other: int, record: int) -> int:
        """``state``, then ``other``; ``record`` is the row that causes the merge."""
        ...

    def is_gone(self, state: int) -> bool:
        """Whether the fold deleted it."""
        ...

    def frame(self, states: Sequence[int | None]) -> pl.DataFrame:
        """State columns and ``_ts`` (greatest timestamp folded in), one row per state; null where empty or deleted."""
        ...


class ColumnStates:
    """Each state is a sequence of single records and stored states, if possible a prefix of a shared chain."""

    def __init__(self, records: pl.DataFrame, stored: pl.DataFrame, scans: Sequence[pl.Expr]) -> None:
        """``records`` and ``stored`` have the state columns and ``_ts``; ``scans`` run over them in order."""
        self._parts = pl.concat([records, stored.select_seq(records.columns).cast(records.schema)])
        self._stored_from, self._scans = records.height, scans
        self._chains: list[list[int]] = []
        self._ends: list[tuple[int, int]] = []

    def stored(self, row: int) -> int:
        return self._begin([self._stored_from + row])

    def fold(self, state: int | None, record: int) -> int:
        if state is None:
            return self._begin([record])
        number, length = self._ends[state]
        parts = self._chains[number]
        if len(parts) > length:
            return self._begin([*parts[:length], record])
        parts.append(record)
        self._ends.append((number, length + 1))
        return len(self._ends) - 1

    def merge(self, state: int | None, other: int, record: int) -> int:
        return other if state is None else self._begin([*self._parts_of(state), *self._parts_of(other)])

    def is_gone(self, state: int) -> bool:
        return False

    def frame(self, states: Sequence[int | None]) -> pl.DataFrame:
        lengths: dict[int, int] = {}
        for state in states:
            if state is not None:
                number, length = self._ends[state]
                lengths[number] = max(length, lengths.get(number, 0))
        starts, total = {}, 0
        for number, length in lengths.items():
            starts[number], total = total, total + length
        order = list(chain.from_iterable(self._chains[number][:length] for number, length in lengths.items()))
        numbers = (
            pl.Series(list(lengths), dtype=pl.UInt32)
            .repeat_by(pl.Series(list(lengths.values()), dtype=pl.UInt32))
            .explode()
        )
        scanned = (
            self._parts[order]
            .with_columns_seq(numbers.alias("_chain"))
            .select_seq(*(scan.over("_chain") for scan in self._scans), pl.col("_ts").cum_max().over("_chain"))
        )
        at = [None if state is None else starts[self._ends[state][0]] + self._ends[state][1] - 1 for state in states]
        return scanned.select_seq(pl.all().gather(pl.Series(at, dtype=pl.UInt32)))

    def _begin(self, parts: list[int]) -> int:
        self._chains.append(parts)
        self._ends.append((len(self._chains) - 1, len(parts)))
        return len(self._ends) - 1

    def _parts_of(self, state: int) -> list[int]:
        number, length = self._ends[state]
        return self._chains[number][:length]


class FunctionStates:
    """Calls the functions as soon as a state is folded or merged; each call is for a record, given by its row."""

    def __init__(
        self,
        *,
        keys: list[Any],
        values: list[Any],
        times: list[int],
        stored: list[Any],
        stored_times: list[int],
        step: Callable[[int, Any, Any, Any], Any],
        merger: Callable[[int, Any, Any, Any], Any],
        frame: Callable[[list[Any], list[int], list[int]], pl.DataFrame],
    ) -> None:
        self._keys, self._values, self._times = keys, values, times
        self._stored, self._stored_times = stored, stored_times
        self._step, self._merger, self._frame = step, merger, frame
        self._made: list[tuple[Any, int, int]] = []
        """State, timestamp, and the record that made it, 0 for a stored state."""

    def stored(self, row: int) -> int:
        return self._make(self._stored[row], self._stored_times[row], 0)

    def fold(self, state: int | None, record: int) -> int:
        held, time, _ = (None, self._times[record], 0) if state is None else self._made[state]
        return self._make(
            self._step(record, self._keys[record], self._values[record], held), max(time, self._times[record]), record
        )

    def merge(self, state: int | None, other: int, record: int) -> int:
        one, one_time, _ = (None, self._made[other][1], 0) if state is None else self._made[state]
        two, two_time, _ = self._made[other]
        return self._make(self._merger(record, self._keys[record], one, two), max(one_time, two_time), record)

    def is_gone(self, state: int) -> bool:
        return self._made[state][0] is None

    def frame(self, states: Sequence[int | None]) -> pl.DataFrame:
        made = [(None, 0, 0) if state is None else self._made[state] for state in states]
        return self._frame(
            [state for state, _, _ in made], [time for _, time, _ in made], [record for _, _, record in made]
        ).drop("_deleted")

    def _make(self, state: Any, time: int, record: int) -> int:
        self._made.append((state, time, record))
        return len(self._made) - 1
