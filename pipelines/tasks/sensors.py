"""Values of the last minute, from which rates, averages and extremes are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from weir.state.engine.figures import Values

OVER_S = 60


class Sensor:
    """Values of the last minute, by second. ``now`` gives seconds; counting began at ``began``, or when it was made."""

    def __init__(self, now: Callable[[], float], began: float | None = None) -> None:
        self._now, self._began = now, now() if began is None else began
        self._seconds: deque[tuple[int, Values]] = deque()
        self.total = self.last = 0.0

    def record(self, value: float) -> None:
        """Add one value."""
        self.record_all(Values(count=1, total=value, least=value, greatest=value))

    def record_all(self, values: Values) -> None:
        """Add several values."""
        second = int(self._now())
        self.total, self.last = self.total + values.total, values.total
        if self._seconds and self._seconds[-1][0] == second:
            values = self._seconds.pop()[1] + values
        self._seconds.append((second, values))

    @property
    def sum(self) -> float:
        """The sum of the values."""
        return sum(values.total for _, values in self._kept())

    @property
    def rate(self) -> float:
        """The sum of the values per second."""
        return self.sum / self._covered_s

    @property
    def count_rate(self) -> float:
        """The number of values per second."""
        return sum(values.count for _, values in self._kept()) / self._covered_s

    @property
    def average(self) -> float:
        """0 if there are no values."""
        counted = sum(values.count for _, values in self._kept())
        return sum(values.total for _, values in self._kept()) / counted if counted else 0.0

    @property
    def maximum(self) -> float:
        """0 if there are no values."""
        return max((values.greatest for _, values in self._kept() if values.count), default=0.0)

    @property
    def minimum(self) -> float:
        """0 if there are no values."""
        return min((values.least for _, values in self._kept() if values.count), default=0.0)

    @property
    def _covered_s(self) -> float:
        return max(1.0, min(OVER_S, self._now() - self._began))

    def _kept(self) -> Sequence[tuple[int, Values]]:
        while self._seconds and self._seconds[0][0] <= self._now() - OVER_S:
            self._seconds.popleft()
        return self._seconds
