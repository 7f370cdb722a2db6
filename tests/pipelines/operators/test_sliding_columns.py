"""Sliding windows of records in order of time, which are computed at once, give what a model gives record by record."""

from __future__ import annotations

from datetime import timedelta
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pipelines.operators.one_topic import CUTS, batches, build, run
from tests.pipelines.operators.programs import in_ms
from tests.pipelines.operators.window_models import Sliding
from weir import Count, First, Last, Max, SlidingWindows, Sum
from weir.pipelines.operators import sliding_columns

STEPS = st.lists(
    st.tuples(st.sampled_from("aab"), st.sampled_from([0, 1, 2, 3, 5, 7, 8, 9, 11, 12, 18, 40, -1, -9])),
    min_size=1,
    max_size=30,
)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(
    begins=st.sampled_from([0, 30, 1 << 41]),
    steps=STEPS,
    cuts=CUTS,
    difference=st.sampled_from([1, 2, 7, 8]),
    grace=st.sampled_from([0, 3, 100]),
    pairs=st.sampled_from([1, 5, 1 << 22]),
)
def test_windows_hold_the_records_that_a_model_puts_into_them(begins, steps, cuts, difference, grace, pairs):
    """However the batches are cut, with late records and those before 1970 plus the difference among them, and however
    few records are folded at a time."""
    times = [max(0, time) for time in accumulate((step for _, step in steps), initial=begins)][1:]
    records = [
        (key, time, (1 << number, "x")) for number, ((key, _), time) in enumerate(zip(steps, times, strict=True))
    ]
    model, newest, late = Sliding(difference, grace), {}, 0
    for key, time, (bit, _) in records:
        updates, missed, _ = model.take(bit, key, time)
        newest |= {update[:3]: update[3:] for update in updates}
        late += len(missed)
    windows = SlidingWindows.of_time_difference_and_grace(*(timedelta(milliseconds=ms) for ms in (difference, grace)))
    aggregates = dict(bits=Sum("amount"), n=Count(), first=First("amount"), last=Last("amount"), high=Max("amount"))
    program = lambda s: s.group_by_key().windowed_by(windows).agg("s", **aggregates).to_delta("out")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sliding_columns, "_MOST_PAIRS", pairs)
        found = run(build(program), batches(records, cuts))
    rows = {(row["user"], in_ms(row["window_start"]), in_ms(row["window_end"])): row for row in found["facts"]["out"]}
    assert {bounds: (row["bits"], in_ms(row["_ts"])) for bounds, row in rows.items()} == newest
    assert found["counts"].get("late_records", 0) == late
    offsets = {1 << number: 100 + number for number in range(len(records))}
    for row in rows.values():
        inside = [bit for bit in offsets if row["bits"] & bit]
        assert (row["n"], row["high"]) == (len(inside), inside[-1])
        assert {row["first"], row["last"]} <= set(inside)
    in_order = {key for key in "ab" if (of := [time for each, time, _ in records if each == key]) == sorted(of)}
    for row in (row for row in rows.values() if row["user"] in in_order and begins and late == 0):
        inside = [bit for bit in offsets if row["bits"] & bit]
        assert (row["first"], row["last"]) == (inside[0], inside[-1])


def test_records_in_order_of_time_are_not_walked(monkeypatch):
    def walked(self, batch, states):
        raise AssertionError("taken record by record")

    monkeypatch.setattr(SlidingWindows, "trace", walked)
    records = [("ab"[number % 2], 1_000 + 3 * number, (1, "x")) for number in range(30)]
    windows = SlidingWindows.of_time_difference_with_no_grace(timedelta(milliseconds=10))
    program = lambda s: s.group_by_key().windowed_by(windows).agg("s", n=Count()).to_delta("out")
    assert len(run(build(program), batches(records, {7, 20}))["facts"]["out"]) == 30 + 28
