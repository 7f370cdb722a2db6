"""How fast a run reads, and how many records its next epoch may take."""

from __future__ import annotations

COMMIT_SHARE = 0.8
"""An epoch aims at this share of the commit interval while input is behind: one large epoch combines more a key and
starts less often than several small ones."""
MIN_EPOCH_RECORDS = 25_000
"""Smaller epochs would spend their time on starting."""


class Pace:
    """What the epochs so far say of the next one."""

    def __init__(self, commit_interval_s: float) -> None:
        self.records_in = 0
        """Read in this run."""
        self.records_per_s = 0.0
        """Of the newest epoch with input; it fades while there is none."""
        self.seconds = 0.0
        """How long the newest epoch took, input or not."""
        self._interval_s = commit_interval_s
        self._epoch_records = MIN_EPOCH_RECORDS * 4

    def share(self, tasks: int) -> int:
        """How many records each of so many tasks may take in the next epoch."""
        return self._epoch_records // max(1, tasks) + 1

    def took(self, records: int, seconds: float) -> None:
        """An epoch has read so many records in so many seconds."""
        self.seconds = seconds
        if not records:
            self.records_per_s *= 0.8
            return
        is_first = not self.records_in
        self.records_in += records
        self.records_per_s = records / seconds
        if is_first and seconds < 2 * self._interval_s:  # cold: connections, imports; it says little of the next
            self._epoch_records *= 4
        elif records >= self._epoch_records * 0.8:
            scale = min(4.0, max(0.5, self._interval_s * COMMIT_SHARE / seconds))
            self._epoch_records = max(MIN_EPOCH_RECORDS, int(records * scale))
