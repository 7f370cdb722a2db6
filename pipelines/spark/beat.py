"""When a run that has read everything looks for more, and when it commits.

While records wait, one epoch follows another. Otherwise an epoch begins so late that it has just ended when the commit
is due: what it reads is seen soonest, and a commit interval costs one epoch instead of many. How much an epoch reads is
up to ``weir.pipelines.spark.pace``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_S = 0.25
"""How long a record may go unnoticed at most, unless the commit interval is long and nothing has come for a while."""
LONGEST_LOOK_S = 1.0
QUIET_S = 5.0
"""After so long without records a run is told when there are any, if it can be."""
TOLD_LOOK_S = 3.0
"""From look to look then, as a precaution: brokers that come back tell of nothing that came before."""
QUIET_SHARE = 0.1
"""Where nothing has come for a while, the next look is after this share of that time, within the limits."""
INTERVAL_SHARE = 0.25
"""How much of a long commit interval a record may go unnoticed after a while without any."""
SHORTEST_S = 0.02
"""From look to look at least."""
NEWEST = 0.2
"""The weight of the newest epoch in what the next one is expected to take."""


class Beat:
    """The times of looks and commits; all are those of the monotonic clock, in seconds."""

    def __init__(
        self, interval_s: float, now_s: Callable[[], float] = time.monotonic, *, is_told: bool = False
    ) -> None:
        """``interval_s`` is the commit interval, of which the first begins now; ``is_told`` says whether somebody tells
        when records come."""
        self._interval_s, self._now_s, self._is_told = interval_s, now_s, is_told
        self.due_s = now_s() + interval_s
        """When the next commit is due."""
        self._looked_s = self._came_s = now_s()
        self._epoch_s = 0.0
        """What an epoch is expected to take that reads what has come since the last look."""

    def change(self, interval_s: float) -> None:
        """From now on commits are so far apart, counted from the last one."""
        self.due_s += interval_s - self._interval_s
        self._interval_s = interval_s

    @property
    def quiet_s(self) -> float:
        """How long ago the newest records were read."""
        return self._now_s() - self._came_s

    def next_look_s(self, *, has_uncommitted: bool) -> float:
        """When to look for records again, if none wait."""
        longest_s = max(LOOK_S, min(LONGEST_LOOK_S, INTERVAL_SHARE * self._interval_s))
        look_s = self._looked_s + min(longest_s, max(min(LOOK_S, self._interval_s), QUIET_SHARE * self.quiet_s))
        if self.is_quiet:
            look_s = self._looked_s + TOLD_LOOK_S
        last_s = self.due_s - self._epoch_s
        if last_s > self._looked_s or has_uncommitted:
            look_s = min(look_s, last_s)
        return max(look_s, self._looked_s + SHORTEST_S)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come for so long that the run is to be told when something does."""
        return self._is_told and self.quiet_s > QUIET_S

    def heard(self) -> None:
        """There is something to look for now."""
        self._looked_s = self._now_s() - TOLD_LOOK_S

    def looked(self) -> None:
        """A look begins; what it finds is read by the next epoch."""
        self._looked_s = self._now_s()

    def took(self, seconds: float, *, has_left_some: bool) -> None:
        """An epoch with records has ended."""
        self._came_s = self._now_s()
        if not has_left_some:
            self._epoch_s += NEWEST * (min(seconds, self._interval_s) - self._epoch_s)

    def is_commit_due(self, upcoming_s: float = 0.0) -> bool:
        """Whether to commit now, rather than after another epoch of ``upcoming_s``, or after the next look."""
        last_s = self.due_s - self._epoch_s
        return self._now_s() + upcoming_s >= self.due_s or (not upcoming_s and self._looked_s >= last_s)

    def committed(self, began_s: float) -> None:
        """A commit began then. One that was late by less than half of the interval does not put off the next."""
        is_near = abs(began_s - self.due_s) <= self._interval_s / 2
        self.due_s = (self.due_s if is_near else began_s) + self._interval_s
