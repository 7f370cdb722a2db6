"""Words that messages share."""

import pytest

from weir.pipelines.operations.text import duration


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (91.4, "91 ms"),
        (9_999, "9,999 ms"),
        (10_000, "10.0 s"),
        (119_000, "119.0 s"),
        (120_000, "2.0 minutes"),
        (7_199_000, "120.0 minutes"),
        (7_200_000, "2.0 hours"),
        (172_800_000, "2.0 days"),
        (28_425_075_326, "329.0 days"),
    ],
)
def test_durations_are_in_a_unit_that_people_read(ms, text):
    assert duration(ms) == text
