"""What an application without input costs: ``python -m bench.idle [--seconds N]`` prints one JSON object.

The application of ``bench.freshness`` reads the few records of its topic; once nothing is due any more, the processor
time of its driver, its JVM and its workers, in per cent of a core, with two commit intervals. Beside it, that of a bare
Spark context, which runs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from confluent_kafka import Producer

from bench import cluster
from bench.freshness import IN, app, sums
from bench.memory import process_tree
from bench.processes import ROOT, BenchError
from weir import Application
from weir.infra.process import end_with_parent
from weir.state.commit.protocol import newest_commit

PARTITIONS, RECORDS, SLOTS = 4, 1_000, 2
SETTLE_S = 20.0
"""After the commit, until nothing that it entails is due any more."""
START_LIMIT_S = 60.0
BARE = """
import sys
from pathlib import Path
from weir.infra.settings import Settings
from weir.infra.spark.session import slot_context
context = slot_context(Settings(dir=Path(sys.argv[1]), slots=int(sys.argv[2])), "bare")
Path(sys.argv[1], "ready").touch()
sys.stdin.read()
"""
slow_app = Application("idle", sums, commit_interval=timedelta(seconds=5))


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder, cluster.embedded(Path(folder, "broker")) as client:
        _fill(client)
        found = {
            f"commit interval {application.commit_interval.total_seconds():g} s": _of_run(
                name, application, Path(folder, name), client, seconds
            )
            for name, application in (("freshness:app", app), ("idle:slow_app", slow_app))
        }
        bare = Path(folder, "bare")
        bare.mkdir()
        command = [sys.executable, "-c", BARE, str(bare), str(SLOTS)]
        with _running(command, {}) as pid:
            _wait_for(Path(bare, "ready").exists)
            found["bare Spark context"] = _shares(pid, seconds)
    print(json.dumps(found, indent=2))


def _fill(client: Path) -> None:
    cluster.admin(client).create_topic(IN, PARTITIONS)
    producer = Producer(cluster.properties(client))
    for number in range(RECORDS):
        producer.produce(IN, json.dumps({"user": f"u{number}", "amount": 1}).encode(), f"u{number}".encode())
    producer.flush()


def _of_run(name: str, application: Application, folder: Path, client: Path, seconds: float) -> dict[str, float]:
    command = [str(Path(sys.executable).with_name("weir")), "run", f"bench.{name}", "--dir", str(folder)]
    command += ["--set", f"slots={SLOTS}"]

    def has_caught_up() -> bool:
        commit = newest_commit(folder / "warehouse", application.id)
        if commit is None:
            return False
        read = commit.topics[IN].positions.values() if IN in commit.topics else ()
        return sum(read) == RECORDS

    with _running(command, cluster.variables(client)) as pid:
        _wait_for(has_caught_up)
        return _shares(pid, seconds)


def _shares(pid: int, seconds: float) -> dict[str, float]:
    """Per cent of a core over ``seconds``: the process, its Java process, and the rest, which are Python workers."""
    time.sleep(SETTLE_S)
    before, began = _used_s(pid), time.monotonic()
    time.sleep(seconds)
    passed, after = time.monotonic() - began, _used_s(pid)
    used = {kind: 100 * (after[kind] - before[kind]) / passed for kind in after}
    return {kind: round(share, 2) for kind, share in {**used, "together": sum(used.values())}.items()}


def _used_s(pid: int) -> dict[str, float]:
    used = {"driver": 0.0, "jvm": 0.0, "workers": 0.0}
    for each in process_tree(pid):
        kind = "driver" if each == pid else "jvm" if _name(each) == "java" else "workers"
        for thread in Path(f"/proc/{each}/task").glob("*/schedstat"):
            used[kind] += int(thread.read_text().split()[0]) / 1e9
    return used


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + START_LIMIT_S
    while not condition():
        if time.monotonic() > until:
            raise BenchError(f"not ready within {START_LIMIT_S:.0f} s")
        time.sleep(0.1)


@contextmanager
def _running(command: Sequence[str], variables: Mapping[str, str]) -> Iterator[int]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, **variables},
        preexec_fn=end_with_parent(),
    )
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.idle", description="What an idle application costs.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure each")
    main(parser.parse_args().seconds)
