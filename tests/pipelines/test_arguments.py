"""How messages name what they got."""

import pytest

from weir.pipelines.arguments import what_it_is


@pytest.mark.parametrize(
    ("found", "name"),
    [(None, "None"), (5, "an int"), (object(), "an object"), ([], "a list"), (dict, "the class dict")],
)
def test_what_was_passed_is_named_in_english(found, name):
    assert what_it_is(found) == name
