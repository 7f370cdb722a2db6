"""What holds of the state of every aggregate: that of a single record, and that of a row from before it was added."""

import polars as pl
import pytest

from weir import (
    ApproxDistinct,
    ApproxQuantiles,
    BottomK,
    Collect,
    Count,
    First,
    Last,
    Max,
    MaxBy,
    Mean,
    Min,
    MinBy,
    StdDev,
    StringAgg,
    Sum,
    TopK,
    ValueCounts,
    Variance,
)
from weir.pipelines.operators.fold import ColumnFold

ROWS = pl.DataFrame(
    {
        "key": ["a", "b", "c", None],
        "cents": [3, None, -7, 0],
        "share": [0.5, float("nan"), None, -0.0],
        "page": ["home", "", None, "cart"],
        "_ts": [5, 4, 3, 2],
        "_partition": [0, 0, 0, 0],
        "_offset": [10, 11, 12, 13],
    }
)
AGGREGATES = {
    "count": Count(),
    **{
        f"{kind.__name__.lower()}_{column}": kind(column)
        for kind in (Sum, Mean, Min, Max, First, Last)
        for column in ("cents", "share")
    },
    **{f"{kind.__name__.lower()}_page": kind("page") for kind in (Min, Max, First, Last, ApproxDistinct)},
    "quantiles": ApproxQuantiles("share", at=(0.5,)),
    "pages": Collect("page", limit=3),
    **{
        f"{kind.__name__.lower()}_{column}": kind(column)
        for kind in (Variance, StdDev)
        for column in ("cents", "share")
    },
    **{f"{kind.__name__.lower()}_by_time": kind("page", by_time=True) for kind in (First, Last)},
    **{f"{kind.__name__.lower()}_{by}": kind("page", by=by) for kind in (MinBy, MaxBy) for by in ("cents", "share")},
    **{f"{kind.__name__.lower()}_share": kind("share", 2) for kind in (TopK, BottomK)},
    **{f"{kind.__name__.lower()}_pages": kind("page", 2, by="share") for kind in (TopK, BottomK)},
    "joined": StringAgg("page", ", ", max_chars=3),
    "counted": ValueCounts("page", limit=2),
}


@pytest.mark.parametrize("name", AGGREGATES)
def test_a_single_row_is_grouped_as_among_others(name):
    """Among others, polars groups it; alone, it is the row with its state columns."""
    fold = ColumnFold((AGGREGATES[name].bind(name, ROWS.schema),))
    together = fold.group(ROWS, ["key"]).sort("_offset")
    alone = pl.concat([fold.group(ROWS[at : at + 1], ["key"]) for at in range(ROWS.height)])
    assert alone.equals(together.select(alone.columns))
    assert alone.select(fold.state.names()).schema == fold.state


@pytest.mark.parametrize("name", AGGREGATES)
def test_an_aggregate_that_is_added_begins_at_nothing(name):
    """Rows from before have nulls in its columns: merged by key, and where states follow one another in sessions."""
    fold = ColumnFold((AGGREGATES[name].bind(name, ROWS.schema),))
    groups = fold.group(ROWS, ["key"]).sort("_offset")
    before = pl.DataFrame({**{each: [None] for each in fold.state}, "_ts": [1]}, schema={**fold.state, "_ts": pl.Int64})
    merged = fold.merge(groups, pl.concat([before] * 4).with_columns(_found=True), ROWS)
    assert fold.finish(merged).equals(fold.finish(groups.with_columns(_deleted=False)))
    states = fold.states(ROWS, before)
    in_turn = states.frame([states.fold(states.stored(0), row) for row in range(ROWS.height)])
    assert fold.finish(in_turn).equals(fold.finish(groups.select(*fold.state, "_ts")))
