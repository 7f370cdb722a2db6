"""What of a text is shown as it is, and what is escaped."""

import pytest

from weir.state.printable import printable


@pytest.mark.parametrize(
    ("character", "shown"),
    [
        ("\x00", r"\x00"),
        ("\a", r"\x07"),
        ("\b", r"\x08"),
        ("\t", r"\t"),
        ("\n", r"\n"),
        ("\v", r"\x0b"),
        ("\r", r"\r"),
        ("\x1b", r"\x1b"),
        ("\x7f", r"\x7f"),
        ("\x85", r"\x85"),  # begins a line
        ("\x9b", r"\x9b"),  # begins a command, as ESC [ does
        ("\u00ad", r"\xad"),  # a hyphen that is hidden
        ("\u200b", r"\u200b"),  # a space of no width
        ("\u200e", r"\u200e"),
        ("\u202e", r"\u202e"),  # what follows runs from right to left
        ("\u2028", r"\u2028"),
        ("\u2029", r"\u2029"),
        ("\ufeff", r"\ufeff"),
        ("\ud800", r"\ud800"),  # half of a pair
        ("\ue000", r"\ue000"),
        ("\U000e0041", r"\U000e0041"),
        *((space, space) for space in " \u00a0\u1680\u2000\u2003\u2009\u200a\u202f\u205f\u3000"),
        *((sign, sign) for sign in "a'\"\\é東🙂"),
    ],
)
def test_spaces_and_signs_are_shown_and_what_controls_or_hides_is_escaped(character, shown):
    assert printable(f"a{character}b") == f"a{shown}b"


def test_what_is_kept_is_not_escaped():
    assert printable("a\nb\tc\x1b", kept="\n\t") == "a\nb\tc\\x1b"
