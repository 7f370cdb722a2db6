"""The group of a single record is that record's own state, whichever aggregate it is."""

import polars as pl
import pytest

from weir import ApproxDistinct, ApproxQuantiles, Collect, Count, First, Last, Max, Mean, Min, Sum
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
}


@pytest.mark.parametrize("name", AGGREGATES)
def test_a_single_row_is_grouped_as_among_others(name):
    """Among others, polars groups it; alone, it is the row with its state columns."""
    fold = ColumnFold((AGGREGATES[name].bind(name, ROWS.schema),))
    together = fold.group(ROWS, ["key"]).sort("_offset")
    alone = pl.concat([fold.group(ROWS[at : at + 1], ["key"]) for at in range(ROWS.height)])
    assert alone.equals(together.select(alone.columns))
    assert alone.select(fold.state.names()).schema == fold.state
