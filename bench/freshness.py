"""How soon a result is seen: ``python -m bench.freshness [--seconds N] [--rate N]... [--weir-alone]`` prints one JSON
object.

A producer sends events of 68 bytes and 50,000 users at a fixed rate, each with the time at which it is sent. Both sides
sum per user and commit each 100 ms, exactly once: Weir to a Delta table, whose log a reader looks at each millisecond,
Kafka Streams to a topic, which a consumer of committed records reads. Of each row: milliseconds from the time of its
newest event until it was seen. The broker, the producer and the reader share the cores. The first ``WARM_UP_S`` seconds
are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from confluent_kafka import Consumer, TopicPartition

from bench import cluster
from bench.apps import CACHE_BYTES, Event
from bench.events import PARTITIONS, event_frame
from bench.live import producing
from bench.peers.kafka_streams import KafkaStreamsPeer
from bench.peers.peer import Run
from bench.processes import ROOT, BenchError
from weir import Application, Json, StreamsBuilder, String, Sum
from weir.infra.process import end_with_parent

COMMIT_INTERVAL = timedelta(milliseconds=100)
WARM_UP_S = 10.0
EVENTS = 500_000
"""Events are sent again after so many."""
LOOK_S = 0.001
IN, OUT = "events_live", "totals_live"

sums = StreamsBuilder()
(
    sums.stream(IN, key=String("user"), value=Json(Event))
    .group_by_key()
    .agg("sums", total=Sum("amount"))
    .to_delta("totals")
)
app = Application("freshness", sums, commit_interval=COMMIT_INTERVAL, uncommitted_max_bytes=CACHE_BYTES)


def main(rates: list[int], seconds: float, weir_alone: bool) -> None:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, cluster.embedded(Path(folder, "broker")) as client:
        peer = None if weir_alone else KafkaStreamsPeer()
        if peer is not None:
            peer.install(Path(folder))
        for rate in rates:
            place = Path(folder, f"weir-{rate}")
            _topics(client)
            command = [str(Path(sys.executable).with_name("weir")), "run", "bench.freshness:app", "--dir", str(place)]
            command += ["--set", "slots=2", "--set", "snapshot_rows=0"]
            with _running(command, cluster.variables(client)), producing(client, IN, rate, EVENTS, event_frame):
                sides = {"weir": _seen_in_delta(place / "warehouse" / app.id / "totals", seconds)}
            if peer is not None:
                _topics(client)
                state = Path(folder, f"kafka-streams-{rate}")
                state.mkdir()
                live = Run(job="sum_live", client=client, topic=IN, output=OUT, state=state, closed_by_ms=0)
                with _running(peer.command(live), {}), producing(client, IN, rate, EVENTS, event_frame):
                    sides["kafka_streams"] = _seen_in_topic(client, seconds)
            found[f"{rate}"] = sides
    print(json.dumps(found, indent=2))


def _topics(client: Path) -> None:
    admin = cluster.admin(client)
    for topic in (IN, OUT):
        if topic in admin.topics():
            admin.delete_topic(topic)
        while not admin.create_topic(topic, PARTITIONS):
            time.sleep(0.1)


@contextmanager
def _running(command: list[str], variables: dict[str, str]) -> Iterator[None]:
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdout=errors,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, **variables},
            preexec_fn=end_with_parent(),
        )
        try:
            yield
        finally:
            code = process.poll()
            process.terminate()
            process.wait()
            if code is not None:
                errors.seek(0)
                raise BenchError(f"{command[0]} ended with code {code}:\n{errors.read()[-2000:]}")


def _seen_in_delta(table: Path, seconds: float) -> dict[str, Any]:
    """Read the table's log, and how old its rows were when their entry was there."""
    log, seen, version = table / "_delta_log", list[tuple[int, Path]](), 0
    until: float | None = None
    given_up = time.monotonic() + 60
    while until is None or time.monotonic() < until:
        entry = log / f"{version:020}.json"
        if entry.exists():
            seen.append((time.time_ns() // 1_000_000, entry))
            version += 1
        else:
            time.sleep(LOOK_S)
        if until is None and version > 1:
            until = time.monotonic() + WARM_UP_S + seconds
        if until is None and time.monotonic() > given_up:
            raise BenchError("nothing was committed within 60 s")
    since_ms = seen[-1][0] - 1000 * seconds
    ages, commits = list[np.ndarray](), list[int]()
    for at_ms, entry in seen:
        paths = [
            action["add"]["path"] for line in entry.read_text().splitlines() if "add" in (action := json.loads(line))
        ]
        if at_ms < since_ms or not paths:
            continue
        commits.append(at_ms)
        for path in paths:
            times = pl.read_parquet(table / path, columns=["_ts"]).to_series().dt.timestamp("ms")
            ages.append(at_ms - times.to_numpy())
    return _figures(np.concatenate(ages)) | {"commit_every_ms": round(float(np.median(np.diff(commits))), 1)}


def _seen_in_topic(client: Path, seconds: float) -> dict[str, Any]:
    """Consume the results, and how old they were when they came."""
    consumer = Consumer(
        {
            **cluster.properties(client),
            "group.id": "freshness",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(OUT, partition, 0) for partition in range(PARTITIONS)])
    seen = list[tuple[int, int]]()
    until: float | None = None
    try:
        while until is None or time.monotonic() < until:
            messages = consumer.consume(1_000, timeout=0.002)
            at_ms = time.time_ns() // 1_000_000
            seen += [(at_ms, message.timestamp()[1]) for message in messages if message.error() is None]
            if until is None and seen:
                until = time.monotonic() + WARM_UP_S + seconds
    finally:
        consumer.close()
    found = np.array(seen)
    found = found[found[:, 0] >= found[-1, 0] - 1000 * seconds]
    return _figures(found[:, 0] - found[:, 1])


def _figures(ages_ms: np.ndarray) -> dict[str, Any]:
    p50, p99 = np.percentile(ages_ms, [50, 99])
    return {"rows": len(ages_ms), "p50_ms": round(float(p50)), "p99_ms": round(float(p99))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.freshness", description="How soon a result is seen.")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to measure")
    parser.add_argument("--rate", type=int, action="append", help="events a second; may be repeated")
    parser.add_argument("--weir-alone", action="store_true", help="leave Kafka Streams out")
    arguments = parser.parse_args()
    main(arguments.rate or [2_000, 20_000], arguments.seconds, arguments.weir_alone)
