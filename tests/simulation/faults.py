"""What goes wrong in a world, and how often: each seed draws its own."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from random import Random

NEED_ROOM = ("write_files", "write_blob", "sync_blobs", "DeltaLog.append")
"""What fails if the disk is full."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Chances that are taken at each point that a process passes, and what happens between drivers."""

    kills: float
    """A driver or a worker dies."""
    replacements: float
    """A worker is given up and another one gets its plans, while it lives on."""
    sleeps: float
    """A process stops for a while."""
    jumps: float
    """The clocks jump forward."""
    errors: float
    """A write fails: the disk is full, or it has succeeded and its answer is lost."""
    most: int
    """How many of these happen to one driver and its workers."""
    drivers: int
    """How many drivers there are before faults cease."""
    overlaps: float
    """The chance that a driver begins while the one before it is still alive."""
    moves: float
    """The chance that a driver begins on another host."""
    wipes: float
    """The chance that local state is lost between two drivers."""

    @classmethod
    def drawn(cls, rng: Random) -> Faults:
        """Those of one seed; some seeds have many of one kind, and some have none."""
        return cls(
            kills=rng.choice([0.0, 0.003, 0.01, 0.03]),
            replacements=rng.choice([0.0, 0.0, 0.02]),
            sleeps=rng.choice([0.0, 0.005, 0.02]),
            jumps=rng.choice([0.0, 0.0, 0.002]),
            errors=rng.choice([0.0, 0.0, 0.01, 0.05]),
            most=rng.choice([1, 2, 4]),
            drivers=rng.choice([1, 1, 2, 3]),
            overlaps=rng.choice([0.0, 0.3, 0.8]),
            moves=rng.choice([0.0, 0.0, 0.5]),
            wipes=rng.choice([0.0, 0.0, 0.5]),
        )


def error_at(label: str) -> OSError | None:
    """How a call may fail at a point; None where none does."""
    if label.startswith("linked "):
        return OSError(errno.EIO, "its answer was lost")
    if label.removeprefix("before ") in NEED_ROOM:
        return OSError(errno.ENOSPC, "No space left on device")
    return None
