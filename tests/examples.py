"""How much of what there is a test tries in ``make test``; ``make faults`` sets ALL_EXAMPLES and tries all of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from itertools import cycle, islice, product

import pytest

FEWEST, MOST = 4, 25
IS_EVERY_EXAMPLE = "ALL_EXAMPLES" in os.environ


def examples(count: int) -> int:
    """How many random examples: ``count`` with ALL_EXAMPLES, else a quarter of it, no fewer than 4 and no more than
    25."""
    return count if IS_EVERY_EXAMPLE else min(count, MOST, max(FEWEST, count // 4))


def combined(names: str, *values: Collection[object]) -> Callable[[object], object]:
    """Parametrize by all combinations of ``values`` with ALL_EXAMPLES, else by as few as have each value once."""
    cases = product(*values)
    if not IS_EVERY_EXAMPLE:
        cases = islice(zip(*map(cycle, values), strict=False), max(map(len, values)))
    parametrize = pytest.mark.parametrize(names.split(","), list(cases))
    return lambda test: pytest.mark.combined(parametrize(test))
