"""How long the program's functions may run before an epoch takes fewer records instead."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_until = math.inf
"""By the monotonic clock. A worker runs one part of an epoch at a time."""


class OutOfTimeError(BaseException):
    """The functions have run for longer than they may; no error of the program, so that nothing takes it for one."""


@contextmanager
def time_limit(until_s: float) -> Iterator[None]:
    """Within the block ``check_time`` raises once the monotonic clock has passed ``until_s``."""
    global _until
    before, _until = _until, until_s
    try:
        yield
    finally:
        _until = before


def clock() -> tuple[Callable[[], float], float]:
    """The monotonic clock and the limit, for a loop that compares them itself after each call: a call of ``check_time``
    takes as long as a short function."""
    return time.monotonic, _until


def check_time() -> None:
    """Call it after each call of a function of the program.

    Raises:
        OutOfTimeError: The limit has passed.
    """
    if time.monotonic() > _until:
        raise OutOfTimeError
