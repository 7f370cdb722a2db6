"""Python's garbage collection in a driver: what an epoch makes for each task goes by itself once it is not needed, so
that collecting finds nothing, and with many tasks it takes long."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = 50_000
"""After so many objects more than were freed the youngest are looked through, instead of after Python's 700."""


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Look for garbage in cycles seldom, in this whole process."""
    youngest, *older = gc.get_threshold()
    gc.set_threshold(max(youngest, ALLOCATIONS), *older)
    try:
        yield
    finally:
        gc.set_threshold(youngest, *older)
