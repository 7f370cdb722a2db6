"""Rounds over the executors of a cluster, on each of which something is to be there: a worker that waits, a server."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from weir.infra.spark.executors import Executor
from weir.pipelines.spark.slots import SlotPool


class Rounds:
    """Says when to look at the executors again, and at which of them."""

    def __init__(self, slots: SlotPool, every_s: float) -> None:
        self._slots, self._every_s = slots, every_s
        self._next_s = 0.0
        self._not_before_s: dict[str, float] = {}

    def begins(self) -> bool:
        """Whether it is time for a round, which begins now; however often it is asked."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._every_s
        return True

    def executors(self, but: Collection[str]) -> Iterator[Executor]:
        """Those that are there, without those that are left alone and the ids in ``but``."""
        now_s = time.monotonic()
        for executor in self._slots.executors():
            if executor in but or now_s < self._not_before_s.get(executor, 0.0):
                continue
            if (home := self._slots.executor_at(executor)) is not None:
                yield home

    def leave_alone(self, executor: str, seconds: float) -> None:
        """Visit it again after so long."""
        self._not_before_s[executor] = time.monotonic() + seconds
