"""What an epoch of a task adds to the metrics. Counts come from the operators through ``processor``; receipts carry
them to the driver, whose ``weir.pipelines.tasks.run_metrics`` keeps them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from weir.pipelines.operators.epoch import MOST_LATE, LateRecord
from weir.state.engine.figures import Figures, Values
from weir.state.frames import running_max

TASK_CLOCK = "_stream_time"
"""The clock of a task's stream time: the greatest timestamp of all its input."""


@dataclass(frozen=True, kw_only=True)
class EpochMetrics:
    """What one epoch of one task adds."""

    records: int = 0
    """Rows of topics and edges."""
    lateness_ms: Values = field(default_factory=Values)
    """How far each record was behind the task's stream time."""
    nodes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Counts by node; ``process`` for a source, ``suppression_emits`` for a suppression."""
    lateness_ms_of: Mapping[str, Values] = field(default_factory=dict)
    """By node, how far the rows that it took were behind the task's stream time."""
    expired_of: Mapping[str, int] = field(default_factory=dict)
    """By store, the records that were older than it keeps."""
    overtime_ms_of: Mapping[str, Values] = field(default_factory=dict)
    """By suppression, how long the updates that its time limit let go had waited without another one."""
    buffers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The rows and bytes that a suppression holds now, by its store, or that of its aggregation."""
    calls: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By store, what operators asked of it: ``get``, ``put``, ``delete`` in keys, ``range``, ``all`` in calls."""
    call_ms: Mapping[str, Mapping[str, Values]] = field(default_factory=dict, compare=False)
    """By store, how long these calls have taken, each for as many keys as a batch has."""
    late: tuple[LateRecord, ...] = ()
    """The first late records that were dropped."""
    figures: Figures | None = field(default=None, compare=False)
    """What the stores measure themselves, which is not part of the receipt that they keep."""

    def __add__(self, later: EpochMetrics) -> EpochMetrics:
        """The sum of two batches of one epoch."""
        return EpochMetrics(
            records=self.records + later.records,
            lateness_ms=self.lateness_ms + later.lateness_ms,
            nodes=_counted(self.nodes, later.nodes),
            lateness_ms_of=_together(self.lateness_ms_of, later.lateness_ms_of),
            expired_of=Counter(self.expired_of) + Counter(later.expired_of),
            overtime_ms_of=_together(self.overtime_ms_of, later.overtime_ms_of),
            buffers={**self.buffers, **later.buffers},
            calls=_counted(self.calls, later.calls),
            call_ms={
                store: _together(self.call_ms.get(store, {}), later.call_ms.get(store, {}))
                for store in (*self.call_ms, *later.call_ms)
            },
            late=(*self.late, *later.late)[:MOST_LATE],
            figures=later.figures or self.figures,
        )


class Moments:
    """The task's stream time at the turns of an epoch's records."""

    def __init__(self, inputs: Iterable[pl.DataFrame], clocks: dict[str, int]) -> None:
        """Advances the clock. Several inputs have their rows' turns in ``_offset``, as set by ``TaskProcessor``."""
        frames = [frame for frame in inputs if frame.height]
        self._now_ms = clocks.get(TASK_CLOCK)
        self._offsets, self._times = np.empty(0, np.int64), np.empty(0, np.int64)
        self.lateness_ms = Values()
        """How far the records are behind."""
        if not frames:
            return
        offsets, times = (
            np.concatenate([frame.get_column(name).to_numpy() for frame in frames]) for name in ("_offset", "_ts")
        )
        if len(frames) > 1:
            turns = np.argsort(offsets, kind="stable")
            offsets, times = offsets[turns], times[turns]
        self._offsets, self._times = offsets, running_max(times, self._now_ms)
        self._now_ms = clocks[TASK_CLOCK] = int(self._times[-1])
        self.lateness_ms = Values.over(self._times - times)

    def behind(self, frames: Iterable[pl.DataFrame]) -> Values:
        """How far rows that nodes made of the records are behind the stream time at the turns of these."""
        found = Values()
        for frame in frames:
            if self._now_ms is None or not frame.height:
                continue
            times, offsets = frame.get_column("_ts").to_numpy(), frame.get_column("_offset").to_numpy()
            if len(self._times):
                turns = np.searchsorted(self._offsets, offsets, side="right") - 1
                found += Values.over(self._times[np.maximum(turns, 0)] - times)
            else:
                found += Values.over(self._now_ms - times)
        return found


def _counted(
    before: Mapping[str, Mapping[str, int]], later: Mapping[str, Mapping[str, int]]
) -> dict[str, Mapping[str, int]]:
    found = {name: Counter(before.get(name, {})) for name in (*before, *later)}
    for name, counts in later.items():
        found[name].update(counts)
    return dict(found)


def _together(before: Mapping[str, Values], later: Mapping[str, Values]) -> dict[str, Values]:
    return {name: before.get(name, Values()) + later.get(name, Values()) for name in (*before, *later)}
