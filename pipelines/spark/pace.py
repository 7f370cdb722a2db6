"""How fast a run reads, and how many records each task may take in the next epoch."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec

from weir.state.types import TaskId

RATE_S = 10.0
"""The rate covers the epochs that ended within this many seconds."""
COMMIT_SHARE = 0.8
"""The share of the commit interval that an epoch aims at while input is behind: one large epoch combines more records
per key than several small ones, and pays for starting only once."""
CATCH_UP_SHARE = 0.25
"""An epoch aims at this share of the time that all waiting records will take, if that is more: results are late by all
that time anyway, and longer epochs catch up sooner where commits are near each other."""
SHORTEST_S, LONGEST_S = 0.05, 0.8
"""No epoch aims at less, nor at more: a task that has read all it may waits for the others until the epoch ends. It
takes longer where tasks need much time beside their records."""
FIRST_RECORDS = 100_000
"""What the tasks share in their first epochs, before anything is known of them."""
FEWEST_RECORDS = 1_000
"""A task that has taken no longer than its time is never asked for fewer: starting would take most of the epoch."""
FIXED_GROWTH = 1.1
"""By how much what an epoch takes without its records is taken to have grown at most: the longest of these times are
pauses of the machine."""
LEAST_BUDGET = 0.25
"""The share of the time of an epoch that is left to the tasks at least, whatever else an epoch takes."""


class Took(msgspec.Struct, frozen=True, gc=False):
    """What a task's part of an epoch took."""

    records: int
    """Read from topics."""
    seconds: float
    function_seconds: float = 0.0
    """How long it was in loops over records that call functions."""
    ran_out_of_time: bool = False
    sent_rows: int = 0
    """Of what other tasks have sent."""

    @property
    def rows(self) -> int:
        """All that were processed."""
        return self.records + self.sent_rows

    def __add__(self, other: Took) -> Took:
        """What two parts took that are taken up together, one of them late."""
        return Took(
            self.records + other.records,
            self.seconds + other.seconds,
            self.function_seconds + other.function_seconds,
            ran_out_of_time=self.ran_out_of_time or other.ran_out_of_time,
            sent_rows=self.sent_rows + other.sent_rows,
        )


class Share(msgspec.Struct, frozen=True, gc=False):
    """What a task may take in the next epoch."""

    records: int
    size_bytes: int
    """Bytes of keys and values, of each topic partition."""
    budget_ms: int
    batch_rows: int | None
    """How many records to begin with, by what they take; None if that is not known."""
    is_behind: bool
    """Whether the task has records to read."""


NO_SHARES: Mapping[TaskId, Share] = {}
"""Each task may take what the limits allow."""


class Shares(Mapping[TaskId, Share]):
    """The shares of all tasks; that of one that is not behind is found only once somebody asks, and kept then."""

    def __init__(
        self, behind: Mapping[TaskId, Share], tasks: Collection[TaskId], other: Callable[[TaskId], Share]
    ) -> None:
        """``behind`` has the shares of the ``tasks`` that are, and ``other`` finds that of another one."""
        self._known, self._tasks, self._other = dict(behind), tasks, other

    def __getitem__(self, task: TaskId) -> Share:
        if (found := self._known.get(task)) is None:
            if task not in self._tasks:
                raise KeyError(task)
            found = self._known[task] = self._other(task)
        return found

    def __iter__(self) -> Iterator[TaskId]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)


