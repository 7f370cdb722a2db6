"""How large the next epoch may be, given the ones before."""

from __future__ import annotations

import pytest

from weir.pipelines.spark.pace import MIN_EPOCH_RECORDS, RATE_S, Pace

START = MIN_EPOCH_RECORDS * 4


def after(*epochs: tuple[int, float]) -> Pace:
    """The pace for a commit interval of one second after epochs of these records and seconds."""
    pace = Pace(1.0)
    for records, seconds in epochs:
        pace.took(records, seconds)
    return pace


def test_the_tasks_that_are_behind_share_an_epochs_records():
    assert [after().share(tasks) for tasks in (0, 1, 4)] == [START + 1, START + 1, START // 4 + 1]


def test_the_first_epoch_is_cold_and_says_little_about_the_next():
    assert after((10, 1.9)).share(1) == START * 4 + 1
    assert after((START, 2.0)).share(1) == START * 0.5 + 1, "it took long, cold or not"


@pytest.mark.parametrize(("seconds", "scale"), [(0.4, 2), (0.8, 1), (1.0, 0.8), (0.01, 4), (60.0, 0.5)])
def test_after_a_full_epoch_the_next_approaches_a_share_of_the_commit_interval(seconds, scale):
    assert after((1, 1.0), (START * 4, seconds)).share(1) == START * 4 * scale + 1


def test_epochs_never_become_so_small_that_starting_them_dominates():
    assert after((1, 1.0), *[(START * 4, 60.0)] * 9, *[(MIN_EPOCH_RECORDS, 60.0)] * 9).share(1) == (
        START * 4 * 0.5 + 1
    ), "an epoch that was not full changes nothing"
    slow = after((START, 2.0))
    for _ in range(9):
        slow.took(slow.share(1), 60.0)
    assert slow.share(1) == MIN_EPOCH_RECORDS + 1


def test_the_rate_covers_the_epochs_that_had_input_and_is_zero_without_any():
    now_s = 0.0
    pace = Pace(1.0, lambda: now_s)
    assert pace.records_per_s == 0
    for records, seconds in ((150, 0.5), (300, 1.5), (0, 0.1), (0, 0.2)):
        now_s += seconds
        pace.took(records, seconds)
    assert (pace.records_in, pace.seconds, pace.records_per_s) == (450, 0.2, 225)
    now_s = 0.5 + RATE_S + 0.1
    assert pace.records_per_s == 200, "the first one no longer counts: 300 in 1.5 s"
    pace.took(50, 0.25)
    assert pace.records_per_s == 200
    now_s += RATE_S + 0.1
    assert (pace.records_in, pace.records_per_s) == (500, 0)
