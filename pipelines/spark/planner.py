"""Plans: which offsets each task reads and which rows it may take in the next epoch (PROTOCOL 9 to 11 and 31).

Pure functions of the tasks' state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate

from weir.pipelines.application import Application
from weir.pipelines.spark.frontiers import Frontiers
from weir.pipelines.spark.pace import NO_SHARES, Share
from weir.pipelines.spark.task import BEFORE_ALL_MS, Task
from weir.pipelines.spark.task_state import TaskState
from weir.pipelines.tasks.dead_letters import Letter
from weir.pipelines.tasks.order import merge_clock
from weir.pipelines.tasks.plan import OffsetRange, TaskPlan
from weir.state.types import StateId, TaskId, TopicPartition

AHEAD = 1.5
"""How much further than the slowest partition the others may come in one epoch: their pace is only an estimate."""

MOST_LETTERS, MOST_LETTER_BYTES = 1_000, 1 << 20
"""How many dead letters one epoch of a task takes at most, since a plan holds them."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much one epoch may take."""

    max_records: int
    """Records per epoch, over all tasks; of each topic, where a task reads several."""
    max_bytes: int
    """Bytes of keys and values per epoch, over all tasks; of each topic, where a task reads several."""
    max_skew_ms: int | None
    """How far one partition may run ahead of another in event time while input is behind; None: any distance."""
    max_task_idle_ms: int | None = 0
    """How long a task waits for records of a topic that has none while its other topics have some; with None it does
    not even wait for records that are on the brokers and have not been read yet."""
    max_pending_bytes: int = 256 << 20
    """Per source: a task gets no plan while this much of what it has sent waits, unless others wait for it."""
    passes_wall_clock: bool = True
    """Whether what processors do by the wall clock is due."""

    def records_of(self, task: TaskId, shares: Mapping[TaskId, Share]) -> int:
        """How many records of a topic ``task`` may take; all that an epoch may, if it has no share."""
        return self.max_records if (share := shares.get(task)) is None else share.records

    @classmethod
    def of(cls, application: Application, *, max_records: int, max_bytes: int) -> Limits:
        """The limits of a run of ``application``, which itself says how its topics are aligned in time."""
        return cls(
            max_records=max_records,
            max_bytes=max_bytes,
            max_skew_ms=_in_ms(application.max_skew),
            max_task_idle_ms=_in_ms(application.max_task_idle),
        )


def plan_task(
    task: Task,
    *,
    state: StateId,
    ends: Mapping[TopicPartition, int],
    frontiers: Frontiers,
    limits: Limits,
    now_ms: int,
    until_time_ms: int | None,
    shares: Mapping[TaskId, Share] = NO_SHARES,
    is_strict: bool = False,
    is_visit: bool = False,
    is_live: bool = False,
    is_all_read: bool = False,
    end_time_ms: int | None = None,
    stops: bool = False,
) -> TaskPlan | None:
    """The task's next epoch, or None when it has nothing to do.

    With ``is_visit``, ``stops`` or ``end_time_ms`` there always is one; the last is where stream time moves once the
    input has ended, and with ``stops`` it reads nothing and closes the processors. A task that waits to try a record
    again takes no row, but what is due by the wall clock happens. ``is_strict``: whether no record is
    read beyond ``until_time_ms``, not even one. ``is_live``: whether a topic without further records counts as idle.
    ``is_all_read``: whether this epoch leaves no records in any topic, so that a task downstream of others is idle too.
    """
    if task.letters and not task.to_log and not stops and end_time_ms is None:
        return TaskPlan(
            task=task.id,
            instance=task.instance,
            state=state,
            expected=task.current,
            committed=task.committed,
            now_ms=now_ms,
            passes_wall_clock=limits.passes_wall_clock,
            letters=_first(task.letters),
        )
    waits, partition = limits.max_task_idle_ms is not None, task.id.partition
    busy = {topic for topic in task.topics if partition_lag(task, topic, ends) > 0}
    holds_back = task.waits_for_idle_topics(busy, now_ms, limits.max_task_idle_ms or 0)
    is_due = task.next_punctuation_ms is not None and task.next_punctuation_ms <= now_ms
    is_wanted = is_due or is_visit or stops or not task.visited or end_time_ms is not None
    if not (is_wanted or busy or task.pending):
        return None
    takes_rows = not stops and now_ms >= task.waits_until_ms
    ranges = []
    for topic in task.topics if busy and takes_rows and not holds_back else ():
        start = task.positions[topic][partition]
        available = ends.get((topic, partition), start)
        end = min(available, start + limits.records_of(task.id, shares))
        is_ahead = (
            until_time_ms is not None
            and (is_strict or limits.max_skew_ms is None)
            and (merge_ms := frontiers.merge_ms(task, topic)) is not None
            and merge_ms > until_time_ms
        )
        if end > start and not is_ahead and not (waits and frontiers.is_held(task, topic)):
            ranges.append(
                OffsetRange(
                    topic=topic,
                    partition=partition,
                    start=start,
                    end=end,
                    available=available if waits and not frontiers.is_given_up(task) else None,
                    merge_ms=frontiers.merge_ms(task, topic),
                )
            )
    marks = frontiers.marks(task, reads={wanted.topic for wanted in ranges}) if waits else ()
    blobs = frontiers.takeable(task, marks) if takes_rows else ()
    if not (ranges or blobs or is_wanted):
        return None
    has_all = not marks and len(blobs) == len(task.pending)
    return TaskPlan(
        task=task.id,
        instance=task.instance,
        state=state,
        expected=task.current,
        committed=task.committed,
        now_ms=now_ms,
        ranges=tuple(ranges),
        until_time_ms=until_time_ms,
        is_strict=is_strict,
        blobs=blobs,
        marks=marks,
        max_bytes=share.size_bytes if (share := shares.get(task.id)) else limits.max_bytes,
        budget_ms=share.budget_ms if share else None,
        batch_rows=share.batch_rows if share else None,
        tried=task.waiting.tried if takes_rows and task.waiting is not None else 0,
        end_time_ms=end_time_ms,
        sought=task.sought,
        to_log=task.to_log,
        passes_wall_clock=limits.passes_wall_clock,
        stops=stops,
        lets_idle=not stops and is_live and has_all and (is_all_read or (bool(task.topics) and not busy)),
    )


