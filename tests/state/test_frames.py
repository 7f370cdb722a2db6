"""Columns put in, left out and renamed, against polars' own queries."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from weir.state.frames import (
    FEW,
    flat,
    framed,
    has_null_row,
    in_order,
    listed,
    picked,
    renamed,
    repeated,
    running_max,
    with_series,
    without,
)

FRAME = pl.DataFrame({"a": [1, 2], "b": ["x", None], "c": [True, False]})


@pytest.mark.parametrize("frame", [FRAME, FRAME.clear()])
@pytest.mark.parametrize("names", [(), ("b",), ("c", "a"), ("a", "b", "c")])
def test_columns_are_picked_and_left_out_as_by_select_and_drop(frame, names):
    assert_frame_equal(picked(frame, names), frame.select(names))
    assert_frame_equal(without(frame, *names), frame.drop(names))
    assert_frame_equal(without(frame, *names, "absent"), frame.drop(names))


def test_series_take_the_place_of_their_namesakes_and_the_frame_stays_as_it_was():
    before = FRAME.clone()
    columns = [pl.Series("d", [5, 6]), pl.Series("b", [0.5, 1.5])]
    assert_frame_equal(with_series(FRAME, *columns), FRAME.with_columns(columns))
    assert_frame_equal(FRAME, before)
    assert_frame_equal(with_series(FRAME), FRAME)


def test_names_change_and_values_repeat():
    assert_frame_equal(renamed(FRAME, str.upper), FRAME.rename(str.upper))
    found = repeated("n", 7, 3, np.int32)
    assert (found.name, found.dtype, found.to_list()) == ("n", pl.Int32, [7, 7, 7])


@pytest.mark.parametrize("at_least", [None, -1, 4, 9])
@pytest.mark.parametrize("times", [[], [3], [1, 5, 2, 8, 8, 0]])
def test_the_running_maximum_is_that_of_a_loop(times, at_least):
    expected = [max([*times[: place + 1], *([] if at_least is None else [at_least])]) for place in range(len(times))]
    assert running_max(np.array(times, np.int64), at_least).tolist() == expected


def test_a_frame_is_made_of_columns_as_polars_makes_it():
    assert_frame_equal(framed(FRAME.get_columns()), pl.DataFrame(FRAME.get_columns()))
    with pytest.raises(pl.exceptions.DuplicateError):
        framed([FRAME.get_column("a"), FRAME.get_column("a")])


@pytest.mark.parametrize("lists", [1, 2, FEW, FEW + 1, 3 * FEW])
def test_columns_become_lists_and_lists_columns_as_in_python(lists):
    rng = np.random.default_rng(lists)
    counts = rng.integers(1, 4, lists)
    total = int(counts.sum())
    values = {
        "number": [None if rng.random() < 0.3 else int(rng.integers(9)) for _ in range(total)],
        "text": [f"t{row}" for row in range(total)],
        "amount": [Decimal(row) / 4 for row in range(total)],
        "items": [[row] * (row % 3) for row in range(total)],
        "fields": [{"a": row, "b": None} for row in range(total)],
        "at": [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=row) for row in range(total)],
    }
    types = pl.Struct({"a": pl.Int64, "b": pl.String})
    schema = {
        "number": pl.Int64,
        "text": pl.String,
        "amount": pl.Decimal(20, 2),
        "items": pl.List(pl.Int64),
        "fields": types,
        "at": pl.Datetime("ms", "UTC"),
    }
    frame = pl.DataFrame(values, schema)
    ends = np.cumsum(counts).tolist()
    expected = {
        name: [column[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        for name, column in values.items()
    }
    found = listed(frame, counts)
    assert found.schema == {name: pl.List(dtype) for name, dtype in schema.items()}
    assert found.to_dict(as_series=False) == expected
    assert_frame_equal(flat(found), frame)


def test_no_lists_are_no_values():
    assert_frame_equal(flat(pl.DataFrame(schema={"a": pl.List(pl.Int64)})), pl.DataFrame(schema={"a": pl.Int64}))


@pytest.mark.parametrize("places", [[], [0], [1], [0, 1], [1, 0], [1, 1, 0]])
def test_rows_are_put_in_order_as_in_python(places):
    rows = FRAME.rows()
    assert in_order(FRAME, np.array(places, np.int64)).rows() == [rows[place] for place in places]


@pytest.mark.parametrize(
    ("rows", "has"),
    [([], False), ([(1, None), (None, "x")], False), ([(1, "x"), (None, None)], True), ([(None, None)], True)],
)
def test_a_row_is_null_if_all_of_it_is(rows, has):
    assert has_null_row(pl.DataFrame(rows, {"a": pl.Int64, "b": pl.String}, orient="row")) is has
