"""What Dagster costs with many applications: ``python -m bench.dagster_load [--applications N] [--seconds S]`` prints
one JSON object.

All of them are in one code location and read one topic of the embedded broker. This process stands for their drivers:
each holds its lease, reports every few seconds, and every tenth one commits each half minute. Beside it run a daemon
and its code server, as ``docs/deployment`` configures them but for the database, which is SQLite. Printed are the time
and the size of the definitions, the processor time of daemon and code server in per cent of a core, and how many ticks
and event rows they write in an hour. The exit code is 1 if one of ``LIMITS`` is exceeded.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import psutil

from bench import cluster
from bench.memory import process_tree
from bench.processes import ROOT, BenchError
from weir import Application, Count, StreamsBuilder, String
from weir.infra.control import ControlDatabase, MetricRow, TaskStatusRow
from weir.infra.process import end_with_parent
from weir.infra.settings import Settings
from weir.pipelines.cli.dagster_ui import free_port
from weir.pipelines.tasks.tables import application_tables
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.storage.places import folder_at
from weir.state.types import StateId, TaskId

TOPIC, PARTITIONS = "clicks", 2
BEAT_S, COMMIT_EVERY_S, ONE_IN = 5.0, 30.0, 10
LEASE_S = 60.0
SETTLE_S = 150.0
"""Until every sensor has looked at every application for the first time."""
LIMITS = {
    "loaded_cpu_s": 5.0,
    "snapshot_mb": 10.0,
    "daemon_percent": 25.0,
    "ticks_an_hour": 4_000,
    "event_rows_an_hour": 100 * 150,
}
"""For a hundred applications. Of one, an hour has two evaluations each five minutes, and if it commits, its assets and
the checks of its commits each ten."""
WORKSPACE = ROOT / "docs" / "deployment" / "workspace.yaml"
LOCATION = """
import os, sys
sys.path.insert(0, {root!r})
from bench.dagster_load import applications
from weir.dagster import definitions
for app in applications(int(os.environ["BENCH_APPLICATIONS"])):
    globals()[app.id] = app
