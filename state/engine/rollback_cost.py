"""How long a rollback would take, by what it has to undo: an estimate, so that commits can keep it short.

For each entry of the undo log, its image is read and put back. The pages that this touches cost more than the rows: the
process that rolls back maps and copies each of them anew. Keys in no order over a large store touch a page each.
``python -m bench.rollback`` prints the estimate beside what rollbacks take (docs/performance.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ROW_US, PAGE_US = 1.6, 10.0
"""What a row and a page take, as measured."""


@dataclass(frozen=True)
class RollbackCost:
    """What a store would have to undo."""

    rows: int
    """Entries of the undo log."""
    pages: int
    """Leaf pages of all its databases."""

    def us(self, more_rows: int = 0) -> int:
        """Microseconds for these and ``more_rows``, if keys are in no order: then ``rows`` of them touch
        ``pages * (1 - exp(-rows / pages))``."""
        rows = self.rows + more_rows
        touched = self.pages * -math.expm1(-rows / self.pages) if self.pages else 0.0
        return round(rows * ROW_US + touched * PAGE_US)
