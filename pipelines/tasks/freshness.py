"""How old records are when their results can be seen: from their timestamp in Kafka to the end of their commit.

Of each epoch a few records, evenly spaced, stand for all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl

SAMPLES = 16
"""How many records stand for those that a task reads of a topic in an epoch."""
OVER_S = 60


@dataclass(frozen=True)
class Arrived:
    """Records that an epoch read, with the timestamps of some of them."""

    records: int
    times_ms: tuple[int, ...]


def arrived(times_ms: pl.Series) -> Arrived:
    """The records with these timestamps, in the order of their offsets; those without one, which are negative, do not
    count."""
    known = times_ms if times_ms.is_empty() or times_ms.min() >= 0 else times_ms.filter(times_ms >= 0)  # type: ignore[operator]
    places = np.linspace(0, known.len() - 1, min(SAMPLES, known.len())).astype(np.int64)
    return Arrived(known.len(), tuple(known.to_numpy()[places].tolist()))


class Freshness:
    """The ages of the records of the last minute's commits; ``now`` gives seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._waiting: list[Arrived] = []
        self._seen: deque[tuple[float, np.ndarray, np.ndarray]] = deque()
        """When commits ended, ages in ms, and how many records each of them stands for."""

    def took(self, records: Iterable[Arrived]) -> None:
        """Note what an accepted epoch read."""
        self._waiting += [each for each in records if each.records]

    def committed(self, at_ms: int) -> None:
        """All that was noted can be seen since ``at_ms``."""
        if self._waiting:
            times = np.concatenate([each.times_ms for each in self._waiting])
            weights = np.concatenate(
                [np.full(len(each.times_ms), each.records / len(each.times_ms)) for each in self._waiting]
            )
            self._seen.append((self._now(), at_ms - times, weights))
            self._waiting = []

    def quantiles(self, *wanted: float) -> list[float] | None:
        """The ages in ms that these shares of the records do not pass; None if nothing was committed."""
        while self._seen and self._seen[0][0] <= self._now() - OVER_S:
            self._seen.popleft()
        if not self._seen:
            return None
        ages, weights = (np.concatenate([each[part] for each in self._seen]) for part in (1, 2))
        order = np.argsort(ages)
        shares = np.cumsum(weights[order])
        places = np.searchsorted(shares, np.array(wanted) * shares[-1])
        return [float(age) for age in ages[order][np.minimum(places, len(ages) - 1)]]
