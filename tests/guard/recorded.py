"""The file of recorded counts, how it is written, and what differs from it."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.guard.counting import Counts
from tests.guard.measuring import Phases

RECORDED = Path(__file__).with_name("counts.toml")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
OF_PYTHON = ("allocations", "python_calls")
"""Counts that are compared by the version of Python alone that has recorded them."""


@dataclass(frozen=True)
class Recorded:
    """What the file has."""

    above: Mapping[str, float]
    """By the beginning of a count's name, by which share it may be above the recorded one; the others by none."""
    below: float
    """By which share a count may be below the recorded one before it is to be recorded anew."""
    python: str
    counts: dict[str, Phases]
    """By job."""

    @classmethod
    def read(cls, path: Path = RECORDED) -> Recorded:
        """The counts in a file, as it was written by ``text``."""
        found = tomllib.loads(path.read_text())
        rules = found.pop("recorded")
        return cls(above=rules["above"], below=rules["below"], python=rules["python"], counts=found)

    def differences(self, job: str, found: Phases) -> list[str]:
        """A line for each count that is above the recorded one, or far below it, by more than it may be."""
        recorded = self.counts.get(job, {})
        return [
            line
            for phase in sorted({*recorded, *found})
            for line in self._of_phase(f"{job}, {phase}", recorded.get(phase, {}), found.get(phase, {}))
        ]

    def _of_phase(self, where: str, recorded: Counts, found: Counts) -> Iterable[str]:
        for name in sorted({*recorded, *found}):
            if name in OF_PYTHON and self.python != PYTHON:
                continue
            was, now = recorded.get(name, 0), found.get(name, 0)
            above = self.may_be_above(name)
            if now > was * (1 + above):
                yield f"{where}: {name} was {was:,} and is {now:,}, which is more{_allowed(above)}"
            elif now < was * (1 - max(above, self.below)):
                yield f"{where}: {name} was {was:,} and is {now:,}, which is better: record it"

    def may_be_above(self, name: str) -> float:
        """By which share a count may be above the recorded one."""
        return next((share for prefix, share in self.above.items() if name.startswith(prefix)), 0.0)

    def text(self) -> str:
        """The file: sorted, so that a change of it shows what has changed."""
        lines = [
            "# The counts of tests/guard, one table for each job and phase: docs/performance.md, Guard.",
            "# Written by: python -m tests.guard --record",
            "",
            "[recorded]",
            f'python = "{self.python}"  # allocations and Python\'s calls are compared by this version alone',
            f"below = {self.below}  # a count that is further below is better, and has to be recorded",
            "",
            "[recorded.above]  # by which share a count may be above; those that are not named here, by none",
            *(f"{name} = {share}" for name, share in sorted(self.above.items())),
        ]
        for job, phases in sorted(self.counts.items()):
            for phase in ("epoch", "commit"):
                lines += ["", f"[{job}.{phase}]"]
                lines += [f"{name} = {count}" for name, count in sorted(phases[phase].items())]
        return "\n".join(lines) + "\n"


def _allowed(share: float) -> str:
    return f" by more than {100 * share:g} %" if share else ""
