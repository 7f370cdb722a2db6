"""What a restore costs the other tasks: ``python -m bench.restoring_beside [--rows N] [--events N]`` prints one JSON
object.

Two topics of one partition each, two slots, commits each second: one topic fills a store of so many rows, the other is
summed per user, and nothing joins the two. While the second one is read, the first task is restored from its changelog
alone. From the commit log: records of the other task per second and milliseconds between commits, before and after that
and meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from bench import cluster
from bench.apps import CACHE_BYTES, Event
from bench.events import SMALL_BYTES, event_frame
from bench.processes import ROOT, BenchError
from bench.slow_task import _commits, _position
from weir import Application, Json, StreamsBuilder, String, Sum
from weir.infra.control import ControlDatabase
from weir.infra.process import end_with_parent
from weir.infra.settings import Settings
from weir.state.commit.log import COMMITS
from weir.state.commit.record import CommitRecord

BIG, FAST = "big", "fast"
ALONE_S, LIMIT_S = 4.0, 300.0


def _application() -> Application:
    builder = StreamsBuilder()
    for topic in (BIG, FAST):
        events = builder.stream(topic, key=String("user"), value=Json(Event))
        events.group_by_key().agg(f"{topic}_sums", total=Sum("amount")).to_delta(f"{topic}_totals")
    return Application(
        "restoring_beside", builder, commit_interval=timedelta(seconds=1), uncommitted_max_bytes=CACHE_BYTES
    )


app = _application()


def main(rows: int, events: int) -> None:
    with tempfile.TemporaryDirectory() as folder, cluster.embedded(Path(folder, "broker")) as client:
        place, log = Path(folder, "run"), Path(folder, "run", "warehouse", app.id, COMMITS.name)
        for topic in (BIG, FAST):
            cluster.admin(client).create_topic(topic, 1)
        _produce(client, BIG, ((b"user-%d" % number, b'{"amount":1}') for number in range(rows)))
        with _run(client, place, "--until-caught-up") as process:
            process.wait(LIMIT_S)
        _produce(client, FAST, event_frame(0, events, SMALL_BYTES).select("key", "value").iter_rows())
        before = len(_commits(log))
        with _run(client, place) as process:

            def wait_for(is_so: Callable[[list[CommitRecord]], object]) -> None:
                until_s = time.monotonic() + LIMIT_S
                while not is_so(_commits(log)[before:]):
                    if process.poll() is not None or time.monotonic() > until_s:
                        raise BenchError(f"the run has ended, or it takes more than {LIMIT_S:g} s")
                    time.sleep(0.2)

            wait_for(lambda found: any(_position(each, FAST) for each in found))
            time.sleep(ALONE_S)
            instance, asked_ms = _instance(_commits(log)[-1]), time.time_ns() // 1_000_000
            database = ControlDatabase(Settings(dir=place).control_database_url)
            database.request(app.id, "restore", by="bench", arguments={"task": "0_0", "source": "changelog"})
            wait_for(lambda found: _instance(found[-1]) != instance)
            time.sleep(ALONE_S)
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        found = [each for each in _commits(log)[before:] if 0 < _position(each, FAST) < events]
    print(json.dumps(_measured(found, asked_ms), indent=2))


def _measured(commits: Sequence[CommitRecord], asked_ms: int) -> dict[str, Any]:
    """By whether the task was restoring; the steps in which that was asked for and has ended belong to neither."""
    steps: dict[str, list[tuple[int, int]]] = {"alone": [], "beside_a_restore": []}
    before = _instance(commits[0])
    for earlier, later in pairwise(commits):
        is_restoring = earlier.at_ms >= asked_ms and _instance(later) == before
        if is_restoring or later.at_ms < asked_ms or _instance(earlier) != before:
            read = _position(later, FAST) - _position(earlier, FAST)
            steps["beside_a_restore" if is_restoring else "alone"].append((later.at_ms - earlier.at_ms, read))
    found = {
        name: {
            "seconds": round(sum(ms for ms, _ in of) / 1000, 1),
            "fast_per_s": round(1000 * sum(read for _, read in of) / sum(ms for ms, _ in of)),
            "commits_apart_ms_p50": round(statistics.median(ms for ms, _ in of)),
            "commits_apart_ms_longest": max(ms for ms, _ in of),
        }
        for name, of in steps.items()
    }
    share = found["beside_a_restore"]["fast_per_s"] / found["alone"]["fast_per_s"]
    return {**found, "share": round(share, 2), "load": round(os.getloadavg()[0], 1)}


def _instance(commit: CommitRecord) -> str:
    """The store that is restored."""
    return next(task.instance for task in commit.tasks.values() if BIG in task.positions)


@contextmanager
def _run(client: Path, place: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [str(Path(sys.executable).with_name("weir")), "run", "bench.restoring_beside:app", "--dir", str(place)]
    process = subprocess.Popen(
        [*command, "--set", "slots=2", "--set", "snapshot_rows=0", *options],
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, **cluster.variables(client), "PYTHONPATH": str(ROOT)},
        preexec_fn=end_with_parent(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _produce(client: Path, topic: str, events: Iterable[tuple[bytes, bytes]]) -> None:
    producer = Producer({**cluster.properties(client), "linger.ms": 20, "queue.buffering.max.messages": 2_000_000})
    for number, (key, value) in enumerate(events):
        producer.produce(topic, value, key)
        if number % 100_000 == 0:
            producer.flush()
    producer.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--events", type=int, default=8_000_000)
    given = parser.parse_args()
    main(given.rows, given.events)