class Pace:
    """What the epochs so far say about the next one."""

    def __init__(
        self,
        commit_interval_s: float,
        slot_of: Callable[[TaskId], int],
        now_s: Callable[[], float] = time.monotonic,
        *,
        max_records: int,
        max_bytes: int,
    ) -> None:
        """``slot_of``: the slot that a task is in now. ``max_records``, ``max_bytes``: what all tasks together may read
        in an epoch."""

        self.records_in = 0
        """Records read in this run."""
        self.seconds = 0.0
        """How long the newest epoch took, with or without input."""
        self._slot_of, self._now_s = slot_of, now_s
        self._max_records, self._max_bytes = max_records, max_bytes
        self.change(commit_interval_s)
        self._records: dict[TaskId, int] = {}
        """What each task may take, once it has taken all that it might."""
        self._costs_s: dict[TaskId, float] = {}
        """What a record of each task takes, by its newest epoch with many."""
        self._fixed_s: dict[TaskId, float] = {}
        """What an epoch takes of a task, however few its records."""
        self._driving_s = 0.0
        """What the newest epoch took beside the work of the slot that worked longest."""
        self._beside_s: Mapping[int, float] = {}
        """What tasks that were not behind took of it, by slot."""
        self._shares: Mapping[TaskId, Share] = NO_SHARES
        self._epochs: deque[tuple[float, int, float]] = deque()
        """When the newest epochs with input ended, their records and seconds."""

    def change(self, commit_interval_s: float) -> None:
        """From now on commits are so far apart."""
        self._interval_s = commit_interval_s

    @property
    def records_per_s(self) -> float:
        """Records over the time of the epochs that had some, within the last ``RATE_S``; 0 when there were none."""
        while self._epochs and self._epochs[0][0] < self._now_s() - RATE_S:
            self._epochs.popleft()
        seconds = sum(seconds for _, _, seconds in self._epochs)
        return sum(records for _, records, _ in self._epochs) / seconds if seconds else 0.0

    def shares(self, lags: Mapping[TaskId, int], priorities: Mapping[TaskId, int]) -> Mapping[TaskId, Share]:
        """What each task may take in the next epoch, by how many records it is behind.

        Those behind divide the time of their slot by their ``priorities`` (1 if not given). The most records of an
        epoch are divided evenly among all, then what comes to the tasks of a slot by priority among these; bytes follow
        the records. What one does not need goes to the others. Tasks that are not behind, which may have rows of other
        tasks to process, are only kept from taking for ever.
        """
        behind = {task: lag for task, lag in lags.items() if lag}
        target_s = self._target_s(sum(behind.values()))
        budgets = dict[TaskId, float]()
        of_slots: dict[int, list[TaskId]] = {}
        for task in behind:
            of_slots.setdefault(self._slot_of(task), []).append(task)
        for slot, tasks in of_slots.items():
            left_s = target_s - self._driving_s - self._beside_s.get(slot, 0.0)
            budgets |= divided(
                max(LEAST_BUDGET * target_s, left_s),
                {task: self._need_s(task, behind[task]) for task in tasks},
                {task: priorities.get(task, 1) for task in tasks},
            )
        first = FIRST_RECORDS // max(1, len(behind)) + 1
        wanted = {task: self._records.get(task, first) for task in behind}
        needs = {task: min(lag, wanted[task]) for task, lag in behind.items()}
        evenly = divided(self._max_records, needs, dict.fromkeys(behind, 1), others=len(lags) - len(behind))
        most = by_priority(evenly, needs, of_slots.values(), priorities)
        even_bytes = self._max_bytes // max(1, len(behind))
        sizes = {
            task: even_bytes * taken(most[task], need) // taken(evenly[task], need) for task, need in needs.items()
        }
        shares = {
            task: self._share(task, min(wanted[task], most[task]), sizes[task], budget_s, is_behind=True)
            for task, budget_s in budgets.items()
        }
        least, half_s = self._max_records / max(1, len(lags)), target_s / 2

        def other(task: TaskId) -> Share:
            return self._share(task, min(self._records.get(task, first), least), even_bytes, half_s, is_behind=False)

        self._shares = Shares(shares, lags.keys(), other)
        return self._shares

    def _target_s(self, waiting: int) -> float:
        """How long the next epoch is to take, with so many records to read."""
        rate = self.records_per_s
        waiting_s = waiting / rate if rate else 0.0
        return min(LONGEST_S, max(SHORTEST_S, COMMIT_SHARE * self._interval_s, CATCH_UP_SHARE * waiting_s))

    def _share(self, task: TaskId, records: float, size_bytes: int, budget_s: float, *, is_behind: bool) -> Share:
        enough_s = self._enough(task, budget_s)
        return Share(
            records=max(1, int(records)),
            size_bytes=max(1 << 10, size_bytes),
            budget_ms=max(1, round(1000 * enough_s)),
            batch_rows=self._batch(task, enough_s),
            is_behind=is_behind,
        )

    def took(self, seconds: float, tasks: Mapping[TaskId, Took], *, is_whole: bool = True) -> None:
        """An epoch has taken ``seconds``, and each of its tasks its part of that in its slot.

        Not ``is_whole`` if a task was left with its plan or is late: what the rest took is then unknown.
        """
        self.seconds = seconds
        working_s, beside_s = defaultdict[int, float](float), defaultdict[int, float](float)
        for task, each in tasks.items():
            slot, share = self._slot_of(task), self._shares.get(task)
            working_s[slot] += each.seconds
            is_behind = share is not None and share.is_behind
            if share is not None and (is_behind or each.ran_out_of_time):
                self._learn(task, each, share)
            if not is_behind:
                beside_s[slot] += each.seconds
        if is_whole:
            self._driving_s = max(0.0, seconds - max(working_s.values(), default=0.0))
            self._beside_s = beside_s
        if records := sum(each.records for each in tasks.values()):
            self.records_in += records
            self._epochs.append((self._now_s(), records, seconds))

    def _learn(self, task: TaskId, took: Took, share: Share) -> None:
        if not took.rows:
            return
        budget_s, seconds = share.budget_ms / 1000, max(1e-6, took.seconds)
        self._learn_fixed(task, took)
        if not took.ran_out_of_time:
            if task not in self._records and seconds < 2 * self._interval_s:
                # Cold: connections, imports. It says little about the next.
                self._records[task] = share.records * 4
                return
            if took.records < 0.8 * share.records:
                return
        fixed_s = self._fixed_s.get(task, 0.0)
        on_records_s = max(1e-6, seconds - fixed_s)
        self._costs_s[task] = on_records_s / took.rows
        scale = min(4.0, (self._enough(task, budget_s) - fixed_s) / on_records_s)
        if not took.ran_out_of_time:
            self._records[task] = max(min(share.records, FEWEST_RECORDS), int(took.records * max(0.5, scale)))
        elif took.records:
            self._records[task] = max(1, int(took.records * scale))

    def _learn_fixed(self, task: TaskId, took: Took) -> None:
        """From few records, or if it was less than thought: decoding, operators and files take longer with more.

        Where no functions are called nobody knows what of it is due to the records, so it counts up to ``LONGEST_S``:
        an epoch is then twice as long at most as it must be. The first one is cold, and says nothing.
        """
        rest_s, known_s = took.seconds - took.function_seconds, self._fixed_s.get(task)
        if took.rows <= FEWEST_RECORDS and (took.ran_out_of_time or task in self._records):
            grown_s = math.inf if known_s is None else FIXED_GROWTH * known_s
            most_s = math.inf if took.ran_out_of_time else max(LONGEST_S, known_s or 0.0)
            self._fixed_s[task] = min(rest_s, grown_s, most_s)
        elif known_s is not None:
            self._fixed_s[task] = min(rest_s, known_s)

    def _enough(self, task: TaskId, budget_s: float) -> float:
        """``budget_s``, or what leaves as much time to records as goes elsewhere, up to ``LONGEST_S``."""
        fixed_s = self._fixed_s.get(task, 0.0)
        return max(budget_s, fixed_s + min(fixed_s, LONGEST_S))

    def _need_s(self, task: TaskId, records: int) -> float:
        """The time for so many records; without end if that is not known."""
        return records * self._costs_s.get(task, math.inf) + self._fixed_s.get(task, 0.0)

    def _batch(self, task: TaskId, budget_s: float) -> int | None:
        """Half of the records that fit, in case they take longer; all of them if another batch would cost too much."""
        if (cost_s := self._costs_s.get(task)) is None:
            return None
        fixed_s = self._fixed_s.get(task, 0.0)
        batches = 2 if 4 * fixed_s < budget_s else 1
        return max(1, int((budget_s - fixed_s) / batches / cost_s))


