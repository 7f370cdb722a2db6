"""What an epoch costs beside the work of its tasks: ``python -m bench.slot_rounds [--slots N]... [--tasks N]``.

A real local Spark has so many slots. Each is given as many plans as a slot of 10,000 tasks over 500 gets, and answers
them at once, so what is left is pickling, the connections and the threads of the slots. Prints one JSON object: by
number of slots, the start of Spark with all workers in s, a round over all slots in ms (median), the processor time of
the driver for it, and the anonymous memory of all workers in MB.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.many_tasks import answered_at_once
from bench.memory import tree_memory
from weir.infra.settings import Settings
from weir.infra.spark.session import slot_context, stop_context
from weir.pipelines.spark.slots import SlotPool
from weir.pipelines.spark.worker import WorkerSettings
from weir.pipelines.tasks.epoch import TaskSettings
from weir.pipelines.tasks.plan import OffsetRange, TaskPlan
from weir.state.types import StateId, TaskId

ROUNDS, WARM_UP = 60, 10


def main(slots: Sequence[int], tasks_a_slot: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps({count: measured(Path(name), count, tasks_a_slot) for count in slots}, indent=2))


def measured(folder: Path, slots: int, tasks_a_slot: int) -> dict[str, float]:
    settings = Settings(dir=folder, slots=slots)
    worker = WorkerSettings(
        reference="bench.apps:hopping_final_few",
        kafka={},
        tasks=TaskSettings(application_folder=str(folder), state_folder=str(folder), partition_counts={}),
    )
    shares = [[plan(slot, number) for number in range(tasks_a_slot)] for slot in range(slots)]
    began_s = time.perf_counter()
    spark = slot_context(settings, "slot_rounds")
    pool = SlotPool(spark, slots, worker, {})
    try:
        started_s, rounds_ms, driver_ms = time.perf_counter() - began_s, list[float](), list[float]()
        for _ in range(ROUNDS + WARM_UP):
            began_s, busy_s = time.perf_counter(), time.process_time()
            for answer in [pool.ask(slot, answered_at_once, share) for slot, share in enumerate(shares)]:
                answer.result()
            rounds_ms.append(1e3 * (time.perf_counter() - began_s))
            driver_ms.append(1e3 * (time.process_time() - busy_s))
        return {
            "start_s": round(started_s, 1),
            "round_ms": round(statistics.median(rounds_ms[WARM_UP:]), 1),
            "driver_ms": round(statistics.median(driver_ms[WARM_UP:]), 1),
            "memory_mb": round(tree_memory(os.getpid()) / 1e6),
        }
    finally:
        pool.close()
        stop_context(spark)


def plan(slot: int, number: int) -> TaskPlan:
    state, task = StateId(1, 1), TaskId(slot, number)
    read = OffsetRange(topic="events", partition=number, start=0, end=100)
    return TaskPlan(
        task=task, instance="first", state=state, expected=state, committed=state, now_ms=1 << 40, ranges=(read,)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, action="append")
    parser.add_argument("--tasks", type=int, default=20, help="plans of a slot in each round")
    given = parser.parse_args()
    main(given.slots or [2, 8, 32], given.tasks)
