"""What a round over many slots costs beside their work: ``python -m bench.slot_rounds [--slots N]... [--tasks N]``.

The real pool of slots gives each slot so many plans over its connection, and takes their receipts. Threads of one other
process answer at once, where a run has a Python worker for each slot. Prints one JSON object: by number of slots, how
long it takes until all are connected in s, and of a round, in ms (medians), its time and the driver's processor time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import threading
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Client, Connection

from bench.many_tasks import receipt
from weir.infra.spark import DRIVER
from weir.pipelines.spark.garbage import short_collections
from weir.pipelines.spark.slots import SlotPool
from weir.pipelines.spark.worker import WorkerSettings, send_at_once
from weir.pipelines.tasks.epoch import TaskSettings
from weir.pipelines.tasks.plan import OffsetRange, TaskPlan
from weir.state.types import StateId, TaskId

ROUNDS, WARM_UP = 30, 5


def plan(task: TaskId, number: int) -> TaskPlan:
    state, start = StateId(1, number), 100 * number
    read = OffsetRange(topic="events", partition=task.partition, start=start, end=start + 100)
    return TaskPlan(
        task=task, instance="first", state=state, expected=state, committed=state, now_ms=1 << 40, ranges=(read,)
    )


class Jobs:
    """Stands for a Spark context each of whose jobs is a thread of one other process, which answers for a slot."""

    defaultParallelism = 0  # noqa: N815

    def __init__(self) -> None:
        self.environment = dict[str, str]()
        spawned = multiprocessing.get_context("spawn")
        self._begin, there = spawned.Pipe()
        self._process = spawned.Process(target=answering, args=(there,), daemon=True)
        self._process.start()
        self._ended = threading.Event()

    def parallelize(self, rows: object, parts: int) -> Jobs:
        return self

    def mapPartitions(self, serve: partial[Iterator[object]]) -> Job:  # noqa: N802
        return Job(self, serve)

    def setJobGroup(self, *group: object, **options: object) -> None:  # noqa: N802
        pass

    def cancelJobGroup(self, group: str) -> None:  # noqa: N802
        pass

    def run(self, slot: int, address: tuple[str, int], key: bytes) -> None:
        self._begin.send((slot, address, key))
        self._ended.wait()

    def close(self) -> None:
        self._ended.set()
        self._begin.close()
        self._process.join()


class Job:
    def __init__(self, context: Jobs, serve: partial[Iterator[object]]) -> None:
        self.context, self._serve, self._jrdd = context, serve, None

    def collect(self) -> list[object]:
        self.context.run(*self._serve.args[1:])
        return []


def answering(begin: Connection) -> None:
    """The process that answers for all slots."""
    threads = list[threading.Thread]()
    while True:
        try:
            slot, address, key = begin.recv()
        except EOFError:
            break
        threads.append(threading.Thread(target=answer, args=(slot, address, key)))
        threads[-1].start()
    for each in threads:
        each.join()


def answer(slot: int, address: tuple[str, int], key: bytes) -> None:
    with Client(address, authkey=key) as driver:
        send_at_once(driver)
        driver.send((slot, DRIVER, None))
        while True:
            try:
                _, items = driver.recv()
                for each in items:
                    driver.send(receipt(each) if isinstance(each, TaskPlan) else each)
            except (EOFError, ConnectionError):
                return


def measured(slots: int, tasks_a_slot: int) -> dict[str, float]:
    tasks = [TaskId(0, number) for number in range(slots * tasks_a_slot)]
    settings = WorkerSettings(
        reference="", kafka={}, tasks=TaskSettings(application_folder="", state_folder="", partition_counts={})
    )
    jobs, began_s = Jobs(), time.perf_counter()
    pool = SlotPool(jobs, slots, settings, {})  # type: ignore[arg-type]
    start_s = time.perf_counter() - began_s
    pool.slot_of.update({task: task.partition % slots for task in tasks})
    rounds_ms, busy_ms = list[float](), list[float]()
    try:
        with short_collections():
            for number in range(WARM_UP + ROUNDS):
                plans = [plan(task, number) for task in tasks]
                began_s, busy_s = time.perf_counter(), time.process_time()
                receipts = pool.run(plans)
                rounds_ms.append(1e3 * (time.perf_counter() - began_s))
                busy_ms.append(1e3 * (time.process_time() - busy_s))
                assert len(receipts) == len(plans)
    finally:
        pool.close()
        jobs.close()
    return {
        "start_s": round(start_s, 1),
        "round_ms": round(statistics.median(rounds_ms[WARM_UP:]), 1),
        "driver_ms": round(statistics.median(busy_ms[WARM_UP:]), 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, action="append")
    parser.add_argument("--tasks", type=int, default=20, help="plans of a slot in each round")
    given = parser.parse_args()
    print(json.dumps({slots: measured(slots, given.tasks) for slots in given.slots or (10, 100, 500)}, indent=2))
