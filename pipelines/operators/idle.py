"""Idle input: where a program asks for it, the wall clock moves an operator's stream time on while nothing arrives.

After ``after_ms`` of silence stream time is the newest timestamp plus what the silence is longer than that. Both, and
when the input was last heard of, stand among the task's clocks, so a restart changes nothing. Whether the input is
silent or only not read yet is the driver's to know: a run that catches up and a backfill never let time pass so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import polars as pl

from weir.pipelines.operators.epoch import Epoch

NOWHERE = pl.DataFrame({"_partition": [-1], "_offset": [-1]}, schema={"_partition": pl.Int32, "_offset": pl.Int64})
"""The place of a row that no record has brought about."""


@runtime_checkable
class Closing(Protocol):
    """An operator that forwards or drops something when its stream time moves, record or not."""

    @property
    def clock(self) -> str:
        """The name of its stream time."""
        ...

    def next_close_ms(self, epoch: Epoch) -> int | None:
        """The stream time at which that happens next; None while there is nothing."""
        ...

    def close(self, before_ms: int, epoch: Epoch) -> pl.DataFrame | None:
        """Do so, after stream time has moved on from ``before_ms``: rows as ``process`` gives them."""
        ...


@dataclass(frozen=True, kw_only=True)
class Idleness:
    """What silence means for one operator."""

    operator: Closing
    after_ms: int

    def hear(self, times_ms: pl.Series, epoch: Epoch) -> None:
        """Records of ``times_ms``, at least one, have reached the operator."""
        heard, newest = self._names()
        if (stream_time := epoch.clocks.get(self.operator.clock)) is not None:
            time_ms = min(stream_time, int(times_ms.max()))  # type: ignore[arg-type]
            epoch.clocks[newest] = max(time_ms, epoch.clocks.get(newest, time_ms))
            epoch.clocks[heard] = epoch.now_ms

    def pass_time(self, epoch: Epoch) -> pl.DataFrame | None:
        """Move stream time as far as the silence allows; what the operator then forwards, None where nothing."""
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
        """When, by the wall clock, silence will have moved stream time to where something happens."""
        heard, newest = self._names()
        if newest not in epoch.clocks or (close_ms := self.operator.next_close_ms(epoch)) is None:
            return None
        return epoch.clocks[heard] + self.after_ms + close_ms - epoch.clocks[newest]

    def _names(self) -> tuple[str, str]:
        return f"_heard:{self.operator.clock}", f"_newest:{self.operator.clock}"


@dataclass(frozen=True, kw_only=True)
class Following:
    """Silence for a suppression of final results: its windows are final when the aggregation has closed them.

    A count of its own would differ, for not all that the aggregation hears of reaches the suppression.
    """

    operator: Closing
    aggregation: str
    """The clock of the aggregation, before it among the nodes."""

    def hear(self, times_ms: pl.Series, epoch: Epoch) -> None:
        """The aggregation has heard already."""

    def pass_time(self, epoch: Epoch) -> pl.DataFrame | None:
        """As ``Idleness`` does, to the aggregation's stream time."""
        before_ms = epoch.clocks.get(self.operator.clock)
        if before_ms is None or (reached_ms := epoch.clocks[self.aggregation]) <= before_ms:
            return None
        epoch.clocks[self.operator.clock] = reached_ms
        return self.operator.close(before_ms, epoch)

    def due_ms(self, epoch: Epoch) -> None:
        """The aggregation is due at the same time."""
