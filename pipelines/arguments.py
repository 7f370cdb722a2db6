"""Checks of what a program passes: durations and whole numbers; and how messages name what they got instead."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from weir.pipelines.errors import TopologyError


def to_ms(duration: timedelta, name: str) -> int:
    """``duration`` in whole milliseconds; raises ``TopologyError`` for another type, or if a fraction would be lost."""
    if not isinstance(duration, timedelta):
        raise TopologyError(f"{name} is {duration!r}; pass a datetime.timedelta, for example timedelta(minutes=10)")
    whole, rest = divmod(duration, timedelta(milliseconds=1))
    if rest:
        raise TopologyError(
            f"{name} is {duration_text(duration)}, which is not a whole number of milliseconds; round it"
        )
    return whole


def positive_ms(duration: timedelta, name: str) -> int:
    """Like ``to_ms``; also raises ``TopologyError`` when it is not above zero."""
    if (found := to_ms(duration, name)) < 1:
        raise TopologyError(f"{name} is {duration_text(duration)}; it must be at least one millisecond")
    return found


def not_negative_ms(duration: timedelta, name: str) -> int:
    """Like ``to_ms``; also raises ``TopologyError`` when it is negative."""
    if (found := to_ms(duration, name)) < 0:
        raise TopologyError(f"{name} is {duration_text(duration)}; it must not be negative")
    return found


def duration_text(duration: timedelta) -> str:
    """For people: ``0:05:00`` or ``-0:05:00``."""
    return f"-{-duration}" if duration < timedelta(0) else str(duration)


def what_it_is(found: object) -> str:
    """What a message says was passed: ``None``, ``the class Order``, ``an int``, ``a list``."""
    if found is None:
        return "None"
    if isinstance(found, type):
        return f"the class {found.__name__}"
    name = type(found).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def whole_number(number: Any, name: str, least: int) -> int:
    """``number``; raises ``TopologyError`` unless it is a whole number of at least ``least``."""
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise TopologyError(f"{name} is {number!r}; it must be a whole number from {least}")
    return number
