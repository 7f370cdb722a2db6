"""How many tasks of each sub-topology each executor is to run; which ones they are is decided in ``balance``.

A fair share of a sub-topology is its tasks times the executor's part of all slots, and a share is that number rounded
down or up. The same holds for the total of an executor if tasks weigh the same. Roundings that fit both ways exist
always (they are the integral flows of a network whose fractional flow is the fair shares), and of these the one is
found that leaves most tasks where they are, as a flow of least cost by successive shortest paths.

Numbers come as rows, a row a sub-topology with one entry an executor.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise


def even_shares(
    tasks: Sequence[int], slots: Sequence[int], held: Sequence[Sequence[int]], hoped: Sequence[Sequence[int]]
) -> list[list[int]]:
    """The share of each executor in each sub-topology where all tasks weigh the same.

    ``tasks`` has the number of tasks by sub-topology, ``held`` how many of them each executor runs now. Of shares that
    keep equally many, those are preferred that make use of ``hoped``: tasks that nobody runs, with their stores there.

    >>> even_shares([2, 1, 1], [1, 1], [[2, 0], [0, 1], [0, 0]], [[0, 0], [0, 0], [0, 0]])
    [[1, 1], [0, 1], [1, 0]]
    """
    total = sum(slots)
    shares = [[part * count // total for part in slots] for count in tasks]
    rounding = _Rounding(
        supply=[count - sum(row) for count, row in zip(tasks, shares, strict=True)],
        demand=[-(-part * sum(tasks) // total) - sum(row[at] for row in shares) for at, part in enumerate(slots)],
        choices=[[at for at, part in enumerate(slots) if part * count % total] for count in tasks],
        keeps=[[now > low for now, low in zip(*rows, strict=True)] for rows in zip(held, shares, strict=True)],
    )
    # Executors whose total is rounded down get what is missing from a sub-topology that does not exist.
    rounding.add_idle([at for at, part in enumerate(slots) if part * sum(tasks) % total])
    rounding.solve(
        [
            [now + more > low for now, more, low in zip(*rows, strict=True)]
            for rows in zip(held, hoped, shares, strict=True)
        ]
    )
    for row, chosen in zip(shares, rounding.chosen, strict=False):
        for at in chosen:
            row[at] += 1
    return shares


def loaded_shares(
    tasks: int, slots: Sequence[int], held: Sequence[int], hoped: Iterable[int], loads: Sequence[float], cost: float
) -> list[int]:
    """The share of each executor in one sub-topology whose tasks take ``cost`` on average: each of its slots gets the
    fair share, rounded down or up, and executors with the smaller ``loads`` get more.

    As many tasks as possible stay. ``hoped`` has, best first, an executor with the stores for each task that nobody
    runs.

    >>> loaded_shares(5, [1, 1, 1], [3, 2, 0], [], [9.0, 5.0, 0.0], 1.0)
    [2, 2, 1]
    """
    low, high = bounds(tasks, sum(slots))
    shares = [min(max(now, part * low), part * high) for now, part in zip(held, slots, strict=True)]
    missing = tasks - sum(shares)
    for at in hoped:
        if missing > 0 and shares[at] < slots[at] * high:
            shares[at] += 1
            missing -= 1
    step = 1 if missing > 0 else -1

    def turn(at: int) -> tuple[float, int]:
        return step * (loads[at] + (shares[at] - held[at]) * cost) / slots[at], at

    def may_change(at: int) -> bool:
        return shares[at] < slots[at] * high if step > 0 else shares[at] > slots[at] * low

    turns = [turn(at) for at in range(len(slots)) if may_change(at)]
    heapq.heapify(turns)
    for _ in range(abs(missing)):
        _, at = heapq.heappop(turns)
        shares[at] += step
        if may_change(at):
            heapq.heappush(turns, turn(at))
    return shares


def bounds(tasks: int, slots: int) -> tuple[int, int]:
    """The fewest and the most of a sub-topology's tasks for each of all slots."""
    return tasks // slots, -(-tasks // slots)


