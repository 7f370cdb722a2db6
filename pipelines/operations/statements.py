"""Tells SQL statements apart: ``;`` ends one, unless it is in a text, a quoted name or a comment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_PART = re.compile(
    r"""(?P<end>;)|(?P<closed>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`|--[^\n]*|/\*.*?\*/)|(?P<open>['"`]|/\*)|.""",
    re.DOTALL | re.VERBOSE,
)
_COMMENT = re.compile(r"\s*(--[^\n]*(\n|$)|/\*.*?\*/)|\s+", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement, without what ends it."""

    text: str
    line: int
    """Where it begins, from 1."""
    is_ended: bool
    """Whether a ``;`` follows; the last one of a text may lack it."""


def statements(text: str) -> Iterator[Statement]:
    """The statements of a text, without those that only have spaces and comments."""
    start = place = 0
    while (found := _PART.match(text, place)) is not None:
        place = len(text) if found["open"] else found.end()
        if found["end"]:
            yield from _statement(text, start, found.start(), is_ended=True)
            start = place
    yield from _statement(text, start, len(text), is_ended=False)


def _statement(text: str, start: int, end: int, *, is_ended: bool) -> Iterator[Statement]:
    while start < end and (skipped := _COMMENT.match(text, start, end)) is not None and skipped.end() > start:
        start = skipped.end()
    if start < end:
        yield Statement(text=text[start:end].rstrip(), line=text.count("\n", 0, start) + 1, is_ended=is_ended)
