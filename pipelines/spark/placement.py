"""Which executor of a cluster each task runs on as a run begins: where its stores are or, if nobody has them, a standby
is, as far as balance allows."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException

from weir.infra.spark.executors import Executor, row_at
from weir.pipelines.assignment import ExecutorState, Role, TaskInfo
from weir.pipelines.spark.errors import RunError
from weir.pipelines.spark.held import Held, run_look
from weir.pipelines.spark.parts import Placement, RunSpec
from weir.pipelines.spark.slots import reason_of
from weir.pipelines.spark.spread import spread
from weir.pipelines.spark.worker import WorkerSettings
from weir.state.commit.record import TaskCommit
from weir.state.types import TaskId

log = logging.getLogger("weir.driver")


def slot_homes(there: Sequence[Executor], slots: int) -> list[Executor]:
    """The executor of each slot."""
    return [there[slot % len(there)] for slot in range(slots)]


def placed(context: SparkContext, worker: WorkerSettings, spec: RunSpec, homes: Sequence[Executor]) -> Placement:
    """The slot of each task, and what is new: tasks are divided among executors by what they have cost so far, each
    stays where its store or else a standby is if it can, and so are those of an executor among its slots."""
    began_s = time.perf_counter()
    held = _held(context, worker, spec, dict.fromkeys(homes))
    stored = {task for each in held.values() for task in each.tasks}
    topology = spec.application.topology
    assignment = spec.assignors.assign(
        spec.assignors.state(
            [
                ExecutorState(
                    id=executor.id,
                    slots=homes.count(executor),
                    rack=each.rack,
                    active=each.tasks,
                    lags={task: lag for task, lag in each.standbys.items() if task not in stored},
                )
                for executor, each in held.items()
            ],
            [
                TaskInfo(
                    id=task,
                    is_stateful=bool(topology.sub_topology(task.sub_topology).stores),
                    cost=spec.costs.get(task),
                )
                for task in spec.tasks
            ],
        )
    )
    log.info(
        "executors: %s",
        ", ".join(
            f"{executor.id} on {executor.host}{f' in {each.rack}' if each.rack else ''}"
            for executor, each in held.items()
        ),
    )
    found: dict[TaskId, int] = {}
    for executor in held:
        slots = [slot for slot, home in enumerate(homes) if home == executor]
        here = spread(assignment.executors[executor.id].active, len(slots), spec.costs)
        found |= {task: slots[number] for task, number in here.items()}
    return Placement(
        slot_of=found,
        seconds=time.perf_counter() - began_s,
        previous={executor.id: each.tasks for executor, each in held.items()},
        standbys={
            task: [executor.id for executor, each in held.items() if task in each.standbys]
            for task in {task for each in held.values() for task in each.standbys}
        },
        moves=[move for move in assignment.moves if move.role is Role.ACTIVE],
    )


@dataclass(frozen=True, kw_only=True)
class _Held:
    """What an executor has said."""

    rack: str | None
    tasks: frozenset[TaskId]
    """Those whose newest committed instance it has on its disk."""
    standbys: Mapping[TaskId, int]
    """By how many rows its standbys of tasks are behind the changelogs at most, unless a snapshot is newer."""


def _held(
    context: SparkContext, worker: WorkerSettings, spec: RunSpec, there: Iterable[Executor]
) -> dict[Executor, _Held]:
    """What each executor says.

    Raises:
        RunError: An executor has another Weir, or cannot run it.
    """
    committed = {} if spec.newest is None else spec.newest.tasks
    names = {spec.application.topology.task_name(task): task for task in spec.tasks}
    instances = {name: task.instance for name, task in committed.items() if name in names and task.instance}
    generation = 0 if spec.newest is None else spec.newest.generation
    jobs = {
        executor: row_at(context, executor).mapPartitions(partial(run_look, worker, instances, generation))
        for executor in there
    }
    with ThreadPoolExecutor(len(jobs)) as threads:
        found = zip(jobs, threads.map(_answer, jobs, jobs.values()), strict=True)
        return {
            executor: _Held(
                rack=answer.rack,
                tasks=frozenset(names[name] for name in answer.names),
                standbys={names[name]: _lag(committed[name], epoch) for name, epoch in answer.standbys.items()},
            )
            for executor, answer in found
        }


def _lag(task: TaskCommit, epoch: int) -> int:
    is_at_commit = task.state is None or task.state.epoch <= epoch
    return 0 if is_at_commit else max(1, task.rows_since_snapshot)


def _answer(executor: Executor, job: RDD[Held]) -> Held:
    try:
        (answer,) = job.collect()
    except (Py4JError, PySparkException) as error:
        raise RunError(f"executor {executor.id} on {executor.host} takes no tasks: {reason_of(error)}") from None
    return answer
