"""How a run is doing and how it ended, for people: printed, kept in the control database, shown in Dagster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weir.pipelines.publishing.state import SinkState
from weir.pipelines.tasks.run_metrics import Reading

NEW_TOPICS = "new topics"
"""Why a generation ends when there is more to read than it began with: another one goes on."""
ROLLED_BACK = "rolled back"
"""Why a generation ends that must not commit what it has done: another one goes on from the last commit."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How a run is doing."""

    application: str
    generation: int
    epoch: int
    committed_epoch: int
    records_in: int
    """Records read in this run."""
    lag: int
    records_per_s: float
    """The rate of the newest epochs that had input, over their own time; 0 when there was none recently."""
    commit_ms: float
    """How long the newest commit took."""
    commits_per_s: float = 0.0
    """Over the last minute, like the average and the longest duration."""
    commit_ms_avg: float = 0.0
    commit_ms_max: float = 0.0
    state: str
    """starting, running, paused, waiting, stopping, stopped, caught_up."""
    message: str = ""
    readings: Sequence[Reading] = ()
    """The run's metrics as of now."""
    sinks: Sequence[SinkState] = ()
    """How its sinks are doing."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """How a run ended."""

    application: str
    generation: int
    epoch: int
    commits: int
    records_in: int
    seconds: float
    """From the start of the first epoch with input to the end of the last commit."""
    publishing_s: float = 0.0
    """From there until sinks had everything, or were given up for this run."""
    reason: str
    """caught_up, stopped, new topics or rolled back."""
    totals: Mapping[str, int]
    """Counts since the application began, for example records_in and late_records; open_windows is as of now."""

    def followed_by(self, other: RunSummary) -> RunSummary:
        """This generation of a run and the next one, as one; a stop may come before that has begun."""
        if not other.generation:
            return replace(self, reason=other.reason)
        return replace(
            other,
            commits=self.commits + other.commits,
            records_in=self.records_in + other.records_in,
            seconds=self.seconds + other.seconds,
        )
