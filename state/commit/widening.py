"""Wider types that a stored column may get: every value of the old type is one of the new type.

The pairs are those of Delta's type widening that these columns can have
(https://docs.delta.io/latest/delta-type-widening.html). Structs and lists are compared part by part in
``weir.state.commit.columns``.
"""

from __future__ import annotations

import polars as pl

_WIDER: dict[type[pl.DataType], tuple[type[pl.DataType], ...]] = {
    pl.Int8: (pl.Int16, pl.Int32, pl.Int64, pl.Float64),
    pl.Int16: (pl.Int32, pl.Int64, pl.Float64),
    pl.Int32: (pl.Int64, pl.Float64),
    pl.UInt8: (pl.UInt16, pl.UInt32, pl.Int16, pl.Int32, pl.Int64, pl.Float64),
    pl.UInt16: (pl.UInt32, pl.Int32, pl.Int64, pl.Float64),
    pl.UInt32: (pl.Int64, pl.Float64),
    pl.Float32: (pl.Float64,),
}


def is_wider(before: pl.DataType, now: pl.DataType) -> bool:
    """Whether ``now`` holds every value of ``before``, which is another type."""
    if not (isinstance(before, pl.Decimal) and isinstance(now, pl.Decimal)):
        return type(now) in _WIDER.get(type(before), ())
    whole, now_whole = before.precision - before.scale, now.precision - now.scale
    return now.scale >= before.scale and now_whole >= whole and before != now
