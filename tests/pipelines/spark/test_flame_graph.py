"""What is sampled of a thread, and the page that shows it."""

from __future__ import annotations

import time

import pytest

from weir.pipelines.spark.flame_graph import Sampling, page


def wait(seconds: float) -> None:
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        sum(range(100))


def outer() -> None:
    wait(0.05)


def test_stacks_of_many_samplings_are_added_up_and_what_runs_between_them_is_not_there():
    sampling, began_s = Sampling(), time.perf_counter()
    for _ in range(4):
        with sampling.sampled():
            outer()
    took_s = time.perf_counter() - began_s
    with pytest.raises(ValueError, match="x"), sampling.sampled():
        raise ValueError("x")
    wait(0.05)
    result = sampling.result()
    stacks = [tuple(stack) for stack, _ in result["frame_records"]]
    assert len(stacks) == len({*stacks})
    of_outer = sum(
        seconds for stack, seconds in result["frame_records"] if any(frame.startswith("outer\0") for frame in stack)
    )
    assert 0.15 <= of_outer <= result["duration"] <= took_s + 0.05


def test_a_page_names_what_it_shows():
    sampling = Sampling()
    with sampling.sampled():
        outer()
    text = page(sampling.result(), "shop: slot 0")
    assert "shop: slot 0" in text
    assert "outer" in text
    assert not any(loads in text for loads in ("<script src", "<link")), "it needs nothing but a browser"
