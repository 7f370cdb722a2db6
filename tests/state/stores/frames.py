"""Random frames with key and value columns of every type that a store takes."""

from __future__ import annotations

from datetime import UTC, date, datetime

import polars as pl
from hypothesis import strategies as st

TIME = pl.Datetime("ms", "UTC")
TIMES = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)).map(
    lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000, tzinfo=UTC)
)
VALUES: dict[pl.DataType, st.SearchStrategy] = {
    pl.String(): st.text(max_size=4) | st.sampled_from(["", "\x00", "a", "a\x00", "a\x00b", "\x01", "\x02", "ÿ"]),
    pl.Binary(): st.binary(max_size=4) | st.sampled_from([b"\x00", b"\x00\xff", b"\xff", b"a\x00\x01"]),
    pl.Int64(): st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3),
    pl.Int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pl.UInt64(): st.integers(0, (1 << 64) - 1),
    pl.Float64(): st.floats(allow_nan=False).map(lambda x: x + 0.0),
    pl.Boolean(): st.booleans(),
    TIME: TIMES,
    pl.Date(): st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    pl.Time(): st.times(),
    pl.Decimal(38, 9): st.decimals(-(10**29) + 1, 10**29 - 1, places=9) | st.decimals(-2, 2, places=9),
    pl.Decimal(6, 2): st.decimals(-9999, 9999, places=2),
}


@st.composite
def frames(draw, max_columns: int = 4) -> pl.DataFrame:
    dtypes = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=max_columns))
    schema = {f"c{index}": dtype for index, dtype in enumerate(dtypes)}
    rows = draw(st.lists(st.tuples(*(st.none() | VALUES[dtype] for dtype in dtypes)), min_size=1, max_size=12))
    return pl.DataFrame(rows, schema=schema, orient="row")
