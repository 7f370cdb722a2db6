"""How many records the next batch of an epoch takes, where its plan limits time or what is uncommitted."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

FIRST_ROWS = 10_000
"""Records in the first batch where time is not limited, at most."""
LEAST_ROWS = 100
"""No batch has fewer because of what is uncommitted."""
FIRST_ROW_BYTES, FIRST_ROW_US = 100, 5
"""What a record is taken to write, and to add to the time of a rollback, before anything is known."""
UNKNOWN_ROWS = 100
"""Records in the first batch where time is limited and what a record takes is not known."""
MOST_GROWTH = 8
"""A batch has at most so many times the records of the one before it, or of the epoch before."""
LESS = 16
"""By how much a batch that took too long is divided; and if no larger part of a limit is left, no batch follows."""
PATIENCE = 2.0
"""A batch is given up when this many budgets have passed since it began."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What the records of an epoch have written in all, and added to the time of a rollback."""

    records: int
    bytes: int
    rollback_us: int


class BatchSizes:
    """The sizes of one epoch's batches."""

    def __init__(
        self,
        *,
        max_bytes: int | None,
        budget_s: float | None,
        max_rollback_us: int | None = None,
        first: int | None = None,
        before: Written | None = None,
        started_s: float = 0.0,
    ) -> None:
        """``first``: records in the first batch, if it is known what they take. ``before``: what those of the task's
        last epoch have written, if that is known. ``started_s``: when the epoch began, by the monotonic clock."""
        self._max_bytes, self._max_rollback_us, self._budget_s = max_bytes, max_rollback_us, budget_s
        self._end_s = math.inf if budget_s is None else started_s + budget_s
        self._began_s = time.monotonic()
        self._least = min(FIRST_ROWS, LEAST_ROWS)
        known = before or Written(records=1, bytes=FIRST_ROW_BYTES, rollback_us=FIRST_ROW_US)
        most = FIRST_ROWS if before is None else max(FIRST_ROWS, MOST_GROWTH * before.records)
        sizes = [most if budget_s is None else max(1, first or UNKNOWN_ROWS)]
        for limit, used in ((max_bytes, known.bytes), (max_rollback_us, known.rollback_us)):
            if limit is not None:
                sizes += [most, max(self._least, known.records * limit // (2 * max(1, used)))]
        self.next = min(sizes)
        """Records in the next batch; 0 when the epoch takes no more."""
        self.are_too_large = self.are_late = False
        """Why ``next`` is 0."""

    @property
    def are_unlimited(self) -> bool:
        """Whether all records may be one batch."""
        return self._max_bytes is None and self._max_rollback_us is None and self._budget_s is None

    @property
    def stop_at_s(self) -> float:
        """When a batch that begins now is given up, by the monotonic clock."""
        return math.inf if self._budget_s is None else time.monotonic() + PATIENCE * self._budget_s

    def took(self, rows: int, written: Written) -> None:
        """A batch of ``rows`` records has ended, with which the epoch has ``written`` so much."""
        now_s = time.monotonic()
        seconds, self._began_s = max(1e-6, now_s - self._began_s), now_s
        sizes = []
        for limit, used in ((self._max_bytes, written.bytes), (self._max_rollback_us, written.rollback_us)):
            if limit is not None:
                self.are_too_large |= used >= limit - limit // LESS
                sizes.append(max(self._least, written.records * (limit - used) // (2 * max(1, used))))
        if self._budget_s is not None:
            left_s = self._end_s - now_s
            fitting = int(rows * left_s / seconds)
            self.are_late = fitting < 1 or left_s < 0.1 * self._budget_s
            sizes.append(min(fitting, MOST_GROWTH * rows))
        self.next = 0 if self.are_too_large or self.are_late else min(sizes)

    def took_too_long(self, rows: int) -> None:
        """A batch of ``rows`` records was given up."""
        self._began_s = time.monotonic()
        self.next = max(1, rows // LESS)
