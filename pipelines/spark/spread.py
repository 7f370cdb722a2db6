"""Which slot each task runs in: from the beginning, after a restore that moves it, and when a slot has more work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from weir.state.types import TaskId

AHEAD_S = 5.0
"""How far ahead work is looked at, besides what waits already."""
BUSY_S = 0.7 * AHEAD_S
"""Only tasks of slots that have so much work are moved to others."""
GAIN = 0.1
"""By which part of its work a move must relieve the busiest slot, so that what is measured a little differently later
moves nothing back."""


def spread(tasks: Iterable[TaskId], slots: int, costs: Mapping[TaskId, float]) -> dict[TaskId, int]:
    """The slot of each task: numbers of tasks differ by one at most, and ``costs``, as far as they are known, by as
    little as that leaves room for.

    >>> slots = spread([TaskId(0, 0), TaskId(0, 1), TaskId(1, 0)], 2, {TaskId(0, 1): 9.0, TaskId(0, 0): 2.0})
    >>> {str(task): slot for task, slot in slots.items()}
    {'0_1': 0, '0_0': 1, '1_0': 1}
    """
    waiting = sorted(tasks, key=lambda task: (-costs.get(task, 0.0), task.sub_topology, task.partition))
    loads, found = [0.0] * slots, dict[TaskId, int]()
    for first in range(0, len(waiting), slots):  # each slot gets one task, the costliest where least is
        freest_first = sorted(range(slots), key=loads.__getitem__)
        for task, slot in zip(waiting[first : first + slots], freest_first, strict=False):
            loads[slot] += costs.get(task, 0.0)
            found[task] = slot
    return found


def freest(task: TaskId, slot_of: Mapping[TaskId, int], slots: int, costs: Mapping[TaskId, float]) -> int:
    """The slot whose tasks cost least, other than that of ``task`` if there is another one; of several, the one with
    the fewest tasks.

    >>> freest(TaskId(0, 0), {TaskId(0, 0): 0, TaskId(0, 1): 1, TaskId(0, 2): 2}, 3, {TaskId(0, 1): 0.5})
    2
    """
    loads = {slot: (0.0, 0) for slot in range(slots) if slot != slot_of[task]}
    for other, slot in slot_of.items():
        if slot in loads:
            cost, tasks = loads[slot]
            loads[slot] = cost + costs.get(other, 0.0), tasks + 1
    return min(loads, key=lambda slot: (*loads[slot], slot), default=slot_of[task])


def relieved(
    slot_of: Mapping[TaskId, int], slots: int, costs: Mapping[TaskId, float], resting: Collection[TaskId]
) -> dict[TaskId, int]:
    """Which of the tasks that are ``resting`` move into slots that have none: of the slot whose tasks cost most, every
    second one by cost, for one empty slot after another. A slot's only task stays.

    >>> tasks = {TaskId(0, 0): 0, TaskId(0, 1): 0, TaskId(0, 2): 1}
    >>> relieved(tasks, 3, {TaskId(0, 0): 0.5, TaskId(0, 1): 0.4}, tasks)
    {TaskId(sub_topology=0, partition=1): 2}
    """
    held: dict[int, list[TaskId]] = {slot: [] for slot in range(slots)}
    for task in sorted(slot_of, key=lambda task: (-costs.get(task, 0.0), task.sub_topology, task.partition)):
        held[slot_of[task]].append(task)
    found = dict[TaskId, int]()
    for empty in [slot for slot in range(slots) if not held[slot]]:
        shared = [slot for slot in held if len(held[slot]) > 1 and any(task in resting for task in held[slot])]
        if not shared:
            break
        fullest = max(
            shared, key=lambda slot: (sum(costs.get(task, 0.0) for task in held[slot]), len(held[slot]), -slot)
        )
        movable = [task for task in held[fullest] if task in resting]
        held[empty] = movable[1::2] if len(movable) == len(held[fullest]) else movable[::2]
        held[fullest] = [task for task in held[fullest] if task not in held[empty]]
        found |= dict.fromkeys(held[empty], empty)
    return found


def evened(slot_of: Mapping[TaskId, int], slots: int, work_s: Mapping[TaskId, float]) -> dict[TaskId, int]:
    """Which tasks move to other slots so that the busiest has less to do.

    ``work_s`` says for how many seconds each task will keep its slot at work, by what waits for it and by what comes.

    One task after another leaves the busiest slot for the one with least work, as long as that slot is busy and a move
    brings much: the task that leaves the two most alike.

    >>> tasks = {TaskId(0, 0): 0, TaskId(0, 1): 0, TaskId(0, 2): 1, TaskId(0, 3): 1}
    >>> evened(tasks, 2, dict(zip(tasks, [7.0, 2.0, 2.0, 2.0])))
    {TaskId(sub_topology=0, partition=1): 1}
    """
    found, held = dict[TaskId, int](), dict(slot_of)
    loads = [0.0] * slots
    for task, slot in held.items():
        loads[slot] += work_s.get(task, 0.0)
    while slots > 1:
        busiest, freest = loads.index(max(loads)), loads.index(min(loads))
        greatest = {
            task: max(loads[busiest] - seconds, loads[freest] + seconds)
            for task, slot in held.items()
            if slot == busiest and (seconds := work_s.get(task, 0.0))
        }
        if not greatest or loads[busiest] < BUSY_S or min(greatest.values()) > (1 - GAIN) * loads[busiest]:
            break
        task = min(greatest, key=lambda task: (greatest[task], task.sub_topology, task.partition))
        loads[busiest] -= work_s[task]
        loads[freest] += work_s[task]
        found[task] = held[task] = freest
    return found


def shared_out(
    executor_of: Sequence[str], there: Sequence[str], resting: Collection[int], empty: Collection[int] = ()
) -> dict[int, str]:
    """Which of the slots that are ``resting`` go to another one of the executors that are ``there``, so that their
    numbers of slots differ by one at most, or by as little as that allows; first those without tasks, ``empty``.

    ``executor_of`` has the executor of each slot. Slots of an executor that is gone are on their way to another one
    already.

    >>> shared_out(["0", "0", "0", "1"], ["1", "0", "2"], {1, 2, 3})
    {2: '2'}
    """
    found, held = dict[int, str](), list(executor_of)
    while len(there) > 1:
        counts = Counter({executor: held.count(executor) for executor in there})
        (fewest, least), most = min(counts.items(), key=lambda each: each[1]), max(counts.values())
        movable = [slot for slot in resting if counts[held[slot]] == most and slot not in found]
        if most - least < 2 or not movable:
            break
        slot = max(movable, key=lambda slot: (slot in empty, slot))
        found[slot] = held[slot] = fewest
    return found
