"""Idle input: where a program asks for it, the wall clock advances an operator's stream time while nothing arrives.

Once the input has been idle for longer than ``after_ms``, stream time is the newest timestamp plus the time beyond
``after_ms``. The newest timestamp and the time of the last record are kept among the task's clocks, so a restart
changes nothing. Only the driver knows whether the input is idle or merely not read yet: a run that catches up and a
backfill never let time pass this way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import polars as pl

from weir.pipelines.operators.epoch import Epoch

NOWHERE = pl.DataFrame({"_partition": [-1], "_offset": [-1]}, schema={"_partition": pl.Int32, "_offset": pl.Int64})
"""The place of a row that no record caused."""


@runtime_checkable
class Closing(Protocol):
    """An operator that forwards or drops something when its stream time advances, even without a record."""

    @property
    def clock(self) -> str:
        """The name of its stream time."""
        ...

    def next_close_ms(self, epoch: Epoch) -> int | None:
        """The stream time at which that happens next; None if nothing is pending."""
        ...

    def close(self, before_ms: int, epoch: Epoch) -> pl.DataFrame | None:
        """Do it, after stream time has advanced from ``before_ms``: rows as ``process`` gives them."""
        ...


@dataclass(frozen=True, kw_only=True)
class Idleness:
    """What idle input means for one operator."""

    operator: Closing
    after_ms: int

    def hear(self, times_ms: pl.Series, epoch: Epoch) -> None:
        """Note that records with the timestamps ``times_ms``, at least one, have reached the operator."""
        heard, newest = self._names()
        if (stream_time := epoch.clocks.get(self.operator.clock)) is not None:
            time_ms = min(stream_time, int(times_ms.max()))  # type: ignore[arg-type]
            epoch.clocks[newest] = max(time_ms, epoch.clocks.get(newest, time_ms))
            epoch.clocks[heard] = epoch.now_ms

    def pass_time(self, epoch: Epoch) -> pl.DataFrame | None:
        """Advance stream time as far as the idle time allows; what the operator then forwards, None for nothing."""
        heard, newest = self._names()
        if newest not in epoch.clocks:
            return None
        before_ms = epoch.clocks[self.operator.clock]
        reached_ms = epoch.clocks[newest] + epoch.now_ms - epoch.clocks[heard] - self.after_ms
        if reached_ms <= before_ms:
            return None
        epoch.clocks[self.operator.clock] = reached_ms
        return self.operator.close(before_ms, epoch)

    def due_ms(self, epoch: Epoch) -> int | None:
        """When, by the wall clock, idle input will have advanced stream time to where something happens."""
        heard, newest = self._names()
        if newest not in epoch.clocks or (close_ms := self.operator.next_close_ms(epoch)) is None:
            return None
        return epoch.clocks[heard] + self.after_ms + close_ms - epoch.clocks[newest]

    def _names(self) -> tuple[str, str]:
        return f"_heard:{self.operator.clock}", f"_newest:{self.operator.clock}"


@dataclass(frozen=True, kw_only=True)
class Following:
    """Idle input for a suppression of final results: its windows are final when the aggregation has closed them.

    Measuring idle time itself would differ, since not all records of the aggregation reach the suppression.
    """

    operator: Closing
    aggregation: str
    """The clock of the aggregation, which precedes it among the nodes."""

    def hear(self, times_ms: pl.Series, epoch: Epoch) -> None:
        """Nothing to do: the aggregation notes its own records."""

    def pass_time(self, epoch: Epoch) -> pl.DataFrame | None:
        """As in ``Idleness``, but up to the aggregation's stream time."""
        before_ms = epoch.clocks.get(self.operator.clock)
        if before_ms is None or (reached_ms := epoch.clocks[self.aggregation]) <= before_ms:
            return None
        epoch.clocks[self.operator.clock] = reached_ms
        return self.operator.close(before_ms, epoch)

    def due_ms(self, epoch: Epoch) -> None:
        """None: the aggregation is due at the same time."""
