"""Keys of refused rows, as people read them."""

import pytest

from weir.pipelines.sinks.shown import AT_MOST, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (7, "7"),
        ("ann", "'ann'"),
        ("a\u00a0b\u3000", "'a\u00a0b\u3000'"),
        ("a\x1b[2J\u202eb", r"'a\x1b[2J\u202eb'"),
        ("a\u3000".encode(), "'a\u3000'"),
        (b"a\x1b", "0x611b"),
        (b"\xff\x00", "0xff00"),
        (["a\u00a0", "\x07"], r"['a\xa0', '\x07']"),
        ("a" * AT_MOST, f"'{'a' * (AT_MOST - 1)}..."),
    ],
)
def test_a_key_is_shown_on_one_line(value, text):
    assert shown(value) == text
