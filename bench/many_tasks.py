"""What the driver does for many tasks: ``python -m bench.many_tasks [--tasks N] [--epochs N] [--sub-topologies N]``.

The real coordinator plans epochs and commits them to a real commit log; slots answer at once, having read what
was planned, and write no files. A commit follows every tenth epoch. Prints one JSON object: milliseconds of the driver
per epoch (half of them take less) and per commit, the size of a commit's row, and the memory of the process.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weir import Application, Count, Int64, StreamsBuilder, String
from weir.infra.spark import DRIVER
from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.spark.planner import Limits
from weir.pipelines.spark.worker import SettleRequest
from weir.pipelines.tasks.plan import Receipt, ReceiptStatus, Renewal, TaskPlan
from weir.pipelines.tasks.tables import application_tables
from weir.state.commit.log import COMMITS
from weir.state.commit.protocol import Committer
from weir.state.types import TaskId, TopicPartition

EPOCHS_A_COMMIT, RECORDS_AN_EPOCH = 10, 100


class AtOnce:
    """Slots whose tasks take no time."""

    def __init__(self, slots: int) -> None:
        self.count = slots
        self.renewal: Callable[[TaskId], Renewal | None] = lambda task: None
        self.is_patient = lambda: True
        self.has_begun = False

    def run(self, plans: Sequence[TaskPlan]) -> list[Receipt]:
        return [
            Receipt(
                task=plan.task,
                plan_hash=plan.plan_hash,
                status=ReceiptStatus.DONE,
                state=plan.state,
                positions={each.topic: {each.partition: each.end} for each in plan.ranges},
                source_times_ms={f"{each.topic}-{each.partition}": each.end for each in plan.ranges},
                clocks={"count": plan.now_ms},
                counts={"records_in": sum(each.end - each.start for each in plan.ranges)},
                gauges={"uncommitted_bytes": 1_000, "uncommitted_records": 10, "rollback_us": 10},
                seconds=0.001,
            )
            for plan in plans
        ]

    def settle(self, requests: Sequence[SettleRequest]) -> list[tuple[TaskId, bool]]:
        return [(request.task, True) for request in requests]

    def late(self) -> list[Receipt]:
        return []

    def finish_writing(self) -> list[Receipt]:
        return []

    def is_free(self, task: TaskId) -> bool:
        return True

    def forget(self, task: TaskId) -> None:
        pass

    def executor_of(self, slot: int) -> str:
        return DRIVER


class Topics:
    """Stands for the brokers as a run begins."""

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    beginning_offsets = start_offsets


def application(sub_topologies: int) -> Application:
    builder = StreamsBuilder()
    for number in range(sub_topologies):
        events = builder.stream(f"events-{number}", key=String("user"), value=Int64("amount"))
        events.group_by_key().agg(f"counts-{number}", events=Count()).to_delta(f"totals_{number}")
    return Application("many_tasks", builder)


def main(tasks: int, epochs: int, sub_topologies: int, slots: int) -> None:
    program = application(sub_topologies)
    topics = {f"events-{number}": tasks // sub_topologies for number in range(sub_topologies)}
    with tempfile.TemporaryDirectory() as name:
        warehouse = Path(name)
        tables = application_tables(program.topology)
        committer = Committer(warehouse, program.id, tables, fingerprint=program.topology.fingerprint)
        coordinator = Coordinator(program, warehouse, committer, AtOnce(slots))  # type: ignore[arg-type]
        began_s = time.perf_counter()
        coordinator.start(topics, Topics())  # type: ignore[arg-type]
        started_s = time.perf_counter() - began_s
        found = measured(coordinator, topics, epochs)
        committer.close()
        rows = sorted(warehouse.glob(f"{program.id}/{COMMITS.name}/*.parquet"), key=lambda path: path.stat().st_mtime)
        found |= {"commit_row_kb": round(rows[-1].stat().st_size / 1e3, 1), "start_s": round(started_s, 2)}
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(json.dumps({"tasks": len(coordinator.tasks), **found, "memory_mb": round(memory_mb)}, indent=2))


def measured(coordinator: Coordinator, topics: Mapping[str, int], epochs: int) -> dict[str, Any]:
    limits = Limits.of(coordinator.application, max_records=1 << 40, max_bytes=1 << 50)
    epoch_ms, commit_ms = list[float](), list[float]()
    for epoch in range(1, epochs + 1):
        ends = {(topic, at): epoch * RECORDS_AN_EPOCH for topic, count in topics.items() for at in range(count)}
        began_s = time.perf_counter()
        coordinator.run_epoch(ends, limits, time.time_ns() // 1_000_000, is_live=True)
        epoch_ms.append(1e3 * (time.perf_counter() - began_s))
        if epoch % EPOCHS_A_COMMIT == 0:
            began_s = time.perf_counter()
            coordinator.commit("bench")
            commit_ms.append(1e3 * (time.perf_counter() - began_s))
    return {
        "epochs": epochs,
        "epoch_ms": round(statistics.median(epoch_ms), 1),
        "commit_ms": round(statistics.median(commit_ms), 1),
        "last_epochs_ms": round(statistics.median(epoch_ms[-10:]), 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=1_000)
    parser.add_argument("--sub-topologies", type=int, default=1)
    parser.add_argument("--slots", type=int, default=500)
    given = parser.parse_args()
    main(given.tasks, given.epochs, given.sub_topologies, given.slots)
