"""Limits that no reading could ever reach are refused."""

import pytest

from weir.orchestration.thresholds import Thresholds


@pytest.mark.parametrize("name", ["lag_grows_max_s", "stalled_max_s"])
def test_a_span_longer_than_readings_are_kept_is_refused(name):
    with pytest.raises(ValueError, match=rf"{name} is 3,600 s; .* 3,000 s at most"):
        Thresholds(**{name: 3_600})
