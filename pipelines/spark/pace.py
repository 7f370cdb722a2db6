"""How often a driver commits and how long that takes, over the last minute (the measures of KIP-892)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

OVER_S = 60.0


class CommitPace:
    """Commits of the last minute; ``now`` gives seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._began = now, now()
        self._commits: deque[tuple[float, float]] = deque()
        self.last_ms = 0.0
        """How long the newest commit took, however long ago it was."""

    def add(self, seconds: float) -> None:
        """A commit has just ended and took so long."""
        self.last_ms = seconds * 1000
        self._commits.append((self._now(), self.last_ms))

    def summary(self) -> tuple[float, float, float]:
        """Commits a second, and their average and longest duration in ms; zeros without any."""
        now = self._now()
        while self._commits and self._commits[0][0] < now - OVER_S:
            self._commits.popleft()
        if not self._commits:
            return 0.0, 0.0, 0.0
        durations = [duration for _, duration in self._commits]
        over_s = max(1.0, min(OVER_S, now - self._began))
        return len(durations) / over_s, sum(durations) / len(durations), max(durations)
