"""Names of types: those that commit rows keep are read back, and people read short ones."""

from __future__ import annotations

import polars as pl
import pytest

from weir.state.commit.type_names import dtype_of, type_name

NAMES = {
    pl.String(): "string",
    pl.Binary(): "binary",
    pl.Boolean(): "boolean",
    pl.Date(): "date",
    pl.Time(): "time",
    pl.Datetime("ms", "UTC"): "timestamp",
    pl.Datetime("us"): "timestamp",
    pl.Decimal(12, 2): "decimal(12,2)",
    pl.Int64(): "long",
    pl.Int32(): "integer",
    pl.UInt32(): "unsigned integer",
    pl.Float64(): "double",
    pl.Float32(): "float",
    pl.Null(): "null",
    pl.List(pl.List(pl.Int8())): "array<array<byte>>",
    pl.Struct({"a": pl.String(), 'it\'s a "b"': pl.List(pl.Struct({"c": pl.Decimal(3, 1)}))}): (
        'struct<a: string, it\'s a "b": array<struct<c: decimal(3,1)>>>'
    ),
}


@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_a_type_is_read_back_from_the_text_of_a_commit_row_and_has_a_short_name(dtype):
    assert dtype_of(str(dtype)) == dtype
    assert type_name(dtype) == NAMES[dtype]


@pytest.mark.parametrize(
    "text", ["", "Int65", "DataFrame", "List(", "__import__('os')", "Int64.min", "3", "Struct({1})"]
)
def test_any_other_text_is_refused(text):
    with pytest.raises(ValueError, match="is no column type"):
        dtype_of(text)
