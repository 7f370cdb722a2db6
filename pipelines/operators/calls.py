"""The call of a function of the program that is running now, for another thread that wants to name it.

Who calls functions sets ``running`` before each call; noting more would cost more than many functions do.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from weir.pipelines.errors import UserFunctionError

running: tuple[Callable[[Any, Any], Call | None], Any, Any] | None = None
"""What describes the call that runs, with its arguments; None if none does."""


class Call(NamedTuple):
    """One call; another one differs."""

    partition: int
    offset: int
    """Of the record that it was called for; of another call, its number in partition -1."""
    text: str
    """The node, the function, and what it was called for."""


def of_record(error: UserFunctionError) -> Call | None:
    """The call whose error this would be, if that has a record."""
    if (record := error.record) is None:
        return None
    return Call(record.partition, record.offset, f"{error.function!r} in {error.node} on the record of {record}")


def running_call() -> Call | None:
    """The call that is running; None if none is, or if it ends this moment."""
    with suppress(Exception):  # the other thread goes on meanwhile
        if running is not None:
            describe, *arguments = running
            return describe(*arguments)
    return None
