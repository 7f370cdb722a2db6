"""How fast a run reads, and how many records its next epoch may take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

RATE_S = 10.0
"""The rate covers the epochs that ended within this many seconds."""
COMMIT_SHARE = 0.8
"""The share of the commit interval that an epoch aims at while input is behind: one large epoch combines more records
per key than several small ones, and pays for starting only once."""
MIN_EPOCH_RECORDS = 25_000
"""Smaller epochs would spend most of their time on starting."""


class Pace:
    """What the epochs so far say about the next one."""

    def __init__(self, commit_interval_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self.records_in = 0
        """Records read in this run."""
        self.seconds = 0.0
        """How long the newest epoch took, with or without input."""
        self._interval_s = commit_interval_s
        self._epoch_records = MIN_EPOCH_RECORDS * 4
        self._now_s = now_s
        self._epochs: deque[tuple[float, int, float]] = deque()
        """When the newest epochs with input ended, their records and seconds."""

    @property
    def records_per_s(self) -> float:
        """Records over the time of the epochs that had some, within the last ``RATE_S``; 0 when there were none."""
        while self._epochs and self._epochs[0][0] < self._now_s() - RATE_S:
            self._epochs.popleft()
        seconds = sum(seconds for _, _, seconds in self._epochs)
        return sum(records for _, records, _ in self._epochs) / seconds if seconds else 0.0

    def share(self, tasks: int) -> int:
        """How many records each of ``tasks`` tasks may take in the next epoch."""
        return self._epoch_records // max(1, tasks) + 1

    def took(self, records: int, seconds: float) -> None:
        """An epoch has read ``records`` records in ``seconds`` seconds."""
        self.seconds = seconds
        if not records:
            return
        is_first = not self.records_in
        self.records_in += records
        self._epochs.append((self._now_s(), records, seconds))
        if is_first and seconds < 2 * self._interval_s:  # cold: connections, imports; it says little about the next
            self._epoch_records *= 4
        elif records >= self._epoch_records * 0.8:
            scale = min(4.0, max(0.5, self._interval_s * COMMIT_SHARE / seconds))
            self._epoch_records = max(MIN_EPOCH_RECORDS, int(records * scale))