defs = definitions(*(value for name, value in list(globals().items()) if name.startswith("app_")))
"""
LOADED = """
import json, sys, time
began_s = time.process_time()
import dagster as dg, weir.dagster
imported_s = time.process_time()
from location import defs
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._serdes import serialize_value
repository = defs.get_repository_def()
defined_s = time.process_time()
size = len(serialize_value(RepositorySnap.from_def(repository)))
print(json.dumps({
    "imports_cpu_s": round(imported_s - began_s, 2),
    "definitions_cpu_s": round(defined_s - imported_s, 2),
    "snapshot_cpu_s": round(time.process_time() - defined_s, 2),
    "snapshot_mb": round(size / 1e6, 2),
}))
"""
INSTANCE = """
telemetry: {enabled: false}
sensors: {use_threads: true, num_workers: 8}
schedules: {use_threads: true, num_workers: 2}
"""


def applications(count: int) -> list[Application]:
    """``app_000`` and so on: each counts the clicks of the topic."""
    found = []
    for number in range(count):
        builder = StreamsBuilder()
        builder.stream(TOPIC, key=String("user"), value=String("page")).group_by_key().agg("counts", clicks=Count())
        found.append(Application(f"app_{number:03}", builder))
    return found


class Drivers:
    """What the drivers of ``applications`` leave in the control database and in the commit logs."""

    def __init__(self, settings: Settings, given: list[Application]) -> None:
        self._database = ControlDatabase(settings.control_database_url)
        self._epoch, self._stopped = 0, threading.Event()
        self._applications = given
        folder, tables = folder_at(settings.warehouse), {app.id: application_tables(app.topology) for app in given}
        self._committers = {app.id: Committer(folder, app.id, tables[app.id], fingerprint="bench") for app in given}
        self._generations = {name: committer.claim().generation for name, committer in self._committers.items()}
        host, pid = socket.gethostname(), os.getpid()
        self._leases = {
            app.id: self._database.acquire_lease(app.id, owner="weir run", pid=pid, host=host, ttl_s=LEASE_S)
            for app in given
        }

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """They report and commit during the block."""
        self._commit(self._applications)
        thread = threading.Thread(target=self._work)
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join()
            for committer in self._committers.values():
                committer.close()

    def _work(self) -> None:
        committed_s = time.monotonic()
        while not self._stopped.wait(BEAT_S):
            for app in self._applications:
                self._database.heartbeat(self._leases[app.id], state="running", generation=self._generations[app.id])
                self._database.add_metric(app.id, self._reading())
                self._database.report_tasks(
                    app.id, [TaskStatusRow(task=f"0_{number}", slot=number, status="running") for number in range(2)]
                )
            if time.monotonic() - committed_s >= COMMIT_EVERY_S:
                committed_s = time.monotonic()
                self._commit(self._applications[::ONE_IN])

    def _reading(self) -> MetricRow:
        return MetricRow(
            epoch=self._epoch, committed_epoch=self._epoch, records_in=0, records_per_s=0.0, lag=0, commit_ms=5.0
        )

    def _commit(self, given: list[Application]) -> None:
        self._epoch += 1
        for app in given:
            generation = self._generations[app.id]
            tasks = {
                app.topology.task_name(TaskId(0, partition)): TaskCommit(
                    state=StateId(generation, self._epoch), instance="bench", positions={TOPIC: {partition: 0}}
                )
                for partition in range(PARTITIONS)
            }
            self._committers[app.id].commit(
                CommitRecord(
                    kind="commit",
                    generation=generation,
                    epoch=self._epoch,
                    at_ms=time.time_ns() // 1_000_000,
                    fingerprint="bench",
                    tasks=tasks,
                )
            )


def main(count: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as name, cluster.embedded(Path(name, "broker")) as client:
        folder = Path(name)
        cluster.admin(client).create_topic(TOPIC, PARTITIONS)
        (folder / "location.py").write_text(LOCATION.format(root=str(ROOT)))
        (folder / "home").mkdir()
        (folder / "home" / "dagster.yaml").write_text(INSTANCE)
        variables = {
            **cluster.variables(client),
            "BENCH_APPLICATIONS": str(count),
            "WEIR_DIR": str(folder / "weir"),
            "DAGSTER_HOME": str(folder / "home"),
            "PYTHONWARNINGS": "ignore",
        }
        found = {"applications": count, **_loaded(folder, variables)}
        drivers = Drivers(cluster.settings(client, folder / "weir"), applications(count))
        with drivers.at_work(), _servers(folder, variables) as servers:
            time.sleep(SETTLE_S)
            used, rows, began_s = _used_s(servers), _rows(folder / "home"), time.monotonic()
            time.sleep(seconds)
            passed_s, after, rows_after = time.monotonic() - began_s, _used_s(servers), _rows(folder / "home")
        found["loaded_cpu_s"] = round(found["definitions_cpu_s"] + found["snapshot_cpu_s"], 2)
        found |= {f"{kind}_percent": round(100 * (after[kind] - used[kind]) / passed_s, 1) for kind in used}
        found |= {f"{kind}_an_hour": round((rows_after[kind] - rows[kind]) * 3_600 / passed_s) for kind in rows}
    print(json.dumps(found, indent=2))
    broken = [
        f"{name} is {found[name]:,}, more than {limit:,}" for name, limit in LIMITS.items() if found[name] > limit
    ]
    if broken:
        sys.exit("; ".join(broken))


def _loaded(folder: Path, variables: Mapping[str, str]) -> dict[str, float]:
    """What it takes to load the code location, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True
    )
    if done.returncode:
        raise BenchError(done.stderr[-2_000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def _servers(folder: Path, variables: Mapping[str, str]) -> Iterator[dict[str, int]]:
    """The processes ``daemon`` and ``code_server``, which loads the program once; afterwards neither is left."""
    started: dict[str, subprocess.Popen[bytes]] = {}
    port = free_port(0)
    variables = {**variables, "CODE_SERVER_HOST": "127.0.0.1", "CODE_SERVER_PORT": str(port)}
    program = ["--python-file", str(folder / "location.py"), "--working-directory", str(folder)]
    commands = {
        "code_server": ["dagster", "code-server", "start", "--host", "127.0.0.1", "--port", str(port), *program],
        "daemon": ["dagster._daemon", "run", "-w", str(WORKSPACE)],
    }
    try:
        for name, command in commands.items():
            with (folder / f"{name}.log").open("wb") as log:
                started[name] = subprocess.Popen(
                    [sys.executable, "-m", *command],
                    stdout=log,
                    stderr=log,
                    cwd=folder,
                    env={**os.environ, **variables},
                    preexec_fn=end_with_parent(),
                )
        yield {name: process.pid for name, process in started.items()}
        for name, process in started.items():
            if process.poll() is not None:
                raise BenchError((folder / f"{name}.log").read_text()[-2_000:])
    finally:
        for process in reversed(started.values()):
            process.terminate()
            process.wait()


def _used_s(servers: Mapping[str, int]) -> dict[str, float]:
    """Processor time so far of each server, with the processes that it has started, also those that have ended."""
    used = dict.fromkeys(servers, 0.0)
    for name, pid in servers.items():
        for each in process_tree(pid):
            used[name] += sum(psutil.Process(each).cpu_times()[:4])
    return used


def _rows(home: Path) -> dict[str, int]:
    """How many ticks, and rows of events, Dagster's SQLite files have; ``index.db`` has those of assets once more."""
    found = {"ticks": 0, "event_rows": 0}
    for file in home.rglob("*.db"):
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for kind, table in (("ticks", "job_ticks"), ("event_rows", "event_logs")):
                if table in tables and file.name != "index.db":
                    found[kind] += connection.execute(f"SELECT max(id) FROM {table}").fetchone()[0] or 0
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m bench.dagster_load", description="What Dagster costs with many applications."
    )
    parser.add_argument("--applications", type=int, default=100, help="how many")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long to measure")
    arguments = parser.parse_args()
    main(arguments.applications, arguments.seconds)
