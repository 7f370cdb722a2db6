"""Dying at a step in this process: an exception that nothing catches, instead of kill -9."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable


class KilledError(BaseException):
    """Stands for kill -9: derived from BaseException, so that no error handler catches it."""


def dying_at(step: str, occurrence: int = 1) -> Callable[[str], None]:
    """A step hook that dies when ``step`` is reached for the ``occurrence``-th time."""
    seen = Counter[str]()

    def on_step(name: str) -> None:
        seen[name] += 1
        if name == step and seen[name] == occurrence:
            raise KilledError(step)

    return on_step
