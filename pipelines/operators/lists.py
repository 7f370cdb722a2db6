"""Lists of a column taken apart into items and put together again: faster than expressions within each list."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

ROW, ITEM = "row", "item"


def items_of(lists: Sequence[pl.Series]) -> pl.DataFrame:
    """The items of several columns of one height, without nulls: those of the first column first.

    Columns: ``row: UInt32``, ``item``.
    """
    frames = [each.alias(ITEM).to_frame().with_row_index(ROW).explode(ITEM) for each in lists]
    return pl.concat(frames).drop_nulls(ITEM)


def lists_of(items: pl.DataFrame, height: int, limit: int) -> pl.Series:
    """A column of ``height`` lists, each of the first ``limit`` items of its row, in order; the inverse of
    ``items_of``."""
    found = items.group_by(ROW, maintain_order=True).agg(pl.col(ITEM).head(limit))
    rows = pl.DataFrame({ROW: pl.int_range(height, dtype=pl.UInt32, eager=True)})
    lists = rows.join(found, on=ROW, how="left", maintain_order="left").get_column(ITEM)
    return lists.fill_null(pl.Series([[]], dtype=lists.dtype)) if lists.null_count() else lists
