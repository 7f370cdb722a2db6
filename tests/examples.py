"""How many random examples a test tries: a quarter of them at most in ``make test``, all of them in ``make faults``."""

from __future__ import annotations

import os

FEWEST, MOST = 4, 25
IS_EVERY_EXAMPLE = "ALL_EXAMPLES" in os.environ


def examples(count: int) -> int:
    """``count`` if ALL_EXAMPLES is set, otherwise a quarter of it, but no fewer than 4 and no more than 25."""
    return count if IS_EVERY_EXAMPLE else min(count, MOST, max(FEWEST, count // 4))
