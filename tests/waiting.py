"""Waiting for what other processes and threads bring about: asked again and again, never slept for."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(is_so: Callable[[], object], what: str, limit_s: float = 90.0, *, every_s: float = 0.05) -> float:
    """Seconds until it was true; fails the test after ``limit_s``."""
    started = time.monotonic()
    while not is_so():
        assert time.monotonic() - started < limit_s, f"not true within {limit_s:g} s: {what}"
        time.sleep(every_s)
    return time.monotonic() - started
