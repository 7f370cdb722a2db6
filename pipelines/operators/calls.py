"""The call of a function of the program that is running now, for another thread that wants to name it.

Who calls functions sets ``running`` before each call; noting more would cost more than many functions do.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from weir.pipelines.errors import UserFunctionError

running: tuple[Callable[[Any, Any], UserFunctionError], Any, Any] | None = None
"""What makes an error of the call that runs, with its arguments; None if none does."""


class Call(NamedTuple):
    """One call; another one differs."""

    partition: int
    offset: int
    text: str
    """The node, the function, and the record that it was called for."""


def running_call() -> Call | None:
    """The call that is running; None if none is, or if it ends this moment."""
    with suppress(Exception):  # the other thread goes on meanwhile
        if running is not None:
            describe, rows, index = running
            error = describe(rows, index)
            if (record := error.record) is not None:
                text = f"{error.function!r} in {error.node}, for the record of {record}"
                return Call(record.partition, record.offset, text)
    return None
