"""Rows packed one at a time have the same bytes as rows packed as columns."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.state.stores.frames import TIME, frames
from weir.state.stores.codec import KeyCodec, RowCodec
from weir.state.stores.single import SingleKeyCodec, SingleRowCodec
from weir.state.types import StoreKind

TIMES_OF = {
    StoreKind.KEY_VALUE: [],
    StoreKind.WINDOW: ["window_start", "window_end"],
    StoreKind.SESSION: ["window_start", "window_end"],
    StoreKind.VERSIONED: ["valid_from"],
}


@settings(max_examples=examples(60))
@given(frames(), st.sampled_from(list(StoreKind)))
def test_a_single_key_has_the_bytes_and_values_of_a_key_column(frame, kind):
    times = TIMES_OF[kind]
    whole = frame.with_columns(*(pl.lit(index + 5).cast(TIME).alias(name) for index, name in enumerate(times)))
    codec = SingleKeyCodec(whole.schema, kind)
    for key, row in zip(KeyCodec(whole.schema, kind).encode(whole), frame.rows(), strict=True):
        values, found = codec.decode(key)
        assert values == row
        assert sorted(found) == [5, 6][: len(times)]
        body = codec.body(row)
        assert body in key
        assert len(body) + 8 * len(times) == len(key)
        assert body.startswith(codec.prefix(row[:1]))


@settings(max_examples=examples(60))
@given(frames(), st.none() | st.integers(-5, 1 << 50))
def test_a_single_row_has_the_bytes_and_values_of_value_columns(frame, ts):
    rows = frame.with_columns(_ts=pl.lit(ts, pl.Int64))
    codec = SingleRowCodec(frame.schema)
    for packed, row in zip(RowCodec(frame.schema).encode(rows), frame.rows(named=True), strict=True):
        assert codec.encode(row, ts) == packed
        assert codec.decode(packed) == (row, ts)


def test_small_numbers_keep_their_widths():
    schema = pl.Schema({"a": pl.Int8(), "b": pl.UInt16(), "c": pl.Float32(), "d": pl.Duration("ms"), "e": pl.Time()})
    frame = pl.DataFrame({"a": [-3], "b": [65535], "c": [0.5], "d": [12], "e": [3_600_000_000_000]}, schema=schema)
    (packed,) = RowCodec(schema).encode(frame.with_columns(_ts=pl.lit(1)))
    row = frame.row(0, named=True)
    assert SingleRowCodec(schema).encode(row, 1) == packed
    assert SingleRowCodec(schema).decode(packed) == (row, 1)


def test_values_of_another_type_are_refused():
    codec = SingleRowCodec(pl.Schema({"n": pl.Int64(), "s": pl.String()}))
    for row in ({"n": "x", "s": "x"}, {"n": 1, "s": 2}, {"n": 1}, {"n": 1, "s": "x", "t": 1}):
        with pytest.raises(TypeError):
            codec.encode(row, 1)
    with pytest.raises(TypeError, match="does not fit"):
        SingleRowCodec(pl.Schema({"n": pl.Int8()})).encode({"n": 300}, 1)
    with pytest.raises(TypeError, match="does not fit"):
        SingleKeyCodec(pl.Schema({"n": pl.Int64()}), StoreKind.KEY_VALUE).body([1 << 70])