class _Rounding:
    """Chooses, for every sub-topology, the executors whose share is rounded up.

    A sub-topology chooses ``supply`` executors among its ``choices``, an executor is chosen ``demand`` times. A choice
    that ``keeps`` a task where it is saves a move.
    """

    def __init__(self, supply: list[int], demand: list[int], choices: list[list[int]], keeps: list[list[bool]]) -> None:
        self._supply, self._demand, self._choices, self._keeps = supply, demand, choices, keeps
        self.chosen: list[set[int]] = [set() for _ in supply]
        self._chosen_by: list[set[int]] = [set() for _ in demand]

    def add_idle(self, choices: list[int]) -> None:
        """Add a sub-topology that takes what the others leave."""
        self._supply.append(sum(self._demand) - sum(self._supply))
        self._choices.append(choices)
        self._keeps.append([False] * len(self._demand))
        self.chosen.append(set())

    def solve(self, preferred: list[list[bool]]) -> None:
        """Meet all supplies and demands with as few moves as possible; ``preferred`` choices come first where that
        costs nothing."""
        self._choose_at_once(self._keeps)
        is_filled = False
        while path := self._cheapest_path():
            if path[0] >= 0 and not is_filled:  # from here on no choice saves a move, so any of them will do
                self._choose_at_once(preferred)
                self._choose_at_once([[True] * len(self._demand)] * len(self._supply))
                is_filled = True
                continue
            self._augment(path[1])

    def _choose_at_once(self, eligible: Sequence[Sequence[bool]]) -> None:
        """Choose without changing earlier choices, the executors first that have to be chosen most often."""
        for row, flags in enumerate(eligible):
            if self._supply[row]:
                found = [at for at in self._choices[row] if flags[at] and at not in self.chosen[row]]
                for at in sorted(found, key=lambda at: -self._demand[at]):
                    if self._supply[row] and self._demand[at]:
                        self._choose(row, at)
                        self._supply[row] -= 1
                        self._demand[at] -= 1

    def _choose(self, row: int, at: int) -> None:
        self.chosen[row].add(at)
        self._chosen_by[at].add(row)

    def _cheapest_path(self) -> tuple[int, list[tuple[int, int]]] | None:
        """How many moves one more choice costs, and the choices to make; each but the last is taken from another
        sub-topology, which makes the next. None once all are made."""
        costs = [0 if supply else None for supply in self._supply]
        reached: list[tuple[int, int] | None] = [None] * len(self._demand)  # the cost, and from where
        given_up: list[int | None] = [None] * len(self._supply)
        waiting = deque(row for row, supply in enumerate(self._supply) if supply)
        queued = set(waiting)
        while waiting:
            row = waiting.popleft()
            queued.discard(row)
            base, chosen, keeps = costs[row], self.chosen[row], self._keeps[row]
            assert base is not None
            for at in self._choices[row]:
                cost = base - keeps[at]
                known = reached[at]
                if at in chosen or (known is not None and known[0] <= cost):
                    continue
                reached[at] = cost, row
                for other in sorted(self._chosen_by[at]):
                    through = cost + self._keeps[other][at]
                    before = costs[other]
                    if before is None or through < before:
                        costs[other], given_up[other] = through, at
                        if other not in queued:
                            queued.add(other)
                            waiting.append(other)
        ends = [(found[0], at) for at, found in enumerate(reached) if found is not None and self._demand[at]]
        if not ends:
            return None
        cost, end = min(ends)
        path: list[tuple[int, int]] = []
        step: int | None = end
        while step is not None:
            found = reached[step]
            assert found is not None
            path.append((found[1], step))
            step = given_up[found[1]]
        return cost, path

    def _augment(self, path: list[tuple[int, int]]) -> None:
        (_, end), (first, _) = path[0], path[-1]
        for (row, _), (_, at) in pairwise(path):
            self.chosen[row].discard(at)
            self._chosen_by[at].discard(row)
        for row, at in path:
            self._choose(row, at)
        self._supply[first] -= 1
        self._demand[end] -= 1
