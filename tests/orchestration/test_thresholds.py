"""Limits that no reading could ever reach are refused."""

import pytest

from weir.orchestration.thresholds import Thresholds
from weir.pipelines.spark.control import READING_EVERY_S, REQUESTS_EVERY_S
from weir.pipelines.spark.driver import QUIET_REQUESTS_EVERY_S


@pytest.mark.parametrize("name", ["lag_grows_max_s", "stalled_max_s"])
def test_a_span_longer_than_readings_are_kept_is_refused(name):
    with pytest.raises(ValueError, match=rf"{name} is 3,600 s; .* 3,000 s at most"):
        Thresholds(**{name: 3_600})


def test_a_driver_is_not_to_count_as_stalled_before_it_gives_its_next_reading():
    with pytest.raises(ValueError, match=r"stalled_max_s is 5 s; .* must be 10 s at least"):
        Thresholds(stalled_max_s=5)
    latest_s = READING_EVERY_S + REQUESTS_EVERY_S + QUIET_REQUESTS_EVERY_S
    assert Thresholds(stalled_max_s=10).stalled_max_s > latest_s + 1
