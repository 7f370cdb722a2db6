"""What a profiled run writes: where the time of each epoch and task has gone, as tables of text in one folder.

Workers measure what they do (``weir.state.stopwatch``), the driver how long epochs and commits take. What nobody
accounts for is Spark's: planning, sending, and waiting for slots and other tasks.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from weir.pipelines.tasks.run_metrics import ACTIVITIES
from weir.state.stopwatch import Work

EPOCHS, OPERATORS = "epochs.csv", "operators.csv"
COMMIT, SPARK = "commit", "spark"
SHARES = (*ACTIVITIES, COMMIT, SPARK)
"""The columns of ``EPOCHS`` that add up to 1."""
EPOCH_COLUMNS = ("generation", "epoch", "task", "slot", "records", "seconds", *SHARES)
OPERATOR_COLUMNS = ("generation", "epoch", "task", "operator", "rows", "seconds")


@dataclass(frozen=True, kw_only=True)
class Done:
    """An accepted epoch of a task."""

    generation: int
    epoch: int
    task: str
    slot: int
    records: int
    """Records of topics, and rows of other tasks."""
    given_s: float
    """When it was given, by the monotonic clock; as ``accepted_s``."""
    accepted_s: float
    work: Work


class Profiling(Protocol):
    """What hears how long a run's epochs and commits take; times are those of the monotonic clock."""

    def done(self, done: Done) -> None:
        """A receipt was accepted."""
        ...

    def epoch(self, began_s: float, ended_s: float) -> None:
        """An epoch has ended, whose tasks are those that were ``done`` since the one before."""
        ...

    def committed(self, seconds: float) -> None:
        """A commit took so long, which belongs to the epoch that has ended last, if any has."""
        ...


class _NotProfiled:
    def done(self, done: Done) -> None:
        pass

    def epoch(self, began_s: float, ended_s: float) -> None:
        pass

    def committed(self, seconds: float) -> None:
        pass


NOT_PROFILED: Profiling = _NotProfiled()


class Profile:
    """Writes the profile of a run into ``folder``, anew."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError if it cannot write there."""
        folder.mkdir(parents=True, exist_ok=True)
        self._done: list[Done] = []
        self._ended: list[tuple[Done, float]] = []
        """The tasks of the newest epoch, and how long it took for each."""
        self._commit_s = 0.0
        with ExitStack() as stack:
            files: list[IO[str]] = [
                stack.enter_context((folder / name).open("w", newline="")) for name in (EPOCHS, OPERATORS)
            ]
            self._epochs, self._operators = (csv.writer(file, lineterminator="\n") for file in files)
            self._epochs.writerow(EPOCH_COLUMNS)
            self._operators.writerow(OPERATOR_COLUMNS)
            self._files, self._open = files, stack.pop_all()

    def done(self, done: Done) -> None:
        """As ``Profiling`` has it."""
        self._done.append(done)

    def epoch(self, began_s: float, ended_s: float) -> None:
        """As ``Profiling`` has it. A task that was left with its plan has an epoch that began when it was given."""
        if not self._done:
            return
        self._write()
        self._ended = [(done, ended_s - min(began_s, done.given_s)) for done in self._done]
        self._done = []

    def committed(self, seconds: float) -> None:
        """As ``Profiling`` has it."""
        if self._ended:
            self._commit_s += seconds

    def close(self) -> None:
        """Write what is left; tasks that no epoch has waited for have one of their own."""
        self._write()
        self._ended = [(done, done.accepted_s - done.given_s) for done in self._done]
        self._write()
        self._open.close()

    def _write(self) -> None:
        for done, epoch_s in self._ended:
            seconds = epoch_s + self._commit_s
            place = (done.generation, done.epoch, done.task)
            shares = shares_of(done.work, self._commit_s, seconds)
            numbers = (f"{value:.6f}" for value in (seconds, *shares))
            self._epochs.writerow((*place, done.slot, done.records, *numbers))
            self._operators.writerows(
                (*place, node, work.rows, f"{work.seconds:.6f}") for node, work in done.work.nodes.items()
            )
        if self._ended:
            self._commit_s = 0.0
        self._ended = []
        for file in self._files:
            file.flush()


def shares_of(work: Work, commit_s: float, seconds: float) -> Sequence[float]:
    """What share each of ``SHARES`` has of so many seconds."""
    known = [*(work.seconds.get(activity, 0.0) for activity in ACTIVITIES), commit_s]
    of_each: Iterable[float] = (*known, max(0.0, seconds - sum(known)))
    return [each / seconds if seconds else 0.0 for each in of_each]
