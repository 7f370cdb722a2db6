"""What the driver does for many tasks: ``python -m bench.many_tasks [--tasks N] [--epochs N] [--sub-topologies N]``.

The real coordinator plans epochs and commits them to a real commit log; slots answer at once, having read what was
planned, and write no files. A turn is what the driver does for an epoch: shares, plans, receipts, limits, lag. A commit
follows every tenth one. First all tasks have records, then a hundredth of them, then none. Prints one JSON object: the
processor time of turns and commits in ms (medians), without that of the slots; of a report and of assignors; the size
of a commit's row; and memory. What ten times the tasks take is in ``bench.growth``.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from weir import Application, Count, Int64, StreamsBuilder, String
from weir.infra.spark import DRIVER
from weir.pipelines.assignment import (
    ApplicationState,
    ExecutorState,
    HighAvailabilityAssignor,
    StickyAssignor,
    TaskAssignor,
    TaskInfo,
)
from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.spark.garbage import short_collections
from weir.pipelines.spark.pace import Pace
from weir.pipelines.spark.planner import Limits, total_lag
from weir.pipelines.spark.spread import spread
from weir.pipelines.spark.task_readings import task_readings
from weir.pipelines.spark.worker import SettleRequest
from weir.pipelines.tasks.order import merge_clock
from weir.pipelines.tasks.plan import Receipt, ReceiptStatus, Renewal, TaskPlan
from weir.pipelines.tasks.tables import application_tables
from weir.state.commit.files import write_file
from weir.state.commit.log import COMMITS
from weir.state.commit.protocol import Committer
from weir.state.types import TaskId, TopicPartition

EPOCHS_A_COMMIT, FEW, SLOTS_AN_EXECUTOR = 10, 0.01, 10


def receipt(plan: TaskPlan) -> Receipt:
    records = sum(each.end - each.start for each in plan.ranges)
    return Receipt(
        task=plan.task,
        plan_hash=plan.plan_hash,
        status=ReceiptStatus.DONE,
        state=plan.state,
        positions={each.topic: {each.partition: each.end} for each in plan.ranges},
        source_times_ms={f"{each.topic}-{each.partition}": plan.now_ms - records for each in plan.ranges},
        clocks={merge_clock(each.topic): plan.now_ms - records for each in plan.ranges},
        counts={"records_in": records, "rows_out": records // 2},
        gauges={"uncommitted_bytes": 10 * records, "uncommitted_records": records, "rollback_us": 10},
        seconds=records * 1e-5,
    )


class AtOnce:
    """Slots whose tasks take no time; what the answers themselves take is counted."""

    def __init__(self, slots: int) -> None:
        self.count, self.answering_s = slots, 0.0
        self.renewal: Callable[[TaskId], Renewal | None] = lambda task: None
        self.is_patient = lambda: True
        self.has_begun = False

    def run(self, plans: Sequence[TaskPlan]) -> list[Receipt]:
        began_s = time.process_time()
        receipts = [receipt(plan) for plan in plans]
        self.answering_s += time.process_time() - began_s
        return receipts

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

    def is_ready(self, slot: int) -> bool:
        return True

    def lost(self) -> Collection[int]:
        return ()

    leaving = lost


class Topics:
    """Stands for the brokers as a run begins."""

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    beginning_offsets = start_offsets


class Turns:
    """The turns of a driver over a warehouse, each with what it took."""

    def __init__(self, warehouse: Path, tasks: int, sub_topologies: int, slots: int) -> None:
        program = application(sub_topologies)
        self.folder = warehouse / program.id
        topics = {f"events-{number}": tasks // sub_topologies for number in range(sub_topologies)}
        self._tables = application_tables(program.topology)
        self._committer = Committer(warehouse, program.id, self._tables, fingerprint=program.topology.fingerprint)
        self._slots = AtOnce(slots)
        self.coordinator = Coordinator(program, warehouse, self._committer, self._slots)  # type: ignore[arg-type]
        self.ends = {(topic, at): 0 for topic, count in topics.items() for at in range(count)}
        with self._measured() as self.start_ms:
            self.coordinator.start(topics, Topics())  # type: ignore[arg-type]
        slot_of = spread(self.coordinator.tasks, slots, {})
        for task in self.coordinator.tasks.values():
            task.slot = slot_of[task.id]
        self._pace = Pace(1.0, slot_of.__getitem__, max_records=1 << 40, max_bytes=1 << 50)
        self._limits = Limits.of(program, max_records=1 << 40, max_bytes=1 << 50)
        self._random, self._count = random.Random(0), 0
        self.commit_ms = list[float]()

    def run(self, epochs: int, share: float) -> list[float]:
        """What each of so many turns took in ms, while a ``share`` of the tasks has 50 to 150 new records in each."""
        found, places = list[float](), list(self.ends)
        for _ in range(epochs):
            for place in self._random.sample(places, round(share * len(places))):
                self.ends[place] += self._random.randrange(50, 150)
            with self._measured() as took_ms:
                self._turn()
            found += took_ms
            self._count += 1
            if self._count % EPOCHS_A_COMMIT == 0:
                with self._measured() as took_ms:
                    self.coordinator.commit("bench")
                self.commit_ms += took_ms
        return found

    def report(self) -> float:
        """What gathering all readings takes in ms."""
        with self._measured() as took_ms:
            [*self.coordinator.metrics.readings(), *task_readings(self.coordinator.tasks.values(), self.ends)]
        return took_ms[0]

    def commit_files(self) -> float:
        """What a commit takes in ms to which each task brings a file of one table; their files are links to one."""
        spec = next(each for each in self._tables if each.name == "totals_0")
        folder, entry = self.folder / spec.name, write_file(self.folder, spec, pl.DataFrame(schema=spec.schema))
        entries = [replace(entry, path=f"{number}-{entry.path}") for number in range(len(self.coordinator.tasks))]
        for each in entries:
            (folder / each.path).hardlink_to(folder / entry.path)
        self.run(1, 1.0)
        with self._measured() as took_ms:
            self.coordinator.commit("files", entries)
        return took_ms[0]

    def end(self) -> None:
        """The epochs after which the stream time of all tasks is at the end of the input."""
        now_ms = time.time_ns() // 1_000_000
        while not self.coordinator.has_ended:
            self.coordinator.run_epoch(self.ends, self._limits, now_ms, end_time_ms=now_ms)

    def row(self) -> Path:
        """The file of the newest row of the commit log."""
        return max((self.folder / COMMITS.name).glob("*.parquet"), key=lambda path: path.stat().st_mtime)

    def row_bytes(self) -> int:
        """The newest row's length in the commit log, before compression."""
        return len(pl.read_parquet(self.row())["record"][0])

    def close(self) -> None:
        self._committer.close()

    def _turn(self) -> None:
        tasks = self.coordinator.tasks.values()
        shares = self._pace.shares({task.id: total_lag([task], self.ends) for task in tasks}, {})
        result = self.coordinator.run_epoch(
            self.ends, self._limits, time.time_ns() // 1_000_000, is_live=True, shares=shares
        )
        self._pace.took(0.5, result.took if result else {})
        assert self.coordinator.reached_limit is None
        total_lag(tasks, self.ends)

    @contextmanager
    def _measured(self) -> Iterator[list[float]]:
        """A list that gets the processor time of the block in ms, without that of the slots."""
        took_ms, answering_s, began_s = list[float](), self._slots.answering_s, time.process_time()
        yield took_ms
        took_ms.append(1e3 * (time.process_time() - began_s - self._slots.answering_s + answering_s))


