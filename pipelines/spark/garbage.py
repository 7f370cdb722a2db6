"""Python's garbage collection while a driver starts and runs. What an epoch makes for its tasks goes by itself once it
is not needed any more, so collections find next to nothing, and with many tasks they take long."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = 50_000
"""The youngest objects are looked through once there are so many more, instead of Python's 700."""


@contextmanager
def no_collections() -> Iterator[None]:
    """For a block that loads modules, which stay: looking through them takes a sixth of the time that loading takes."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def short_collections() -> Iterator[None]:
    """Within the block the garbage collector passes over what is there now, and looks at what is new seldom: it would
    hold up commits for 0.1 s, and take a fifth of an epoch of 10,000 tasks."""
    youngest, *older = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(max(youngest, ALLOCATIONS), *older)
    try:
        yield
    finally:
        gc.set_threshold(youngest, *older)
        gc.unfreeze()
