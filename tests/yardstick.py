"""Promises in processor time, kept on any machine: what is promised takes turns with plain Python in one process.

So a machine that is slow or busy slows both. The plain Python takes 10 ms on the machine whose figures are in
docs/performance.md, with nothing else to do; there a test with the test driver takes half of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable

YARDSTICK_MS = 10.0
STEPS = 87_000
TIMES = 10


def processor_ms(work: Callable[[], object]) -> float:
    """What ``work`` takes at its best, in milliseconds of that machine."""
    pairs = [(_seconds(work), _seconds(_plain_python)) for _ in range(TIMES)]
    return YARDSTICK_MS * min(taken for taken, _ in pairs) / min(taken for _, taken in pairs)


def _plain_python() -> None:
    counts: dict[str, int] = {}
    for number in range(STEPS):
        key = f"key {number % 97}"
        counts[key] = counts.get(key, 0) + number


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
