"""Which records of two streams match, beside every pair looked at one by one."""

from __future__ import annotations

from unittest import mock

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from weir import JoinWindows
from weir.pipelines.operators.stream_matches import Side, matches

KEY = ["user", "rate"]
RETENTION_MS = 12
RECORDS = st.lists(
    st.tuples(
        st.booleans(),
        st.booleans(),
        st.sampled_from(["a", "b", None]),
        st.sampled_from([0.0, -0.0, float("nan"), None]),
        st.one_of(st.integers(0, 30), st.sampled_from([-(10**14), 10**14])),
    ),
    max_size=20,
)
"""Whether on the left, whether earlier than the batch, key and time."""


def side(records, is_left: bool, clock_ms: int) -> Side:
    mine = sorted(
        (
            (-1 if is_kept else position, user, rate, time_ms)
            for position, (on_left, is_kept, user, rate, time_ms) in enumerate(records)
            if on_left == is_left
        ),
        key=lambda row: row[0],
    )
    rows = pl.DataFrame(
        mine,
        schema={"_pos": pl.Int64(), "user": pl.String(), "rate": pl.Float64(), "_ts": pl.Int64()},
        orient="row",
    )
    new = rows.filter(pl.col("_pos") >= 0)
    clock = np.maximum.accumulate(np.maximum(new["_ts"].to_numpy(), clock_ms))
    return Side(rows, rows.height - new.height, clock, new["_pos"].to_numpy(), clock_ms)


def same(one: tuple, other: tuple) -> bool:
    return one[0] == other[0] and (
        one[1] == other[1] or (one[1] != one[1] and other[1] != other[1] and None not in (one[1], other[1]))
    )


def by_pairs(left: Side, right: Side, windows: JoinWindows) -> set[tuple]:
    """The clocks are those of the other side's records before the later one."""
    found = set()
    for i, (pos, user, rate, time_ms) in enumerate(left.rows.rows()):
        for j, (other_pos, other_user, other_rate, other_ms) in enumerate(right.rows.rows()):
            later, other = (pos, right) if pos > other_pos else (other_pos, left)
            older_ms = other_ms if pos > other_pos else time_ms
            before = other.rows.filter((pl.col("_pos") >= 0) & (pl.col("_pos") < later))["_ts"].to_list()
            clock_ms = max([other.first_clock, *before])
            if (
                later >= 0
                and same((user, rate), (other_user, other_rate))
                and time_ms - windows.before_ms <= other_ms <= time_ms + windows.after_ms
                and older_ms > clock_ms - RETENTION_MS
            ):
                found.add((i, j, later, pos > other_pos))
    return found


@pytest.mark.parametrize("hashes", ["hashes", "equal hashes"])
@settings(max_examples=examples(100))
@given(
    records=RECORDS,
    windows=st.builds(JoinWindows, before_ms=st.integers(-3, 9), after_ms=st.integers(3, 9), grace_ms=st.just(0)),
    clocks=st.tuples(st.integers(-(10**15), 25), st.integers(-(10**15), 25)),
)
def test_records_with_equal_keys_match_if_close_and_still_held(hashes, records, windows, clocks):
    """Hashes that are equal by chance change nothing."""
    left, right = (side(records, is_left, clock_ms) for is_left, clock_ms in zip((True, False), clocks, strict=True))
    with mock.patch.object(pl.DataFrame, "hash_rows", hash_rows if hashes == "hashes" else no_hashes):
        met = matches(left, right, KEY, windows, RETENTION_MS)
    found = list(zip(*(each.tolist() for each in (met.left, met.right, met.position, met.is_left_later)), strict=True))
    assert len(found) == len(set(found))
    assert set(found) == by_pairs(left, right, windows)


hash_rows = pl.DataFrame.hash_rows


def no_hashes(frame: pl.DataFrame) -> pl.Series:
    return pl.Series(np.zeros(frame.height, np.uint64))
