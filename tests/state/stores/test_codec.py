"""Rows read back as they were written, and keys sort as their columns do."""

from __future__ import annotations

from datetime import timedelta

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.state.stores.frames import TIME, TIMES, frames
from weir.state.errors import RowFormatError
from weir.state.stores import codec as codec_module
from weir.state.stores.codec import AFTER_FLAGS, FEW, KeyCodec, RowCodec
from weir.state.types import StoreKind


@pytest.fixture(scope="module", params=[0, FEW], autouse=True)
def one_by_one(request):
    """Up to how many keys are handled one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weir.state.stores.codec.FEW", request.param)
        yield


def in_order(row: tuple) -> tuple:
    return tuple((value is not None, value.encode() if isinstance(value, str) else value) for value in row)


@settings(max_examples=examples(80))
@given(frames())
@example(pl.DataFrame({"c0": [b"\x00\xff"]}))  # what an escape looks like where nothing is escaped
@example(pl.DataFrame({"c0": [b"\x00\xff", b"\x00"], "c1": [b"\x00\xff\x00", None]}))
def test_keys_decode_and_sort_as_their_columns(frame):
    codec = KeyCodec(frame.schema)
    keys = codec.encode(frame)
    assert codec.decode(keys).equals(frame)
    by_columns = sorted(zip(map(in_order, frame.rows()), keys, strict=True), key=lambda pair: pair[0])
    assert [key for _, key in by_columns] == sorted(keys)


@pytest.mark.parametrize("one_by_one", [0, codec_module.SORTED_ONE_BY_ONE])
@settings(max_examples=examples(60))
@given(frames())
def test_keys_are_encoded_in_their_order_with_the_row_of_each(one_by_one, frame):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec_module, "SORTED_ONE_BY_ONE", one_by_one)
        keys, rows = KeyCodec(frame.schema).encode_sorted(frame)
    encoded = KeyCodec(frame.schema).encode(frame)
    assert keys == sorted(encoded) == [encoded[row] for row in rows]
    assert sorted(rows) == list(range(frame.height))


@settings(max_examples=examples(60))
@given(frames().filter(lambda frame: frame.width > 1), st.data())
def test_keys_with_a_prefix_are_those_with_its_columns(frame, data):
    first = frame[:, : data.draw(st.integers(1, frame.width - 1))]
    codec = KeyCodec(frame.schema)
    keys = codec.encode(frame)
    for prefix, columns in zip(codec.prefixes(first), first.rows(), strict=True):
        assert [prefix <= key < prefix + AFTER_FLAGS for key in keys] == [row == columns for row in first.rows()]


@settings(max_examples=examples(60))
@given(frames(max_columns=2), TIMES)
def test_windowed_keys_begin_with_the_start_and_decode(frame, start):
    windows = (
        frame.with_row_index("n")
        .with_columns(window_start=(pl.lit(start) + pl.duration(minutes=pl.col("n"))).cast(TIME))
        .drop("n")
    )
    windows = windows.with_columns(window_end=pl.col("window_start").dt.offset_by("1h"))
    codec = KeyCodec(windows.schema, StoreKind.WINDOW)
    keys = codec.encode(windows)
    assert codec.decode(keys).equals(windows)
    half = windows["window_start"][windows.height // 2]
    upper = codec.window_upper(int(half.timestamp() * 1000))
    assert [key < upper for key in keys] == [value < half for value in windows["window_start"]]


def test_equal_keys_have_equal_bytes_even_for_negative_zero_and_nan_of_either_sign():
    codec = KeyCodec(pl.Schema({"x": pl.Float64()}))
    keys = codec.encode(pl.DataFrame({"x": [0.0, -0.0, float("nan"), -float("nan"), 1.0]}))
    assert len(set(keys)) == 3


def test_key_columns_of_other_types_are_refused_when_the_store_is_declared():
    with pytest.raises(TypeError, match="'tags'"):
        KeyCodec(pl.Schema({"tags": pl.List(pl.String())}))


@settings(max_examples=examples(80))
@given(frames())
def test_rows_decode_with_nulls_and_absent_rows(frame):
    rows = frame.with_columns(_ts=pl.int_range(pl.len(), dtype=pl.Int64))
    codec = RowCodec(frame.schema)
    values = codec.encode(rows)
    assert codec.decode(values).equals(rows)
    with_absent = codec.decode([None, *values, None])
    assert with_absent.slice(1, rows.height).equals(rows)
    assert set(with_absent.row(0) + with_absent.row(-1)) == {None}


def test_rows_of_numbers_have_one_width_and_no_rows_make_an_empty_frame():
    codec = RowCodec(pl.Schema({"n": pl.Int32(), "ok": pl.Boolean()}))
    values = codec.encode(pl.DataFrame({"n": [1, None], "ok": [None, True], "_ts": [5, 6]}))
    assert {len(value) for value in values} == {14}
    assert codec.encode(codec.decode([])) == []
    assert codec.decode([]).schema == {"n": pl.Int32, "ok": pl.Boolean, "_ts": pl.Int64}


def test_nested_values_decode():
    frame = pl.DataFrame(
        {"events": [["a", None], [], None], "at": [timedelta(seconds=1), None, timedelta(0)], "_ts": [1, 2, 3]},
        schema_overrides={"events": pl.List(pl.String), "at": pl.Duration("ms")},
    )
    codec = RowCodec(frame.drop("_ts").schema)
    assert codec.decode(codec.encode(frame)).equals(frame)


@pytest.mark.parametrize(
    ("wrote", "reads"),
    [
        ({"a": pl.Int64()}, {"a": pl.Int64(), "b": pl.Int64()}),
        ({"a": pl.String()}, {"a": pl.String(), "b": pl.Int64()}),
        ({"a": pl.String()}, {"a": pl.List(pl.Int64())}),
    ],
)
def test_rows_of_another_schema_are_refused_with_the_way_out(wrote, reads):
    written = RowCodec(pl.Schema(wrote)).encode(pl.DataFrame({"a": [1], "_ts": [1]}).cast({"a": wrote["a"]}))
    with pytest.raises(
        RowFormatError, match=r"another version of the program wrote them: run this one with `weir run MODULE:APP`"
    ):
        RowCodec(pl.Schema(reads)).decode(written)
