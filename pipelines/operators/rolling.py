"""States merged over every window of consecutive slices, for many keys at once.

Integers that are added up, and times, are merged by numpy, in about three steps for each slice however many a window
has; other states by queries over all slices, by twos, fours and so on. Which slices and keys those are belongs to
``slices``.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from weir.pipelines.operators.fold import ColumnFold
from weir.state.frames import framed, in_order, picked

_NO_TIME = np.iinfo(np.int64).min


def windows_of_cells(
    fold: ColumnFold, states: pl.DataFrame, cells: np.ndarray, shape: tuple[int, int], width: int, every: int
) -> tuple[np.ndarray, np.ndarray, pl.DataFrame]:
    """Of each window with a state: its number, its key's, and the state, by window, then key.

    ``states`` (state columns and ``_ts``) are those of ``cells`` of a table with a row per slice and a column per key,
    whose ``shape`` is given. Window ``k`` is merged from ``width`` rows, from row ``k * every`` on.
    """

    def merged(merge: np.ufunc, column: str, nothing: int) -> np.ndarray:
        table = np.full(shape[0] * shape[1], nothing)
        table[cells] = states.get_column(column).to_numpy()
        return rolled(merge, table.reshape(shape), width)[::every]

    times = merged(np.maximum, "_ts", _NO_TIME)
    windows, keys = np.nonzero(times != _NO_TIME)
    columns = [pl.Series("_ts", times[windows, keys])]
    others = []
    for accumulator in fold.accumulators:
        if accumulator.adds_up and not any(states.get_column(name).null_count() for name in accumulator.state):
            columns += [pl.Series(name, merged(np.add, name, 0)[windows, keys]) for name in accumulator.state]
        else:
            others.append(accumulator)
    if others:
        fold = ColumnFold(tuple(others))
        rows = np.full(shape[0] * shape[1], states.height)
        rows[cells] = np.arange(states.height)
        columns_of_others = picked(states, [*fold.state, "_ts"])
        table = pl.concat([columns_of_others, columns_of_others.clear(1)])[rows]
        found = _rolled_states(fold, table, shape[1], width, shape[0] - width + 1)
        columns += picked(in_order(found, windows * (every * shape[1]) + keys), fold.state).get_columns()
    return windows, keys, picked(framed(columns), states.columns)


def rolled(merge: np.ufunc, rows: np.ndarray, width: int) -> np.ndarray:
    """For each row what it and the following ones are together, ``width`` in all; shape (rows - width + 1, columns).

    As many windows at a time as have a row in common: each is what comes up to the last such row, merged backwards from
    there, and what comes after, merged forwards.
    """
    found = np.empty((len(rows) - width + 1, rows.shape[1]), rows.dtype)
    for first in range(0, len(found), width):
        windows = found[first : first + width]
        count = len(windows)
        merge.reduce(rows[first + count - 1 : first + width], axis=0, out=windows[-1])
        for window in range(count - 2, -1, -1):
            merge(rows[first + window], windows[window + 1], out=windows[window])
        after = rows[first + width : first + width + count - 1].copy()
        for row in range(1, count - 1):
            merge(after[row - 1], after[row], out=after[row])
        merge(windows[1:], after, out=windows[1:])
    return found


def _rolled_states(fold: ColumnFold, table: pl.DataFrame, of_keys: int, width: int, count: int) -> pl.DataFrame:
    """For each of the first ``count`` slices what ``rolled`` gives, from the states of ``of_keys`` keys in each slice,
    one slice after another.

    They are merged by twos, fours and so on, and these to windows, so that a window of 60 slices takes 8 mergers.
    """
    merged, offset = 1, 0
    found = None
    while True:
        if width & merged:
            part = table[offset * of_keys : (offset + count) * of_keys]
            found = part if found is None else fold.combine(found, part)
            offset += merged
        if found is not None and offset == width:
            return found
        step = merged * of_keys
        table = fold.combine(table[: table.height - step], table[step:])
        merged *= 2
