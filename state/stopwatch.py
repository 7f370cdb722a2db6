"""Where the time of a thread goes: while a stopwatch runs, each moment belongs to one activity, the innermost that has
been entered. Threads without one measure nothing, so what is entered there costs next to nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum


class Activity(StrEnum):
    """What a worker does for a task."""

    FETCH = "fetch"
    """Reads records of topics, and rows that other tasks have sent."""
    DECODE = "decode"
    """Makes columns of records, and puts rows in order."""
    OPERATORS = "operators"
    """Runs the program."""
    STATE = "state"
    """Opens and settles stores, and writes to them; while a run is profiled, reads of operators as well."""
    ENCODE = "encode"
    """Makes files of rows: of outputs, changelogs, and rows for other tasks."""
    FILES = "files"
    """Makes those files durable."""
    WAITING = "waiting"
    """Waits for the driver."""


@dataclass(frozen=True, kw_only=True)
class NodeWork:
    """What one node of a topology has done."""

    seconds: float = 0.0
    """The stores that it reads included."""
    rows: int = 0
    """How many it has passed on."""

    def __add__(self, other: NodeWork) -> NodeWork:
        return NodeWork(seconds=self.seconds + other.seconds, rows=self.rows + other.rows)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a stopwatch has measured."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """By activity."""
    nodes: Mapping[str, NodeWork] = field(default_factory=dict)
    """By name; part of the time of the operators, and of the state that they read."""


class Stopwatch:
    """Begins with an activity; ``now`` gives seconds."""

    def __init__(self, activity: Activity, now: Callable[[], float] = time.perf_counter) -> None:
        self._now, self._activity, self._since_s = now, activity, now()
        self._entered: list[Activity] = []
        self._seconds: dict[str, float] = {}
        self._nodes: dict[str, NodeWork] = {}

    def enter(self, activity: Activity) -> None:
        """From now on the time belongs to ``activity``, until ``leave``."""
        self._entered.append(self._activity)
        self._to(activity)

    def leave(self) -> None:
        """The time belongs to the activity of before again."""
        self._to(self._entered.pop())

    def _to(self, activity: Activity) -> None:
        before, now_s = self._activity, self._now()
        self._seconds[before] = self._seconds.get(before, 0.0) + now_s - self._since_s
        self._activity, self._since_s = activity, now_s

    def node(self, name: str, work: NodeWork) -> None:
        """A node has done this."""
        before = self._nodes.get(name)
        self._nodes[name] = work if before is None else before + work

    def work(self) -> Work:
        """Everything up to now."""
        self._to(self._activity)
        return Work(seconds=dict(self._seconds), nodes=dict(self._nodes))


_running: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)


def running() -> Stopwatch | None:
    """The stopwatch of this thread."""
    return _running.get()


@contextmanager
def measured(activity: Activity) -> Iterator[Stopwatch]:
    """A stopwatch of this thread for the block, which begins with ``activity``."""
    stopwatch = Stopwatch(activity)
    token = _running.set(stopwatch)
    try:
        yield stopwatch
    finally:
        _running.reset(token)


class _During:
    """A block whose time belongs to one activity; one for each is enough, since it keeps nothing."""

    def __init__(self, activity: Activity) -> None:
        self._activity = activity

    def __enter__(self) -> None:
        if (stopwatch := _running.get()) is not None:
            stopwatch.enter(self._activity)

    def __exit__(self, *error: object) -> None:
        if (stopwatch := _running.get()) is not None:
            stopwatch.leave()


_DURING = {activity: _During(activity) for activity in Activity}


def during(activity: Activity) -> _During:
    """The time of the block belongs to ``activity``, but for what is entered within."""
    return _DURING[activity]
