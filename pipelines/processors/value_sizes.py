"""How large values are, for limits in bytes: the bytes of their texts and binaries, and eight for anything else."""

from __future__ import annotations

import numpy as np
import polars as pl

from weir.state.stores.codec import is_fixed

PLAIN_BYTES = 8
"""The size of a number, a time, a boolean or a decimal."""


def value_bytes(rows: pl.DataFrame) -> np.ndarray:
    """The size of each row (Int64). Texts count in UTF-8, lists and structs by what is in them, and nulls not at
    all."""
    if all(is_fixed(column.dtype) and not column.null_count() for column in rows.get_columns()):
        return np.full(rows.height, PLAIN_BYTES * rows.width)
    sizes = rows.select_seq(_sum([_bytes(pl.col(name), dtype) for name, dtype in rows.schema.items()]))
    return sizes.to_series().to_numpy()


def _bytes(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    match dtype:
        case pl.String():
            found = value.str.len_bytes()
        case pl.Binary():
            found = value.bin.size()
        case pl.Struct():
            found = _sum([_bytes(value.struct.field(field.name), field.dtype) for field in dtype.fields])  # type: ignore[arg-type]
        case pl.List():
            found = value.list.eval(_bytes(pl.element(), dtype.inner)).list.sum()  # type: ignore[arg-type]
        case _:
            found = value.is_not_null().cast(pl.Int64) * PLAIN_BYTES
    return found.cast(pl.Int64).fill_null(0)


def _sum(sizes: list[pl.Expr]) -> pl.Expr:
    return pl.sum_horizontal(pl.lit(0, pl.Int64), *sizes)