def aligned_until(tasks: Iterable[Task], ends: Mapping[TopicPartition, int], max_skew_ms: int | None) -> int | None:
    """The time that no partition should pass in this epoch: that of the partition furthest behind, plus the skew.

    Only partitions with lag count. As long as one of them has never been read, its time is unknown, and each takes only
    one record. None without a limit, and when fewer than two partitions have lag.
    """
    if max_skew_ms is None:
        return None
    behind = [(task, topic) for task in tasks for topic in task.topics if partition_lag(task, topic, ends) > 0]
    if len(behind) < 2:
        return None
    times = [task.source_times_ms.get(f"{topic}-{task.id.partition}", BEFORE_ALL_MS) for task, topic in behind]
    return min(times) + max_skew_ms


def paced_until(
    tasks: Iterable[Task],
    ends: Mapping[TopicPartition, int],
    limits: Limits,
    shares: Mapping[TaskId, Share] = NO_SHARES,
) -> int | None:
    """The merge time that no partition should pass in this epoch, where rows of all meet downstream: about as far as
    the slowest of them will come, so that little waits.

    Only partitions with lag count. None while the merge time of one of them is not known, or no pace is.
    """
    behind = [(task, topic) for task in tasks for topic in task.topics if partition_lag(task, topic, ends) > 0]
    times = [task.clocks.get(merge_clock(topic)) for task, topic in behind]
    reached = [
        time_ms + int(AHEAD * task.pace_ms[topic] * limits.records_of(task.id, shares))
        for (task, topic), time_ms in zip(behind, times, strict=True)
        if time_ms is not None and topic in task.pace_ms
    ]
    return None if len(behind) < 2 or None in times else min(reached, default=None)


def partition_lag(task: Task, topic: str, ends: Mapping[TopicPartition, int]) -> int:
    """Offsets between the task's position and the partition's end."""
    partition = task.id.partition
    position = task.positions[topic][partition]
    end = ends.get((topic, partition), position)
    return end - position if end > position else 0


def reads_all(
    tasks: Iterable[Task],
    ends: Mapping[TopicPartition, int],
    limits: Limits,
    shares: Mapping[TaskId, Share] = NO_SHARES,
) -> bool:
    """Whether an epoch of ``tasks`` within ``limits`` reads everything that their topics hold."""
    return all(
        task.state is TaskState.RUNNING
        and ((lag := partition_lag(task, topic, ends)) == 0 or lag <= limits.records_of(task.id, shares))
        for task in tasks
        for topic in task.topics
    )


def total_lag(tasks: Iterable[Task], ends: Mapping[TopicPartition, int]) -> int:
    """Offsets that all tasks together still have to read."""
    return sum([partition_lag(task, topic, ends) for task in tasks for topic in task.topics])


def _first(letters: Sequence[Letter]) -> tuple[Letter, ...]:
    """As many as one epoch takes, at least one."""
    sizes = [
        len(letter.key or b"") + len(letter.value or b"") + len(letter.row or b"") for letter in letters[:MOST_LETTERS]
    ]
    fitting = sum(total <= MOST_LETTER_BYTES for total in accumulate(sizes))
    return tuple(letters[: max(1, fitting)])


def _in_ms(duration: timedelta | None) -> int | None:
    return None if duration is None else duration // timedelta(milliseconds=1)
