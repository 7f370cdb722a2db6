"""Columns of a frame put in and left out without a query: polars takes 30 to 130 µs for any, and an epoch has many.

What an epoch does compute is computed by ``select_seq`` and ``with_columns_seq``: they take a third of the time for few
rows, and workers have one thread for polars anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np
import polars as pl

FEW = 32
"""Up to about this many values are put into lists faster one by one than by a query."""


def framed(columns: list[pl.Series]) -> pl.DataFrame:
    """A frame of ``columns``, at least one; what ``pl.DataFrame`` makes of them in three times the time."""
    return columns[0].to_frame().hstack(columns[1:])


def picked(frame: pl.DataFrame, names: Iterable[str]) -> pl.DataFrame:
    """The columns of ``frame`` with these names, in their order; what ``select`` gives if there are none."""
    return framed(columns) if (columns := list(map(frame.get_column, names))) else frame.select()


def without(frame: pl.DataFrame, *names: str) -> pl.DataFrame:
    """``frame`` without those of its columns that have these names; what ``drop`` gives if none is left."""
    columns = [column for column in frame.get_columns() if column.name not in names]
    return framed(columns) if columns else frame.drop(*names, strict=False)


def with_series(frame: pl.DataFrame, *columns: pl.Series) -> pl.DataFrame:
    """``frame`` with ``columns`` in the place of those with their names, new ones at the end."""
    changed = frame.clone()
    for column in columns:
        if column.name in changed.columns:
            changed.replace_column(changed.get_column_index(column.name), column)
        else:
            changed.insert_column(changed.width, column)
    return changed


def renamed(frame: pl.DataFrame, name: Callable[[str], str]) -> pl.DataFrame:
    """``frame`` with each column's name changed."""
    return framed([column.alias(name(column.name)) for column in frame.get_columns()])


def where(frame: pl.DataFrame, mask: pl.Series) -> pl.DataFrame:
    """The rows where ``mask``, which has no nulls, is true."""
    return frame if mask.all() else frame.filter(mask)


def in_order(frame: pl.DataFrame, places: np.ndarray) -> pl.DataFrame:
    """The rows at ``places``."""
    if len(places) == 1:
        return frame.slice(int(places[0]), 1)
    return frame if np.array_equal(places, np.arange(frame.height)) else frame[places]


def inverse(places: np.ndarray) -> np.ndarray:
    """Where each of ``places``, a permutation, has gone: rows brought in order by it are back by its inverse."""
    back = np.empty_like(places)
    back[places] = np.arange(len(places))
    return back


def count_below(ascending: pl.Series, limit: int) -> int:
    """How many of these numbers, each greater than the one before, are less than ``limit``; if all are, without a
    query."""
    return len(ascending) if ascending.is_empty() or ascending[-1] < limit else ascending.search_sorted(limit)


def parted(frame: pl.DataFrame, mask: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows where ``mask``, which has no nulls, is true, and those where it is false."""
    if mask.all():
        return frame, frame[:0]
    return (frame.filter(mask), frame.filter(~mask)) if mask.any() else (frame[:0], frame)


def has_null_row(frame: pl.DataFrame) -> bool:
    """Whether a row is null in all columns."""
    return all(column.null_count() for column in frame.get_columns()) and bool(
        frame.select_seq(pl.all_horizontal(pl.all().is_null()).any()).item()
    )


def listed(frame: pl.DataFrame, counts: np.ndarray) -> pl.DataFrame:
    """Each column as lists: the first has its first ``counts[0]`` values, and so on; no count is 0."""
    if len(counts) <= FEW:
        ends = np.cumsum(counts).tolist()
        spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        return framed([pl.Series(column.name, [column[span] for span in spans]) for column in frame.get_columns()])
    of = pl.Series("_list", np.repeat(np.arange(len(counts)), counts))
    return without(with_series(frame, of).group_by("_list", maintain_order=True).agg(frame.columns), "_list")


def flat(frame: pl.DataFrame) -> pl.DataFrame:
    """The values of each column's lists, one after another; lists of a row are of one length, and none is empty."""
    if not 0 < frame.height <= FEW:
        return frame.explode(frame.columns)
    return framed(
        [pl.concat([column[row] for row in range(frame.height)]).alias(column.name) for column in frame.get_columns()]
    )


def repeated(name: str, value: int, count: int, dtype: type[np.integer | np.bool_]) -> pl.Series:
    """A column of one value."""
    return _single(value, dtype).new_from_index(0, count).alias(name)  # type: ignore[arg-type]


@lru_cache(1024)
def _single(value: int, dtype: type[np.integer | np.bool_]) -> pl.Series:
    return pl.Series(np.full(1, value, dtype))


def running_max(times: np.ndarray, at_least: int | None) -> np.ndarray:
    """The greatest of ``times`` up to each, and ``at_least``, if not None."""
    greatest: np.ndarray = np.maximum.accumulate(times)
    return greatest if at_least is None else np.maximum(greatest, at_least)


def copies(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of rows that stand ``counts`` times each, one after another: the row of each copy, and its number among them."""
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
