"""Dying at a step: by a signal, or in this process by an exception that nothing catches, instead of kill -9."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable


class KilledError(BaseException):
    """Stands for kill -9: derived from BaseException, so that no error handler catches it."""


def dying_at(step: str, occurrence: int = 1) -> Callable[[str], None]:
    """A step hook that dies when ``step`` is reached for the ``occurrence``-th time."""

    def die() -> None:
        raise KilledError(step)

    return _at(step, occurrence, die)


def signalled_at(step: str, occurrence: int = 1, by: signal.Signals = signal.SIGKILL) -> Callable[[str], None]:
    """A step hook that sends the signal to its own process then."""
    return _at(step, occurrence, lambda: os.kill(os.getpid(), by))


def _at(step: str, occurrence: int, act: Callable[[], None]) -> Callable[[str], None]:
    seen = Counter[str]()

    def on_step(name: str) -> None:
        seen[name] += 1
        if name == step and seen[name] == occurrence:
            act()

    return on_step
