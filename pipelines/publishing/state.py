"""How a sink is doing, and what a person decides about one that waits for that: what the processes tell one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from weir.pipelines.tasks.run_metrics import Reading

SINK = "stream-sink-metrics"
Action = Literal["skip", "resume", "retry"]


class RefusedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows were refused at once, and why."""

    epoch: int
    """The one that committed them."""
    first_row: int
    """Counts from 0 in the epoch, over all tasks."""
    rows: int
    key: str
    """That of the first of them, for people."""
    reason: str

    def __str__(self) -> str:
        if self.rows == 1:
            return f"row {self.first_row:,} of epoch {self.epoch:,}, key {self.key}: {self.reason}"
        last = self.first_row + self.rows - 1
        return f"rows {self.first_row:,} to {last:,} of epoch {self.epoch:,}, first key {self.key}: {self.reason}"


class Resent(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended that refused rows were sent again."""

    id: str
    """That of the decision; empty for what an earlier run has begun."""
    delivered_rows: int
    error: str = ""
    """Why not all were taken: the first that was refused once more, and why; empty if all were."""


class SinkState(msgspec.Struct, frozen=True, kw_only=True):
    """What a publisher says of its sink."""

    sink: str
    target: str
    """Where its rows go, as ``describe`` shows it."""
    has_begun: bool = True
    """Whether a run has told of it; otherwise the program alone is known."""
    epoch: int = 0
    """The newest epoch that the outside system has rows of."""
    waiting_rows: int = 0
    waiting_bytes: int = 0
    waiting_since_s: float | None = None
    """When the oldest row that waits was committed, in seconds since 1970."""
    published_rows: int = 0
    """Since the run began."""
    refused_rows: int = 0
    """Rows that are aside, since the outside system did not take them."""
    refused_reason: str = ""
    """Why the newest of them are, or were not taken when they were sent again; empty if the run has refused none."""
    refused: tuple[RefusedPlace, ...] = ()
    """The earliest of what is aside."""
    resent: Resent | None = None
    """The newest in this run."""
    error: str = ""
    """Why it waits; empty while it publishes."""
    awaits: Action | None = None
    """The decision that it waits for, if it does not go on by itself."""

    @property
    def doing(self) -> str:
        """What it is doing, for people."""
        if not self.has_begun:
            return "not started yet"
        if self.error:
            return f"waits: {self.error}"
        return "publishing" if self.waiting_rows else f"all {'else ' if self.refused_rows else ''}is published"

    @property
    def summary(self) -> str:
        """What it is doing, and why rows are aside, for people."""
        is_told = self.refused_rows and self.refused_reason and self.has_begun and not self.error
        return f"{self.doing}; refused: {self.refused_reason}" if is_told else self.doing

    @property
    def first_refusal(self) -> str:
        """Which of the rows that are aside is the first, and why; of a run by an earlier version, only why."""
        return str(self.refused[0]) if self.refused else self.refused_reason

    def lag_s(self, now_s: float) -> float:
        """How long the oldest row has waited; 0 if none waits."""
        return 0.0 if self.waiting_since_s is None else max(0.0, now_s - self.waiting_since_s)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What a person decides."""

    sink: str
    action: Action
    """``skip``: put the row aside that is refused. ``resume``: go on with the rows that are in the outbox. ``retry``:
    send the rows again that are aside."""
    id: str = ""
    """By which somebody finds how a ``retry`` has ended."""


def sink_readings(sinks: Sequence[SinkState], now_s: float) -> Iterator[Reading]:
    """The metrics of sinks, as of ``now_s`` in seconds since 1970."""
    for sink in sinks:
        for name, value in (
            ("records-lag", sink.waiting_rows),
            ("bytes-lag", sink.waiting_bytes),
            ("seconds-lag", sink.lag_s(now_s)),
            ("records-published-total", sink.published_rows),
            ("records-refused", sink.refused_rows),
            ("is-failing", float(bool(sink.error))),
        ):
            yield Reading(group=SINK, name=name, tags={"sink-id": sink.sink}, value=value)
