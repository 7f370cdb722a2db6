"""The call of a function of the program that is running now, for another thread that wants to name it.

Who calls functions sets ``running`` before each call; noting more would cost more than many functions do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from weir.pipelines.errors import UserFunctionError

running: Sequence[Any] | None = None
"""What describes the call that runs, a ``Callable[..., Call | None]``, then its arguments; None if none does."""

placed: Callable[[UserFunctionError], UserFunctionError] | None = None
"""What gives the record of an error its topic and offset, while an epoch runs."""


seconds = 0.0
"""How long this process has been in loops over records that call functions."""

_is_timed = False


@contextmanager
def timed() -> Iterator[None]:
    """Around a loop over records that calls functions: it adds to ``seconds``, an inner loop to those of the outer."""
    global seconds, _is_timed
    if _is_timed:
        yield
        return
    began_s, _is_timed = time.monotonic(), True
    try:
        yield
    finally:
        seconds, _is_timed = seconds + time.monotonic() - began_s, False


@dataclass(frozen=True)
class Call:
    """One call; another one differs."""

    what: str
    """The function and the node."""
    partition: int
    offset: int
    """Of the record that it was called for; of another call, its number in partition -1."""
    given: Callable[[], str] = field(compare=False)
    """Says what it was called for, if anything."""

    @property
    def text(self) -> str:
        """The function, the node, and what it was called for."""
        with suppress(Exception):  # the other thread goes on meanwhile
            return f"{self.what} on {given}" if (given := self.given()) else self.what
        return self.what


def of_record(error: UserFunctionError) -> Call | None:
    """The call whose error this would be, if that has a record."""
    if (record := error.record) is None:
        return None

    def given() -> str:
        found = placed(error) if placed else error
        return f"the record of {found.record}"

    return Call(f"{error.function!r} in {error.node}", record.partition, record.offset, given)


def running_call() -> Call | None:
    """The call that is running; None if none is, or if it ends this moment."""
    with suppress(Exception):  # the other thread goes on meanwhile
        if running is not None:
            describe, *arguments = running
            called: Call | None = describe(*arguments)
            return called
    return None
