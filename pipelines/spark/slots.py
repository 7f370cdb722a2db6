"""Slots: cached one-row RDDs, one Python worker each, so that a task meets the same warm worker every epoch.

A plain two-partition RDD lets the two workers swap slots at random, since Spark hands out idle workers first
come, first served; consumers then seek and prefetch in vain. Spark keys its worker pools by environment, so each
slot's RDD carries a variable of its own and the job runs over their union (docs/adr/0002).
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


def assign(tasks: Sequence[TaskId], slots: int) -> dict[TaskId, int]:
    """Tasks to slots, each sub-topology spread evenly; the same tasks give the same answer, so state stays put."""
    return {task: (task.partition + task.sub_topology) % slots for task in tasks}


class SlotPool:
    """Runs one function over the slots of an application, one Spark job a call.

    Made with its workers started, the application imported and the consumers connected.
    """

    def __init__(
        self, spark_context: SparkContext, slots: int, settings: WorkerSettings, assignment: Mapping[TaskId, int]
    ) -> None:
        self._context, self._settings, self._assignment = spark_context, settings, assignment
        self._slots = [spark_context.parallelize([slot], 1).persist() for slot in range(slots)]
        self._collect(
            run_warm_up, {slot: [task for task, at in assignment.items() if at == slot] for slot in range(slots)}
        )

    def run(self, plans: Sequence[TaskPlan]) -> list[Receipt]:
        """The receipts of ``plans``, in no particular order.

        Raises:
            Py4JJavaError: A slot failed as often as Spark tries; the same plans may be run again.
        """
        return self._each(run_plans, plans)

    def settle(self, requests: Sequence[SettleRequest]) -> list[tuple[TaskId, bool]]:
        """Whether each task held its committed state; its undo log is gone then."""
        return self._each(run_settles, requests)

    def _each(
        self,
        function: Callable[[WorkerSettings, Sequence[Work], Iterable[object]], Iterator[Answer]],
        items: Sequence[Work],
    ) -> list[Answer]:
        shares: dict[int, list[Work]] = {}
        for item in items:
            shares.setdefault(self._assignment[item.task], []).append(item)
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
