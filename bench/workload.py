"""What was measured of one job at one event size, and the figures that follow from it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.processes import Measured

WEIR = "weir"
RAW = "raw_read"
"""Reading the topic into columns, and nothing else: what ``bench.raw_read`` measures."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The runs of all sides, which took turns: the first runs of all, then the second, and so on."""

    name: str
    event_bytes: int
    events: int
    runs: Mapping[str, Sequence[Measured]]
    """By side, ``WEIR``, ``RAW`` or the name of a peer; all have as many."""
    not_run: Mapping[str, str]
    """By peer, why it has no runs: it could not run, or its results were wrong."""

    def per_s(self, side: str) -> float:
        """The median rate of a side, in records per second."""
        return statistics.median(run.per_s for run in self.runs[side])

    def spread(self, side: str) -> tuple[float, float]:
        """The lowest and the highest rate of a side."""
        rates = [run.per_s for run in self.runs[side]]
        return min(rates), max(rates)

    def ratio(self, side: str) -> float:
        """The median ratio of Weir's rate to that of the side's run beside it: a machine that slows down for a minute
        slows both. To ``RAW`` it is Weir's share of what the machine can read."""
        pairs = zip(self.runs[WEIR], self.runs[side], strict=True)
        return statistics.median(mine.per_s / other.per_s for mine, other in pairs)

    def compared(self, side: str) -> str:
        """The ratio for people: ``4.87 times``, or ``62 %`` of ``RAW``."""
        return f"{self.ratio(side):.0%}".replace("%", " %") if side == RAW else f"{self.ratio(side):.2f} times"

    def cpu_s_per_million(self, side: str) -> float:
        """The median processor time per million records, start-up included."""
        return statistics.median(run.cpu_s_per_million for run in self.runs[side])

    def peak_bytes(self, side: str) -> int:
        """The most memory of any run of a side."""
        return max(run.peak_bytes for run in self.runs[side])

    def as_json(self) -> dict[str, Any]:
        """The runs, and the figures for those who read the file."""
        figures = {
            side: {
                "median_per_s": self.per_s(side),
                "spread_per_s": self.spread(side),
                "ratio": None if side == WEIR else self.ratio(side),
                "cpu_s_per_million": self.cpu_s_per_million(side),
                "peak_bytes": self.peak_bytes(side),
            }
            for side in self.runs
        }
        return {**asdict(self), "figures": figures}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Workload:
        """The reverse of ``as_json``."""
        return cls(
            name=found["name"],
            event_bytes=found["event_bytes"],
            events=found["events"],
            runs={side: [Measured(**run) for run in runs] for side, runs in found["runs"].items()},
            not_run=found["not_run"],
        )
