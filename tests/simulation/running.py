"""One world after another: what became of a seed."""

from __future__ import annotations

import gc
import tempfile
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.simulation.mutants import mutated
from tests.simulation.world import World
from weir.pipelines.spark.worker import GC_ALLOCATIONS

MEMORY = Path("/dev/shm")
"""A file system in memory, where syncing costs nothing."""


@dataclass(frozen=True)
class Outcome:
    """What became of a seed."""

    seed: int
    seconds: float
    error: str = ""
    """What broke; empty if everything held."""
    history: list[str] = field(default_factory=list, repr=False)
    """Empty unless it is wanted."""

    @property
    def is_broken(self) -> bool:
        return bool(self.error)

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.error or 'holds'}"


@cache
def _collect_seldom() -> None:
    """As a worker does: what the imports have left is never looked through for garbage again, and the rest seldom."""
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 50, 50)


def live_through_in_time(seed: int, *, mutant: str | None, until_s: float) -> Outcome | None:
    """``live_through``; None once ``until_s`` has passed, by the monotonic clock."""
    return None if time.monotonic() > until_s else live_through(seed, mutant=mutant)


def live_through(seed: int, *, mutant: str | None = None, tells: bool = False) -> Outcome:
    """Live through the world of ``seed``, with the code under test broken by ``mutant``; ``tells`` is whether its
    history is wanted."""
    _collect_seldom()
    began_s, error = time.monotonic(), ""
    with tempfile.TemporaryDirectory(prefix="weir-world-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        world = World(seed, Path(folder))
        try:
            with mutated(mutant):
                world.run()
        except Exception as broken:
            error = world.without_chance(f"{type(broken).__name__}: {broken}")
    return Outcome(seed, time.monotonic() - began_s, error, world.history if tells else [])