def application(sub_topologies: int) -> Application:
    builder = StreamsBuilder()
    for number in range(sub_topologies):
        events = builder.stream(f"events-{number}", key=String("user"), value=Int64("amount"))
        events.group_by_key().agg(f"counts-{number}", events=Count()).to_delta(f"totals_{number}")
    return Application("many_tasks", builder)


def measured(tasks: int, epochs: int, sub_topologies: int, slots: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        began_mb = memory_mb()
        turns = Turns(Path(name), tasks, sub_topologies, slots)
        with short_collections():
            every = turns.run(epochs, 1.0)
            few = turns.run(max(20, epochs // 10), FEW)
            none = turns.run(10, 0.0)
        found = {
            "tasks": len(turns.coordinator.tasks),
            "epochs": epochs,
            "start_ms": turns.start_ms[0],
            "turn_ms": statistics.median(every[1:]),
            "turn_ms_of_the_last_tenth": statistics.median(every[-max(1, epochs // 10) :]),
            f"turn_ms_with_{FEW:.0%}": statistics.median(few[10:]),
            "turn_ms_with_none": statistics.median(none),
            "commit_ms": statistics.median(turns.commit_ms),
            "report_ms": turns.report(),
            "row_kb": turns.row().stat().st_size / 1e3,
            "row_json_kb": turns.row_bytes() / 1e3,
            "memory_mb": memory_mb() - began_mb,
        }
        found["commit_with_a_file_of_each_ms"] = turns.commit_files()
        found["row_with_files_json_kb"] = turns.row_bytes() / 1e3
        found["delta_entry_kb"] = (
            max(each.stat().st_size for each in Path(name).glob("*/totals_0/_delta_log/*.json")) / 1e3
        )
        turns.close()
    return found


def memory_mb() -> float:
    """What the process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def assignors_ms(tasks: int, slots: int) -> dict[str, float]:
    """What an assignment takes as a cluster begins, after an executor has left it, and after one has joined."""
    executors = max(2, slots // SLOTS_AN_EXECUTOR)
    infos = {TaskId(0, at): TaskInfo(id=TaskId(0, at), is_stateful=True, cost=0.01 * (at % 7)) for at in range(tasks)}
    found = dict[str, float]()
    for assignor in (StickyAssignor(), HighAvailabilityAssignor()):
        names = [f"e{number}" for number in range(executors)]
        state = ApplicationState(
            executors={name: ExecutorState(id=name, slots=SLOTS_AN_EXECUTOR) for name in names}, tasks=infos
        )
        for what in ("first", "left", "joined"):
            began_s = time.process_time()
            after = carried_out(assignor, state)
            found[f"{type(assignor).__name__}, {what}"] = 1e3 * (time.process_time() - began_s)
            new = ExecutorState(id="new", slots=SLOTS_AN_EXECUTOR)
            state = replace(
                after,
                executors={**after.executors, new.id: new}
                if what == "left"
                else {name: each for name, each in after.executors.items() if name != names[3 % executors]},
            )
    return found


def carried_out(assignor: TaskAssignor, state: ApplicationState) -> ApplicationState:
    """The state once the executors have what the assignor gives them."""
    assignment = assignor.assign(state)
    executors = {
        name: replace(each, active=assignment.executors[name].active, standby=assignment.executors[name].standby)
        for name, each in state.executors.items()
    }
    return replace(state, executors=executors)


def main(tasks: int, epochs: int, sub_topologies: int, slots: int) -> None:
    found = measured(tasks, epochs, sub_topologies, slots)
    print(json.dumps(rounded({**found, "assignors_ms": assignors_ms(tasks, slots)}), indent=2))


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return round(value, 1) if isinstance(value, float) else value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=1_000)
    parser.add_argument("--sub-topologies", type=int, default=1)
    parser.add_argument("--slots", type=int, default=500)
    given = parser.parse_args()
    main(given.tasks, given.epochs, given.sub_topologies, given.slots)
