"""Slots: cached one-row RDDs, one Python worker each, so that a task meets the same warm worker every epoch.

With a plain two-partition RDD the two workers would swap slots at random, since Spark hands out idle workers first
come, first served; consumers would seek, and what they had prefetched would be wasted. Spark keys its worker pools by
environment, so each slot's RDD carries a variable of its own and the job runs over their union (docs/adr/0002).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from pyspark import SparkContext

from weir.pipelines.spark.worker import SettleRequest, WorkerSettings, run_plans, run_settles, run_warm_up
from weir.pipelines.tasks.plan import Receipt, TaskPlan
from weir.state.types import TaskId

Item = TypeVar("Item", TaskPlan, SettleRequest, TaskId)
Work = TypeVar("Work", TaskPlan, SettleRequest)
Answer = TypeVar("Answer")
SLOT_VARIABLE = "_WEIR_SLOT"


def slot_of(task: TaskId, slots: int) -> int:
    """The slot that a task belongs to: each sub-topology is spread evenly, and a task always gets the same answer, so
    state stays where it is."""
    return (task.partition + task.sub_topology) % slots


class SlotPool:
    """Runs one function over the slots of an application, one Spark job per call.

    Once it is made, the workers are started, the application is imported and the consumers are connected.
    """

    def __init__(
        self, spark_context: SparkContext, slots: int, settings: WorkerSettings, tasks: Sequence[TaskId]
    ) -> None:
        self._context, self._settings = spark_context, settings
        self._slots = [spark_context.parallelize([slot], 1).persist() for slot in range(slots)]
        self._collect(
            run_warm_up, {slot: [task for task in tasks if slot_of(task, slots) == slot] for slot in range(slots)}
        )

    def run(self, plans: Sequence[TaskPlan]) -> list[Receipt]:
        """The receipts of ``plans``, in no particular order.

        Raises:
            Py4JJavaError: A slot failed as many times as Spark tries; the same plans may be run again.
        """
        return self._each(run_plans, plans)

    def settle(self, requests: Sequence[SettleRequest]) -> list[tuple[TaskId, bool]]:
        """Whether each task held its committed state, in which case its undo log is gone now."""
        return self._each(run_settles, requests)

    def _each(
        self,
        function: Callable[[WorkerSettings, Sequence[Work], Iterable[object]], Iterator[Answer]],
        items: Sequence[Work],
    ) -> list[Answer]:
        shares: dict[int, list[Work]] = {}
        for item in items:
            shares.setdefault(slot_of(item.task, len(self._slots)), []).append(item)
        return self._collect(function, shares)

    def _collect(
        self,
        function: Callable[[WorkerSettings, Sequence[Item], Iterable[object]], Iterator[Answer]],
        shares: Mapping[int, Sequence[Item]],
    ) -> list[Answer]:
        parts = []
        for slot, share in sorted(shares.items()):
            self._context.environment[SLOT_VARIABLE] = str(slot)
            part = self._slots[slot].mapPartitions(partial(function, self._settings, share))
            part._jrdd  # binds the environment of this moment  # noqa: B018
            parts.append(part)
        return (self._context.union(parts) if len(parts) > 1 else parts[0]).collect()
