"""Columns put in, left out and renamed, against polars' own queries."""

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from weir.state.frames import framed, picked, renamed, repeated, running_max, with_series, without

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
