"""How large values are, for limits in bytes: the bytes of their texts and binaries, and eight for anything else."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

PLAIN_BYTES = 8
"""The size of a number, a time, a boolean or a decimal."""


def value_bytes(columns: Mapping[str, pl.DataType]) -> pl.Expr:
    """The size of each row of ``columns`` (Int64). Texts count in UTF-8, lists and structs by what is in them, and
    nulls not at all."""
    return _sum([_bytes(pl.col(name), dtype) for name, dtype in columns.items()])


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
