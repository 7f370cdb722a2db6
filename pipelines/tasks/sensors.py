"""Values of the last minute, from which rates, averages and extremes are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weir.state.engine.figures import Values

OVER_S = 60


@dataclass(slots=True)
class _Second:
    """The values of one second."""

    at_s: int
    least: float
    greatest: float
    count: int = 0
    total: float = 0.0


class Sensor:
    """Values of the last minute, by second. ``now`` gives seconds; counting began at ``began``, or when it was made."""

    def __init__(self, now: Callable[[], float], began: float | None = None) -> None:
        self._now, self._began = now, now() if began is None else began
        self._seconds: deque[_Second] = deque()
        self.total = self.last = 0.0

    def record(self, value: float) -> None:
        """Add one value."""
        self._add(1, value, value, value)

    def record_all(self, values: Values) -> None:
        """Add several values."""
        self._add(values.count, values.total, values.least, values.greatest)

    def _add(self, count: int, total: float, least: float, greatest: float) -> None:
        self.total, self.last = self.total + total, total
        if not count:
            return
        at_s, seconds = int(self._now()), self._seconds
        if not (seconds and seconds[-1].at_s == at_s):
            seconds.append(_Second(at_s, least, greatest))
        newest = seconds[-1]
        newest.count += count
        newest.total += total
        newest.least, newest.greatest = min(newest.least, least), max(newest.greatest, greatest)

    @property
    def sum(self) -> float:
        """The sum of the values."""
        return sum([second.total for second in self._kept()])

    @property
    def rate(self) -> float:
        """The sum of the values per second."""
        return self.sum / self._covered_s

    @property
    def count_rate(self) -> float:
        """The number of values per second."""
        return sum([second.count for second in self._kept()]) / self._covered_s

    @property
    def average(self) -> float:
        """0 if there are no values."""
        counted = sum([second.count for second in self._kept()])
        return self.sum / counted if counted else 0.0

    @property
    def maximum(self) -> float:
        """0 if there are no values."""
        return max([second.greatest for second in self._kept()], default=0.0)

    @property
    def minimum(self) -> float:
        """0 if there are no values."""
        return min([second.least for second in self._kept()], default=0.0)

    @property
    def _covered_s(self) -> float:
        return max(1.0, min(OVER_S, self._now() - self._began))

    def _kept(self) -> Sequence[_Second]:
        oldest_s = self._now() - OVER_S
        while self._seconds and self._seconds[0].at_s <= oldest_s:
            self._seconds.popleft()
        return self._seconds
