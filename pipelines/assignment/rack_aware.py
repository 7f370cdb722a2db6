"""Finds the executor to keep the next standby of a task: one in a rack that the task is not in yet, of these the one
with least to do."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence


class RackQueues:
    """Executors by rack, those with the smallest loads first. Executors and racks are numbers.

    Executors that are in no known rack may be in the same one. Where racks do not count, all are in one.
    """

    def __init__(self, racks: Sequence[str | None], load: Callable[[int], float]) -> None:
        """``load`` says what an executor would have with one standby more; ``changed`` is called when that changes."""
        numbers = {rack: number for number, rack in enumerate(dict.fromkeys(racks))}
        self.rack_of = [numbers[rack] for rack in racks]
        self.racks = frozenset(numbers.values())
        self._load = load
        self._queues: list[list[tuple[float, int]]] = [[] for _ in numbers]
        self._first: list[tuple[float, int]] = []  # of each rack the least load; entries that no longer hold stay
        for at in range(len(racks)):
            self.changed(at)

    def changed(self, at: int) -> None:
        rack = self.rack_of[at]
        heapq.heappush(self._queues[rack], (self._load(at), at))
        heapq.heappush(self._first, (self._head(rack), rack))

    def least(self, executors: Collection[int], racks: Collection[int]) -> int | None:
        """The executor with the smallest load outside ``executors`` and ``racks``; None if there is none."""
        aside: dict[int, float] = {}
        found = None
        while found is None and self._first:
            load, rack = heapq.heappop(self._first)
            if rack not in aside and load == self._head(rack):
                aside[rack] = load
                if rack not in racks:
                    found = self._least_in(rack, executors)
        for rack, load in aside.items():
            heapq.heappush(self._first, (load, rack))
        return found

    def _least_in(self, rack: int, executors: Collection[int]) -> int | None:
        queue, aside, found = self._queues[rack], dict[int, float](), None
        while found is None and queue:
            load, at = heapq.heappop(queue)
            if at not in aside and load == self._load(at):
                aside[at] = load
                if at not in executors:
                    found = at
        for at, load in aside.items():
            heapq.heappush(queue, (load, at))
        return found

    def _head(self, rack: int) -> float:
        queue = self._queues[rack]
        while queue[0][0] != self._load(queue[0][1]):
            heapq.heappop(queue)
        return queue[0][0]
