"""What may be uncommitted: how much is, and what each plan of an epoch may add (KIP-892).

There are two limits. One is on bytes, over all tasks. The other is on how long a rollback after a crash takes: the
tasks of a slot roll back one after another, those of other slots at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from weir.pipelines.application import NO_LIMIT, Application
from weir.pipelines.spark.task import Task
from weir.pipelines.tasks.plan import TaskPlan
from weir.state.types import TaskId


@dataclass(frozen=True, kw_only=True)
class UncommittedLimits:
    """The limits of an application; None for no limit."""

    max_bytes: int | None
    max_rollback_us: int | None
    """For each slot."""

    @classmethod
    def of(cls, application: Application) -> UncommittedLimits:
        rollback = application.uncommitted_max_rollback
        return cls(
            max_bytes=None if application.uncommitted_max_bytes == NO_LIMIT else application.uncommitted_max_bytes,
            max_rollback_us=None if rollback is None else round(1e6 * rollback.total_seconds()),
        )

    def reached(self, tasks: Iterable[Task]) -> str | None:
        """Which limit ``tasks`` have reached: "bytes", "rollback", or None."""
        tasks = list(tasks)
        if self.max_bytes is not None and uncommitted_bytes(tasks) >= self.max_bytes:
            return "bytes"
        slowest_us = max(rollback_us_of_slots(tasks).values(), default=0)
        if self.max_rollback_us is not None and slowest_us >= self.max_rollback_us:
            return "rollback"
        return None

    def shared(
        self,
        plans: Sequence[TaskPlan],
        tasks: Mapping[TaskId, Task],
        following: Sequence[Task],
        *,
        is_before_commit: bool = False,
    ) -> list[TaskPlan]:
        """``plans`` with what each may write: the slots in use get equal parts of what is left, and so do the tasks of
        each slot of its part.

        Only plans that take rows write much. ``following`` are tasks of later stages of the epoch, which may take some.
        With ``is_before_commit`` all that is uncommitted is going to be committed before anything is written.
        """
        taking = {plan.task for plan in plans if plan.ranges or plan.blobs}
        if not taking:
            return list(plans)
        sharing = Counter([*(tasks[task].slot for task in taking), *(task.slot for task in following)])
        uncommitted = () if is_before_commit else tasks.values()
        bytes_left = 0 if self.max_bytes is None else self.max_bytes - uncommitted_bytes(uncommitted)
        rollback_us = rollback_us_of_slots(uncommitted)

        def limits(slot: int, count: int) -> tuple[int | None, int | None]:
            us_left = 0 if self.max_rollback_us is None else self.max_rollback_us - rollback_us.get(slot, 0)
            return (
                self.max_bytes and max(1, bytes_left // len(sharing) // count),
                self.max_rollback_us and max(1, us_left // count),
            )

        limits_of = {slot: limits(slot, count) for slot, count in sharing.items()}

        def limited(plan: TaskPlan) -> TaskPlan:
            max_bytes, max_us = limits_of[tasks[plan.task].slot]
            return structs.replace(plan, max_uncommitted_bytes=max_bytes, max_rollback_us=max_us)

        return [limited(plan) if plan.task in taking else plan for plan in plans]


def uncommitted_bytes(tasks: Iterable[Task]) -> int:
    """What a rollback of all tasks would undo, in bytes."""
    return sum(task.gauges.get("uncommitted_bytes", 0) for task in tasks if task.is_ahead)


def rollback_us_of_slots(tasks: Iterable[Task]) -> dict[int, int]:
    """By slot, about how long its tasks would take to roll back, in microseconds."""
    found: dict[int, int] = {}
    for task in tasks:
        if task.is_ahead:
            found[task.slot] = found.get(task.slot, 0) + task.gauges.get("rollback_us", 0)
    return found