def divided(
    total: float, needs: Mapping[TaskId, float], weights: Mapping[TaskId, int], others: int = 0
) -> dict[TaskId, float]:
    """``total``, of seconds or records, by weight, where what one does not need goes to those that need more. Besides,
    there are ``others`` of weight 1 that need nothing."""
    found, left = dict[TaskId, float](), total
    wanting = [(task, need, weights[task]) for task, need in needs.items()]
    while wanting:
        weight = sum([each for _, _, each in wanting]) + others
        parts = [(task, need, each, left * each / weight) for task, need, each in wanting]
        wanting = [(task, need, each) for task, need, each, part in parts if need > part]
        is_last = len(wanting) == len(parts) and not others
        found |= {task: part for task, need, _, part in parts if is_last or need <= part}
        if is_last:
            break
        left -= sum([need for _, need, _, part in parts if need <= part])
        others = 0
    return found


def by_priority(
    evenly: Mapping[TaskId, float],
    needs: Mapping[TaskId, float],
    slots: Iterable[Collection[TaskId]],
    priorities: Mapping[TaskId, int],
) -> dict[TaskId, float]:
    """``evenly``, but what the tasks of a slot would take of it is divided among them by priority (1 if not given)."""
    found = dict(evenly)
    for tasks in slots:
        total = sum([min(needs[task], evenly[task]) for task in tasks])
        needs_here = {task: needs[task] for task in tasks}
        parts = divided(total, needs_here, {task: priorities.get(task, 1) for task in tasks})
        for task, part in parts.items():
            found[task] = part if part < needs[task] else max(part, evenly[task])
    return found


def taken(most: float, need: float) -> int:
    """The records that a task takes of the most it may, at least one."""
    return max(1, int(min(most, need)))
