"""Windows of consecutive slices, beside a loop over each."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from weir.pipelines.operators.aggregates import Count, Max, Mean, Min, Sum
from weir.pipelines.operators.fold import ColumnFold
from weir.pipelines.operators.rolling import rolled, windows_of_cells

COLUMNS = pl.Schema({"n": pl.Int64(), "x": pl.Float64(), "text": pl.String()})


@pytest.mark.parametrize(
    ("length", "width"), [(1, 1), (7, 1), (3, 3), (4, 3), (5, 3), (6, 3), (11, 3), (9, 8), (40, 6)]
)
@pytest.mark.parametrize("merge", [np.add, np.maximum])
def test_each_row_is_merged_with_those_after_it(length, width, merge):
    rows = np.random.default_rng(length * width).integers(-9, 9, (length, 3))
    before = rows.copy()
    wanted = [merge.reduce(rows[first : first + width], axis=0) for first in range(length - width + 1)]
    assert np.array_equal(rolled(merge, rows, width), wanted)
    assert np.array_equal(rows, before)


@pytest.mark.parametrize("has_null", [False, True])
@pytest.mark.parametrize(("width", "every"), [(4, 1), (5, 2)])
def test_windows_have_the_states_of_their_cells(width, every, has_null):
    """States that add up and others, in one fold; a state is null in rows that a program had before it had the
    aggregate."""
    aggregates = {
        "sum": Sum("n"),
        "count": Count(),
        "mean": Mean("n"),
        "low": Min("text"),
        "high": Max("n"),
        "x": Sum("x"),
    }
    fold = ColumnFold(tuple(aggregate.bind(name, COLUMNS) for name, aggregate in aggregates.items()))
    random, shape = np.random.default_rng(width), (13, 3)
    cells = np.flatnonzero(random.random(shape[0] * shape[1]) < 0.3)
    records = pl.DataFrame(
        {
            "n": random.integers(-50, 50, len(cells)),
            "x": random.integers(0, 9, len(cells)) / 2,
            "text": [f"{number % 7}" for number in cells],
            "_ts": random.integers(0, 9_000, len(cells)),
        },
        schema_overrides=COLUMNS,
    )
    states = records.select(*fold.lifts(), "_ts")
    if has_null:
        states = states.with_columns(pl.when(pl.int_range(pl.len()) > 2).then("sum").alias("sum"))
    windows, keys, merged = windows_of_cells(fold, states, cells, shape, width, every)
    wanted = {}
    for window in range((shape[0] - width) // every + 1):
        for key in range(shape[1]):
            slices, of_keys = np.divmod(cells, shape[1])
            inside = (slices >= window * every) & (slices < window * every + width) & (of_keys == key)
            if inside.any():
                found = states.filter(pl.Series(inside))
                sums = pl.col("count", "mean__sum", "mean__count", "x").sum()
                total = pl.col("sum").sum() if found["sum"].count() else pl.lit(None).alias("sum")
                row = found.select(total, sums, pl.col("low").min(), pl.col("high", "_ts").max())
                wanted[window, key] = row.select(states.columns).row(0)
    assert dict(zip(zip(windows.tolist(), keys.tolist(), strict=True), merged.rows(), strict=True)) == wanted
    assert merged.columns == states.columns
    assert list(wanted) == list(zip(windows.tolist(), keys.tolist(), strict=True))
