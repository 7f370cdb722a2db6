"""Keys by number, so that rows of one key can be found without comparing keys."""

from __future__ import annotations

import numpy as np
import polars as pl

from weir.pipelines.operators.epoch import without_null_keys


def numbered(keys: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """The distinct ones of ``keys`` that are not null, and the number that each of ``keys`` has among them, ``_id``."""
    distinct = keys.unique(maintain_order=True) if keys.height > 1 else keys
    distinct = without_null_keys(distinct, keys.columns)
    if distinct.height == keys.height:
        return distinct, pl.Series("_id", np.arange(keys.height, dtype=np.uint32))
    return distinct, numbers_of(keys, distinct.with_row_index("_id"))


def numbers_of(keys: pl.DataFrame, numbered: pl.DataFrame) -> pl.Series:
    """The number of each key, its ``_id`` in ``numbered``; null for a key that has none."""
    return keys.join(numbered, on=keys.columns, how="left", nulls_equal=True, maintain_order="left").get_column("_id")
