"""How old records are when their results can be seen."""

from __future__ import annotations

import polars as pl
import pytest

from weir.pipelines.tasks.freshness import OVER_S, Arrived, Freshness, arrived


def test_a_few_records_stand_for_all_and_those_without_a_time_for_none():
    times = pl.Series([-1, *range(1_000, 2_000), -1])
    found = arrived(times)
    assert (found.records, len(found.times_ms), found.times_ms[0], found.times_ms[-1]) == (1_000, 16, 1_000, 1_999)
    assert arrived(pl.Series([7, 8])) == Arrived(2, (7, 8))
    assert arrived(pl.Series([], dtype=pl.Int64)) == Arrived(0, ())
    assert arrived(pl.Series([-1])) == Arrived(0, ())


def test_ages_are_as_of_the_commit_and_count_by_records():
    clock = [0.0]
    freshness = Freshness(lambda: clock[0])
    freshness.took([Arrived(90, (1_000,)), Arrived(10, (900, 950)), Arrived(0, ())])
    assert freshness.quantiles(0.5) is None
    freshness.committed(1_100)
    assert freshness.quantiles(0.5, 0.9, 0.95, 0.99) == [100.0, 100.0, 150.0, 200.0]
    clock[0] = OVER_S + 1.0
    assert freshness.quantiles(0.5) is None


def test_quantiles_of_an_even_load_are_near_the_exact_ones():
    freshness = Freshness(lambda: 0.0)
    ages = []
    for commit in range(100):  # one each 100 ms; of a task that reads a record each ms, and one that reads ten
        start, end = 100 * commit, 100 * commit + 100
        slow, fast = pl.Series(range(start, end)), pl.Series(range(start, end)).repeat_by(10).explode()
        freshness.took([arrived(slow), arrived(fast)])
        freshness.committed(end + 40)
        ages += [end + 40 - time for time in (*slow, *fast)]
    exact = pl.Series(ages)
    found = freshness.quantiles(0.5, 0.99)
    assert found == [pytest.approx(exact.quantile(share), abs=7) for share in (0.5, 0.99)]
