"""What many topic partitions cost one worker: ``python -m bench.many_partitions [--partitions N] [--records N]``.

A worker of Weir, in a process of its own, has a task for each partition of a topic, and records wait in all of them.
Prints one JSON object: seconds until its consumers are connected, until they have read every record, and until the
tasks have read and counted them once more; the most threads and megabytes meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from confluent_kafka import Producer

from bench import cluster
from bench.many_tasks import AtOnce
from bench.processes import run_json
from weir import Application, Count, StreamsBuilder, String
from weir.pipelines.spark.brokers import Brokers
from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.spark.planner import Limits
from weir.pipelines.spark.worker import AHEAD, Worker, WorkerSettings, run_plans, run_warm_up, worker_for
from weir.pipelines.tasks.epoch import TaskSettings
from weir.pipelines.tasks.plan import Receipt, TaskPlan
from weir.pipelines.tasks.tables import application_tables
from weir.state.commit.protocol import Committer
from weir.state.storage.places import folder_at
from weir.state.types import TaskId, TopicPartition

TOPIC, VALUE_BYTES, SAMPLE_S = "many", 60, 0.05


def counted() -> Application:
    builder = StreamsBuilder()
    builder.stream(TOPIC, key=String("user"), value=String("text")).group_by_key().agg("counts", records=Count())
    return Application("many_partitions", builder)


app = counted()


class Here(AtOnce):
    """One slot, whose worker is this process."""

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(1)
        self.settings = settings

    def run(self, plans: Sequence[TaskPlan]) -> list[Receipt]:
        return list(run_plans(self.settings, plans))


class Most:
    """The most threads and memory of this process since the last look, seen twenty times a second."""

    def __init__(self) -> None:
        self._process, self._done, self._lock = psutil.Process(), threading.Event(), threading.Lock()
        self._threads = self._bytes = 0
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        threads, size = self._process.num_threads(), self._process.memory_info().rss
        with self._lock:
            self._threads, self._bytes = max(self._threads, threads), max(self._bytes, size)

    def take(self) -> tuple[int, int]:
        """Threads and resident megabytes."""
        self._look()
        with self._lock:
            found = self._threads, round(self._bytes / 1e6)
            self._threads = self._bytes = 0
        return found

    def close(self) -> None:
        self._done.set()
        self._thread.join()


def read(client: Path, folder: Path, partitions: int, records: int) -> None:
    settings = cluster.settings(client, folder)
    tasks = [TaskId(0, partition) for partition in range(partitions)]
    worker = WorkerSettings(
        reference="bench.many_partitions:app",
        kafka=cluster.properties(client),
        tasks=TaskSettings(
            application_folder=str(folder_at(settings.warehouse) / app.id),
            state_folder=str(settings.state_dir / app.id),
            partition_counts={0: partitions},
        ),
    )
    committer = Committer(
        folder_at(settings.warehouse),
        app.id,
        application_tables(app.topology),
        fingerprint=app.topology.fingerprint,
    )
    coordinator = Coordinator(app, folder_at(settings.warehouse), committer, Here(worker))  # type: ignore[arg-type]
    admin = cluster.admin(client)
    coordinator.start({TOPIC: partitions}, Brokers(settings, admin.bootstrap_servers, app))
    ends = admin.end_offsets([(TOPIC, partition) for partition in range(partitions)])
    limits = Limits(max_records=records, max_bytes=1 << 30, max_skew_ms=None)
    most = Most()
    try:
        began_s = time.perf_counter()
        list(run_warm_up(worker, tasks))
        connected_s, (_, connected_mb) = time.perf_counter() - began_s, most.take()
        began_s = time.perf_counter()
        read_once(worker_for(worker), ends)
        read_s, (threads, memory_mb) = time.perf_counter() - began_s, most.take()
        began_s, found, epochs = time.perf_counter(), 0, 0
        while found < sum(ends.values()):
            result = coordinator.run_epoch(ends, limits, time.time_ns() // 1_000_000)
            if result is None or result.failures:
                raise RuntimeError(f"{found} records after {epochs} epochs: {result}")
            found, epochs = found + result.records_in, epochs + 1
        counted_s, (_, with_tasks_mb) = time.perf_counter() - began_s, most.take()
    finally:
        most.close()
        committer.close()
    print(
        json.dumps(
            {
                "partitions": partitions,
                "records": found,
                "connected_s": round(connected_s, 2),
                "connected_mb": connected_mb,
                "read_s": round(read_s, 2),
                "threads": threads,
                "memory_mb": memory_mb,
                "counted_s": round(counted_s, 2),
                "epochs": epochs,
                "with_tasks_mb": with_tasks_mb,
            }
        ),
        flush=True,
    )

    os._exit(0)  # a worker's consumers and stores are left to the system, too


def read_once(worker: Worker, ends: Mapping[TopicPartition, int]) -> None:
    """As for plans, one partition after another, with the next ones fetched ahead."""
    readers = [(worker.reader(*place), end) for place, end in ends.items()]
    for number, (reader, end) in enumerate(readers):
        for ahead, _ in readers[number : number + AHEAD]:
            ahead.fetch_ahead(0)  # type: ignore[union-attr]
        position = 0
        while position < end:
            position = reader.read(position, end, until_time_ms=None, max_bytes=64 << 20).next_offset


def produce(client: Path, partitions: int, records: int) -> None:
    cluster.admin(client).create_topic(TOPIC, partitions)
    producer = Producer({**cluster.properties(client), "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    for number in range(records):
        for partition in range(partitions):
            producer.produce(TOPIC, b"v" * VALUE_BYTES, b"user-%02d" % (number % 100), partition=partition)
        producer.poll(0)
        if len(producer) > 500_000:
            producer.flush()
    producer.flush()


def main(partitions: int, records: int) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="partitions-") as made,
        cluster.embedded(Path(made, "broker")) as client,
    ):
        produce(client, partitions, records)
        given = [str(client), str(Path(made, "run")), str(partitions), str(records)]
        found, _ = run_json([sys.executable, "-m", "bench.many_partitions", "--worker", *given], "the worker")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--records", type=int, default=2_000, help="in each partition")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        client, folder, partitions, records = given.worker
        read(Path(client), Path(folder), int(partitions), int(records))
    else:
        main(given.partitions, given.records)
