"""Whole columns are written as their values are one by one."""

import struct

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as some

from weir import Boolean, Float32, Float64, Int32, Int64, String, Uuid
from weir.pipelines.serdes.column_bytes import bytes_of

INT32, INT64 = some.integers(-(2**31), 2**31 - 1), some.integers(-(2**63), 2**63 - 1)
FLOATS = some.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True)
KINDS = [
    (Int64(), pl.Int64(), INT64),
    (Int32(), pl.Int64(), INT32),
    (Float64(), pl.Float64(), FLOATS),
    (Float32(), pl.Float64(), FLOATS),
    (Boolean(), pl.Boolean(), some.booleans()),
]


def one_by_one(serde, items):
    with np.errstate(over="ignore"):
        return [serde.encode(item) for item in items]


@pytest.mark.parametrize(("serde", "dtype", "values"), KINDS, ids=[repr(kind[0]) for kind in KINDS])
def test_a_column_has_the_bytes_of_its_values(serde, dtype, values):
    @given(some.lists(some.none() | values))
    def check(items):
        written = bytes_of(serde, pl.Series("total", items, dtype=dtype))
        assert (written.name, written.dtype) == ("total", pl.Binary)
        assert written.to_list() == one_by_one(serde, items)

    check()


@given(some.lists(some.none() | INT64), some.integers(0, 9), some.integers(0, 9))
def test_a_part_of_a_column_has_the_bytes_of_that_part(items, start, count):
    column = pl.concat([pl.Series(items[:3], dtype=pl.Int64()), pl.Series(items[3:], dtype=pl.Int64())], rechunk=False)
    wanted = [None if item is None else struct.pack(">q", item) for item in items[start : start + count]]
    assert bytes_of(Int64(), column.slice(start, count)).to_list() == wanted


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_a_column_with_a_number_that_does_not_fit_is_left_to_encode_which_says_so(number):
    assert bytes_of(Int32(), pl.Series([1, None, number])) is None


class Doubled(Int64):
    def _write(self, item):
        return super()._write(2 * item)


@pytest.mark.parametrize(
    ("serde", "column"),
    [
        (Doubled(), pl.Series([1])),
        (Int64(), pl.Series([1], dtype=pl.Int32())),
        (Float64(), pl.Series([1])),
        (String(), pl.Series(["a"])),
        (Uuid(), pl.Series(["a"])),
    ],
)
def test_what_may_be_written_otherwise_is_left_to_encode(serde, column):
    assert bytes_of(serde, column) is None
