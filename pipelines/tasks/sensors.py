"""Values of the last minute, from which rates, averages and extremes are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weir.state.engine.figures import Values

OVER_S = 60
SAMPLE_S = 5


@dataclass(slots=True)
class _Sample:
    """The values of a few seconds: with one of each second, 10,000 tasks would take 160 MB for each thing that they
    count, and with one of five seconds a fifth of that."""

    number: int
    least: float
    greatest: float
    count: int = 0
    total: float = 0.0


class Sensor:
    """Values of the last 55 to 60 seconds, in samples of five, as Kafka Streams has two of 30.

    ``now`` gives seconds; counting began at ``began``, or when it was made.
    """

    def __init__(self, now: Callable[[], float], began: float | None = None) -> None:
        self._now, self._began = now, now() if began is None else began
        self._samples: deque[_Sample] = deque(maxlen=OVER_S // SAMPLE_S)
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
        number, samples = int(self._now() // SAMPLE_S), self._samples
        if not (samples and samples[-1].number == number):
            samples.append(_Sample(number, least, greatest))
        newest = samples[-1]
        newest.count += count
        newest.total += total
        newest.least, newest.greatest = min(newest.least, least), max(newest.greatest, greatest)

    @property
    def sum(self) -> float:
        """The sum of the values."""
        return sum([sample.total for sample in self._kept()])

    @property
    def rate(self) -> float:
        """The sum of the values per second."""
        return self.sum / self._covered_s

    @property
    def count_rate(self) -> float:
        """The number of values per second."""
        return sum([sample.count for sample in self._kept()]) / self._covered_s

    @property
    def average(self) -> float:
        """0 if there are no values."""
        counted = sum([sample.count for sample in self._kept()])
        return self.sum / counted if counted else 0.0

    @property
    def maximum(self) -> float:
        """0 if there are no values."""
        return max([sample.greatest for sample in self._kept()], default=0.0)

    @property
    def minimum(self) -> float:
        """0 if there are no values."""
        return min([sample.least for sample in self._kept()], default=0.0)

    @property
    def _covered_s(self) -> float:
        now_s = self._now()
        return max(1.0, now_s - max(self._began, self._oldest(now_s) * SAMPLE_S))

    def _kept(self) -> Sequence[_Sample]:
        oldest = self._oldest(self._now())
        while self._samples and self._samples[0].number < oldest:
            self._samples.popleft()
        return self._samples

    def _oldest(self, now_s: float) -> int:
        """The number of the oldest sample that counts: with it, they reach back 55 to 60 seconds."""
        return int(now_s // SAMPLE_S) - OVER_S // SAMPLE_S + 1
