"""What goes wrong in a world, and how often: each seed draws its own."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from random import Random

DONE = ": done"
"""How the points end that are passed once a call of the storage has done its work."""
FIRST_ENTRY = f"{0:020}.json"
"""The entry that makes a table."""
READS = ("get", "find", "list", "folders", "download")
WRITES = ("make", "put", "stage", "put_if_absent", "add", "upload", "sync", "sync_content")
DELETIONS = ("delete", "delete_folder", "remove_empty", "remove_leftovers")


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Chances that are taken at each point that a process passes, and what happens between drivers."""

    kills: float
    """A driver or a worker dies."""
    blackouts: float
    """The power fails: all processes die, and the disks lose what was not synced."""
    replacements: float
    """A worker is given up and another one gets its plans, while it lives on."""
    sleeps: float
    """A process stops for a while."""
    jumps: float
    """The clocks jump, forward or back."""
    errors: float
    """A call of the storage fails: the disk is full or broken, it does not answer, or its answer is lost."""
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
            blackouts=rng.choice([0.0, 0.003, 0.01]),
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


def error_at(label: str, rng: Random) -> OSError | None:
    """How a call may fail at a point; None where none does."""
    kind = label.partition(" ")[0]
    broken = OSError(errno.EIO, "Input/output error"), TimeoutError(errno.ETIMEDOUT, "no answer")
    if kind == "linked":
        return OSError(errno.EIO, "its name is perhaps not on disk")
    if kind in (*READS, *DELETIONS) or (kind in WRITES and label.endswith(DONE)):
        return rng.choice(broken)
    if kind in WRITES:
        full = OSError(errno.ENOSPC, "No space left on device")
        return rng.choice((full, full, *broken))
    return None


def is_survived(label: str, error: OSError) -> bool:
    """Whether a run has to go on after an error, if it is the first one: it waits for room, and finds what it has put.
    A start that makes a table may end, and the next one goes on."""
    is_new_table = FIRST_ENTRY in label
    return error.errno == errno.ENOSPC or (label.startswith(("linked ", "put_if_absent ")) and not is_new_table)
