"""Whether a task waits for a slow one: ``python -m bench.slow_task [--seconds N]`` prints one JSON object.

Two topics of one partition each, two slots, commits each second. A function of 1 ms per record is called for one topic:
it sleeps, or it keeps a core busy. The other topic is summed per user, and nothing joins the two. Beside it stands what
the same sum reads alone: while nothing else runs, or beside a process that keeps a core busy. From the commit log:
milliseconds between commits, and records of the fast topic per second. Then the driver gets SIGTERM: seconds until it
has ended. A third program is stuck in one call for an hour.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from deltalake import DeltaTable

from bench import cluster
from bench.apps import CACHE_BYTES, Event
from bench.events import SMALL_BYTES, event_frame
from bench.processes import ROOT, BenchError
from weir import Application, Count, Json, StreamsBuilder, String, Sum
from weir.infra.process import end_with_parent
from weir.state.commit.log import COMMITS, commits_above
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import file_actions

FAST, SLOW = "fast", "slow"
EVENTS, SLOW_EVENTS = 10_000_000, 200_000
CALL_S, STUCK_S = 0.001, 3600.0
START_LIMIT_S = 120.0


@dataclass(frozen=True)
class _Works:
    """The slow function."""

    how: str

    def __call__(self, event: Event) -> Event:
        if self.how == "sleeps":
            time.sleep(CALL_S)
        elif self.how == "stuck":
            time.sleep(STUCK_S)
        else:
            until = time.perf_counter() + CALL_S
            while time.perf_counter() < until:
                pass
        return event


def _application(how: str) -> Application:
    builder = StreamsBuilder()
    fast = builder.stream(FAST, key=String("user"), value=Json(Event))
    fast.group_by_key().agg("sums", total=Sum("amount")).to_delta("totals")
    if how:
        slow = builder.stream(SLOW, key=String("user"), value=Json(Event)).map_values(_Works(how))
        slow.group_by_key().agg("counts", events=Count()).to_delta("slow_counts")
    return Application(
        f"beside_{how or 'nothing'}",
        builder,
        commit_interval=timedelta(seconds=1),
        uncommitted_max_bytes=CACHE_BYTES,
    )


sleeps, works, stuck, alone = (_application(how) for how in ("sleeps", "works", "stuck", ""))


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder, cluster.embedded(Path(folder, "broker")) as client:
        _produce(client)
        found = {
            name: _run(client, Path(folder, f"{number}"), program, seconds, busy=busy)
            for number, (name, program, busy) in enumerate(
                [
                    ("alone", "alone", False),
                    ("beside_a_function_that_sleeps", "sleeps", False),
                    ("beside_a_busy_process", "alone", True),
                    ("beside_a_function_that_works", "works", False),
                    ("beside_a_stuck_call", "stuck", False),
                ]
            )
        }
    for name, beside in (("sleeps", "alone"), ("works", "beside_a_busy_process")):
        each = found[f"beside_a_function_that_{name}"]
        each["share"] = round(each["fast_per_s"] / found[beside]["fast_per_s"], 2)
    print(json.dumps(found, indent=2))


def _produce(client: Path) -> None:
    admin = cluster.admin(client)
    for topic, count in ((FAST, EVENTS), (SLOW, SLOW_EVENTS)):
        admin.create_topic(topic, 1)
        producer = Producer({**cluster.properties(client), "linger.ms": 20, "queue.buffering.max.messages": 2_000_000})
        for number, (key, value) in enumerate(event_frame(0, count, SMALL_BYTES).select("key", "value").iter_rows()):
            producer.produce(topic, value, key)
            if number % 100_000 == 0:
                producer.flush()
        producer.flush()


def _run(client: Path, place: Path, program: str, seconds: float, *, busy: bool) -> dict[str, Any]:
    application: Application = globals()[program]
    log = place / "warehouse" / application.id / COMMITS.name
    command = [str(Path(sys.executable).with_name("weir")), "run", f"bench.slow_task:{program}", "--dir", str(place)]
    command += ["--set", "slots=2", "--set", "snapshot_rows=0"]
    with tempfile.TemporaryFile("w+") as errors, _busy(busy):
        process = subprocess.Popen(
            command,
            stdout=errors,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, **cluster.variables(client)},
            preexec_fn=end_with_parent(),
        )
        _wait_for(lambda: bool(_commits(log)), process)
        time.sleep(seconds)
        began_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(120)
        stop_s = time.monotonic() - began_s
        if process.returncode:
            errors.seek(0)
            raise BenchError(f"weir run ended with code {process.returncode}:\n{errors.read()[-2000:]}")
    commits = [each for each in _commits(log) if each.reason in ("interval", "bytes")]
    intervals = [after.at_ms - before.at_ms for before, after in pairwise(commits)]
    first, last = commits[0], commits[-1]
    return {
        "commits": len(commits),
        "interval_ms_p50": round(statistics.median(intervals)),
        "interval_ms_longest": max(intervals),
        "fast_per_s": round(1000 * (_position(last, FAST) - _position(first, FAST)) / (last.at_ms - first.at_ms)),
        "slow_read": _position(last, SLOW),
        "stop_s": round(stop_s, 2),
    }


def _wait_for(is_so: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + START_LIMIT_S
    while not is_so():
        if process.poll() is not None or time.monotonic() > until:
            raise BenchError(f"no commit within {START_LIMIT_S:g} s")
        time.sleep(0.1)


def _commits(log: Path) -> list[CommitRecord]:
    if not DeltaTable.is_deltatable(str(log)):
        return []
    return list(commits_above(log, file_actions(DeltaTable(log)), 0))


def _position(commit: CommitRecord, topic: str) -> int:
    return sum(sum(task.positions.get(topic, {}).values()) for task in commit.tasks.values())


@contextmanager
def _busy(is_wanted: bool) -> Iterator[None]:
    """A process that keeps a core busy, if it is wanted."""
    if not is_wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=end_with_parent())
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    main(parser.parse_args().seconds)
