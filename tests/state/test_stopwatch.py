"""Where the time of a thread goes, beside a plain replay of what was entered and left."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from weir.state.stopwatch import Activity, NodeWork, Stopwatch, during, measured, running


def test_each_moment_belongs_to_the_innermost_activity():
    """Against a plain stack, over random walks; the clock moves by whole seconds, so sums are exact."""
    for seed in range(20):
        rng, now_s = random.Random(seed), 0.0
        stopwatch = Stopwatch(Activity.STATE, lambda: now_s)  # noqa: B023
        stack, wanted = [Activity.STATE], Counter()
        for _ in range(100):
            step = rng.randrange(5)
            now_s += step
            wanted[stack[-1]] += step
            if len(stack) > 1 and rng.random() < 0.5:
                stack.pop()
                stopwatch.leave()
            else:
                stack.append(rng.choice(list(Activity)))
                stopwatch.enter(stack[-1])
        found = stopwatch.work().seconds
        assert {name: seconds for name, seconds in found.items() if seconds} == {
            str(activity): seconds for activity, seconds in wanted.items() if seconds
        }
        assert sum(found.values()) == now_s


def test_an_activity_ends_with_its_block_also_by_an_error():
    with measured(Activity.STATE) as stopwatch:
        with pytest.raises(ValueError, match="x"), during(Activity.FETCH), during(Activity.DECODE):
            raise ValueError("x")
        assert stopwatch._activity is Activity.STATE
    assert running() is None


def test_threads_without_a_stopwatch_measure_nothing():
    def encode():
        with during(Activity.ENCODE):
            return running()

    with measured(Activity.FILES) as stopwatch, ThreadPoolExecutor(1) as other:
        assert other.submit(encode).result() is None
        assert set(stopwatch.work().seconds) == {"files"}


def test_the_work_of_a_node_adds_up():
    stopwatch = Stopwatch(Activity.OPERATORS)
    for rows in (3, 4):
        stopwatch.node("sums", NodeWork(seconds=0.5, rows=rows))
    assert stopwatch.work().nodes == {"sums": NodeWork(seconds=1.0, rows=7)}
