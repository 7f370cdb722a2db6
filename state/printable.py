"""Text of records as people may see it: none of its characters breaks a line, commands a terminal or hides."""

from __future__ import annotations

import unicodedata

SPACE = "Zs"
"""The category of every character that is no more than a space, such as U+00A0 and U+3000; ``str.isprintable`` takes
only U+0020."""


def is_printable(character: str) -> bool:
    """Whether it is shown as it is: a letter, a sign or a space, but nothing that controls, formats or separates."""
    return character.isprintable() or unicodedata.category(character) == SPACE


def printable(text: str, *, kept: str = "") -> str:
    r"""``text`` with all else escaped as in Python, such as ``\x1b``, but for the characters that are ``kept``."""
    if text.isprintable():
        return text
    return "".join(
        each if is_printable(each) or each in kept else each.encode("unicode_escape").decode() for each in text
    )
