"""How long commits pause when an executor is killed: ``python -m bench.lost_executor [--keys N] [--standbys N]``.

A standalone cluster of two workers, two slots each, sums per key over four partitions. Once all keys are in the stores,
and in the standbys if there are some, records keep coming, and one executor gets SIGKILL. From the commit log: seconds
until the next commit, and until a commit in which every task that was there has read on. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psutil
from confluent_kafka import Producer

from bench import cluster
from bench.apps import CACHE_BYTES, Event
from bench.drivers import configure, driver
from bench.processes import BenchError
from weir import Application, Json, StreamsBuilder, String, Sum
from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.infra.spark.standalone import StandaloneCluster
from weir.state.commit.log import newest_commit
from weir.state.storage.places import folder_at

TOPIC, PARTITIONS, WORKERS, SLOTS = "keyed", 4, 2, 4
LIMIT_S = 600.0
PER_SECOND = 2_000
QUIET_S = 5.0
"""How long records come before the executor is killed."""


def _application() -> Application:
    builder = StreamsBuilder()
    events = builder.stream(TOPIC, key=String("user"), value=Json(Event))
    events.group_by_key().agg("sums", total=Sum("amount")).to_delta("totals")
    return Application(
        "lost_executor", builder, commit_interval=timedelta(seconds=1), uncommitted_max_bytes=CACHE_BYTES
    )


app = _application()


def main(keys: int, standbys: int) -> None:
    with tempfile.TemporaryDirectory() as name, cluster.embedded(Path(name, "broker")) as client:
        folder = Path(name)
        cluster.admin(client).create_topic(TOPIC, PARTITIONS)
        _produce(client, range(keys))
        given = Settings(dir=folder / "driver", slots=SLOTS, standby_replicas=standbys)
        with StandaloneCluster(folder / "cluster", given, WORKERS) as spark:
            print(json.dumps({"keys": keys, "standbys": standbys, **_run(client, folder, spark, keys)}, indent=2))


def _run(client: Path, folder: Path, spark: StandaloneCluster, keys: int) -> dict[str, float]:
    settings = spark.settings
    configure(
        folder,
        dict(settings.spark),
        master=settings.master,
        executors=WORKERS,
        slots=SLOTS,
        standby_replicas=settings.standby_replicas,
    )
    database = ControlDatabase(settings.control_database_url)

    def placed() -> dict[str, tuple[str | None, set[str]]]:
        """By task, its executor, and those of its standbys."""
        life = database.application_status(app.id)
        return {task.task: (task.executor, set(task.standbys or {})) for task in life.tasks} if life else {}

    def read() -> dict[str, int]:
        commit = newest_commit(folder_at(settings.warehouse), app.id)
        if commit is None:
            return {}
        return {name: sum(task.positions.get(TOPIC, {}).values()) for name, task in commit.tasks.items()}

    with driver(client, folder, "bench.lost_executor:app") as process, open(folder / "output") as output:

        def wait_for(is_so: Callable[[], bool]) -> float:
            began_s = time.monotonic()
            while not is_so():
                if process.poll() is not None or time.monotonic() - began_s > LIMIT_S:
                    raise BenchError(f"it takes more than {LIMIT_S:g} s:\n{output.read()[-2000:]}")
                time.sleep(0.02)
            return time.monotonic() - began_s

        wait_for(lambda: sum(read().values()) >= keys)
        if settings.standby_replicas:
            wait_for(lambda: bool(placed()) and all(standbys for _, standbys in placed().values()))
        with _traffic(client, keys):
            time.sleep(QUIET_S)
            executor, pid = _executor(spark, 0)
            lost = [task for task, (home, _) in placed().items() if home == executor]
            before, began_s = read(), time.monotonic()
            psutil.Process(pid).kill()
            wait_for(lambda: read() != before)
            first_s, before = time.monotonic() - began_s, read()
            partitions = {task.rpartition("_")[2] for task in lost}
            names = [name for name in before if name.rpartition("_")[2] in partitions]
            wait_for(lambda: all(read()[name] > before[name] for name in names))
            all_s = time.monotonic() - began_s
    return {"tasks_lost": len(lost), "first_commit_s": round(first_s, 2), "all_tasks_s": round(all_s, 2)}


@contextmanager
def _traffic(client: Path, keys: int) -> Iterator[None]:
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.wait(0.1):
            _produce(client, (each * 7919 % keys for each in range(number, number + PER_SECOND // 10)))
            number += PER_SECOND // 10

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _produce(client: Path, numbers: Iterable[int]) -> None:
    producer = Producer({**cluster.properties(client), "linger.ms": 20, "queue.buffering.max.messages": 2_000_000})
    for count, number in enumerate(numbers):
        producer.produce(TOPIC, b'{"amount":1}', b"user-%d" % number)
        if count % 100_000 == 0:
            producer.flush()
    producer.flush()


def _executor(spark: StandaloneCluster, worker: int) -> tuple[str, int]:
    """The id of a worker's executor, and its process."""
    for each in psutil.Process(spark.workers[worker].pid).children():
        words = each.cmdline()
        if "--executor-id" in words:
            return words[words.index("--executor-id") + 1], each.pid
    raise BenchError("the worker has no executor")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--standbys", type=int, default=0)
    given = parser.parse_args()
    main(given.keys, given.standbys)
