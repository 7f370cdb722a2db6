"""Rows of several inputs are put in turn, whatever the order of their columns."""

from __future__ import annotations

import polars as pl

from weir.pipelines.operators.merge import in_turn


def test_rows_whose_columns_come_in_another_order_are_put_in_turn():
    """As those of a join of tables, of which one was made of several streams."""
    one = pl.DataFrame({"n": [1, 4], "_offset": [0, 3], "_deleted": [False, True]})
    other = pl.DataFrame({"n": [2, 3], "_deleted": [True, False], "_offset": [0, 2]})
    assert in_turn([one, other]).select("n", "_deleted").rows() == [(1, False), (2, True), (3, False), (4, True)]
