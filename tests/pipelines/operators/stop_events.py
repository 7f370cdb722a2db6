"""Stop events for drivers that run inside a test."""

from __future__ import annotations

from collections.abc import Callable


class UntilTrue:
    """A stop event that is set once a condition holds; the driver checks it between epochs."""

    def __init__(self, condition: Callable[[], object]) -> None:
        self._condition = condition

    def is_set(self) -> bool:
        return bool(self._condition())

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()
