"""Rate and latencies of commits are those of the last minute."""

import pytest

from pipelines.spark.pace import CommitPace


def test_commits_are_counted_for_a_minute():
    clock = [0.0]
    pace = CommitPace(lambda: clock[0])
    assert pace.summary() == (0.0, 0.0, 0.0)
    for second, took in ((10.0, 0.2), (20.0, 0.4)):
        clock[0] = second
        pace.add(took)
    assert pace.summary() == pytest.approx((0.1, 300.0, 400.0))
    clock[0] = 75.0
    assert pace.summary() == pytest.approx((1 / 60, 400.0, 400.0))
    clock[0] = 200.0
    assert pace.summary() == (0.0, 0.0, 0.0)
    assert pace.last_ms == pytest.approx(400.0)
