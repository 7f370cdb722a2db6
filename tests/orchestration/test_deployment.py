"""The deployment of docs/deployment.md: a code server, a webserver and a daemon, everything on PostgreSQL, runs queued
and in separate processes. It recovers from kills, and no secret shows anywhere."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import psycopg
import pytest

from tests.waiting import wait_for
from weir.infra.control import ApplicationStatus, ControlDatabase
from weir.infra.kafka.broker import broker_for
from weir.infra.settings import Settings
from weir.pipelines.cli.dagster_ui import free_port
from weir.pipelines.examples import load_weather
from weir.state.commit.protocol import newest_commit

pytestmark = [pytest.mark.dagster, pytest.mark.spark, pytest.mark.broker, pytest.mark.faults, pytest.mark.timed]

OBSERVATIONS = 26_115
DEFS = """
import time

import dagster as dg

from weir.dagster import definitions
from weir.pipelines.examples.weather import app


@dg.op
def wait() -> None:
    time.sleep(3600)


@dg.job(tags={"dagster/max_retries": "0"})
def hour() -> None:
    wait()


defs = dg.Definitions.merge(definitions(app), dg.Definitions(jobs=[hour]))
"""
START_LIMIT_S = 120.0
FAILED_LIMIT_S = 30.0
TERMINATED_LIMIT_S = 15.0
SECRETS = ("not-to-be-seen-1", "not-to-be-seen-2")
"""A database's password and that of a broker of one's own; the embedded one has another."""
FILES = Path(__file__).parents[2] / "docs" / "deployment"
WORKSPACE = str(FILES / "workspace.yaml")
LAUNCH = """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } } } }"""
LOADED = """{ repositoryOrError(
  repositorySelector: {repositoryLocationName: "shop", repositoryName: "__repository__"}) { __typename } }"""
TERMINATE = "mutation($run: String!) { terminateRun(runId: $run) { __typename } }"


class Deployment:
    """The processes, and what they have recorded."""

    def __init__(self, folder: Path, settings: Settings, dagster_url: str) -> None:
        self.folder, self.settings = folder, settings
        self.dagster_url = dagster_url
        shutil.copy(FILES / "dagster.yaml", folder)
        (folder / "my_jobs").mkdir()
        (folder / "my_jobs" / "defs.py").write_text(DEFS)
        self.code_port = free_port(0)
        self.instance = dg.DagsterInstance.from_config(str(folder))
        self.database = ControlDatabase(settings.control_database_url)
        self.port = free_port(0)
        self.start_code_server()
        self.webserver = self._start("dagster_webserver", "-w", WORKSPACE, "-p", str(self.port))
        self.left: list[psutil.Process] = []
        self.start_daemon()

    def start_daemon(self) -> None:
        self.daemon = self._start("dagster._daemon", "run", "-w", WORKSPACE)

    def kill_daemon(self) -> None:
        self.daemon.kill()
        self.daemon.wait()

    def start_code_server(self) -> None:
        arguments = ["code-server", "start", "--host", "127.0.0.1", "--port", str(self.code_port)]
        program = ["--python-file", "my_jobs/defs.py", "--working-directory", "my_jobs"]
        self.code_server = self._start("dagster", *arguments, *program)

    def kill_code_server(self) -> None:
        """With all that it has started, as a container or a unit of systemd ends."""
        below = psutil.Process(self.code_server.pid).children(recursive=True)
        self.code_server.kill()
        self.code_server.wait()
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(below, timeout=10)

    def _start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "servers.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={
                    **os.environ,
                    "DAGSTER_HOME": str(self.folder),
                    "CODE_SERVER_HOST": "127.0.0.1",
                    "CODE_SERVER_PORT": str(self.code_port),
                },
            )

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """GraphQL, as the UI asks."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            json.dumps({"query": query, "variables": variables}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)["data"]

    def is_up(self) -> bool:
        """Whether the webserver has the definitions of the code server."""
        try:
            return self.ask(LOADED)["repositoryOrError"]["__typename"] == "Repository"
        except OSError:
            return False

    def launch(self, job: str, config: dict[str, Any] | None = None) -> dg.DagsterRun:
        """Launch a run as the launchpad does."""
        selector = {"repositoryLocationName": "shop", "repositoryName": "__repository__", "jobName": job}
        launched = self.ask(LAUNCH, params={"selector": selector, "runConfigData": config or {}})["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        run = self.instance.get_run_by_id(launched["run"]["runId"])
        assert run is not None
        return run

    def status(self) -> ApplicationStatus | None:
        return self.database.application_status("weather")

    def reads(self, generation: int) -> bool:
        status = self.status()
        return (
            status is not None
            and status.is_running
            and status.state == "running"
            and status.generation == generation
            and sum(task.records_in for task in status.tasks) == OBSERVATIONS
        )

    def is_in(self, run: dg.DagsterRun, status: dg.DagsterRunStatus) -> bool:
        known = self.instance.get_run_by_id(run.run_id)
        return known is not None and known.status == status

    def run(self) -> dg.DagsterRun:
        """The run of the newest driver."""
        run = self.instance.get_run_by_id(self.status().owner.split()[-1])
        assert run is not None
        return run

    def close(self) -> None:
        """End the servers and what they have started; now and then one of Dagster's code servers hangs as it ends."""
        servers = (self.daemon, self.webserver, self.code_server)
        for server in servers:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.left += psutil.Process(server.pid).children(recursive=True)
            server.send_signal(signal.SIGINT)
        for server in servers:
            server.wait(60)
        for process in self.left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        for process in psutil.wait_procs(self.left, timeout=20)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.instance.dispose()


@pytest.fixture
def postgresql(tmp_path) -> Iterator[str]:
    """The URL of a server with the databases ``dagster`` and ``weir``; ``{}`` stands for the database's name."""
    pgserver = pytest.importorskip("pgserver")
    server = pgserver.get_server(tmp_path / "postgresql")
    try:
        for name in ("dagster", "weir"):
            server.psql(f"CREATE DATABASE {name};")
        yield server.get_uri().replace("postgres:@", f"postgres:{SECRETS[0]}@").replace("/postgres?", "/{}?")
    finally:
        server.cleanup()


@pytest.fixture
def deployment(postgresql, tmp_path) -> Iterator[Deployment]:
    (tmp_path / "home").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        # without a named driver, SQLAlchemy 2.1 uses psycopg, which dagster-postgres does not support
        dagster_url = postgresql.format("dagster").replace("postgresql://", "postgresql+psycopg2://")
        patch.setenv("DAGSTER_POSTGRES_URL", dagster_url)
        patch.setenv("WEIR_CONTROL_URL", postgresql.format("weir").replace("postgresql://", "postgresql+psycopg://"))
        patch.setenv("WEIR_KAFKA_SASL_PASSWORD", SECRETS[1])
        patch.setenv("WEIR_DIR", str(tmp_path / "weir"))
        patch.setenv("WEIR_SLOTS", "2")
        settings = Settings.load()
        with broker_for(settings) as (bootstrap_servers, settings):
            deployment = Deployment(tmp_path / "home", settings, postgresql.format("dagster"))
            try:
                load_weather.load(bootstrap_servers, client_properties=settings.kafka)  # while the servers start
                yield deployment
            finally:
                deployment.close()


def test_a_deployment_recovers_from_kills_and_termination_commits(deployment):
    wait_for(deployment.is_up, "the UI is up", START_LIMIT_S)
    launched = deployment.launch("weather_run", {"ops": {"weather_ingest": {"config": {"until_caught_up": False}}}})
    wait_for(lambda: deployment.reads(1), "the first run has read the topic", START_LIMIT_S)
    first, life = deployment.run(), deployment.status()
    assert first.run_id == launched.run_id
    assert first.tags["weir/application"] == "weather"
    assert first.tags["dagster/max_retries"] == "0", "its sensor restarts it, so Dagster does not"

    deployment.kill_daemon()
    deployment.start_daemon()
    driver = psutil.Process(life.pid)
    assert deployment.is_in(first, dg.DagsterRunStatus.STARTED)
    assert driver.is_running(), "the ingest keeps running without a daemon"

    driver.parent().parent().kill()
    assert (
        wait_for(lambda: deployment.is_in(first, dg.DagsterRunStatus.FAILURE), "it has failed", START_LIMIT_S)
        < FAILED_LIMIT_S
    )
    assert any("was terminated by signal 9" in entry.message for entry in deployment.instance.all_logs(first.run_id))
    wait_for(lambda: deployment.reads(2), "the next run has resumed", START_LIMIT_S)
    second = deployment.run()

    other = deployment.launch("hour")
    step_started = partial(deployment.instance.all_logs, other.run_id, dg.DagsterEventType.STEP_START)
    wait_for(step_started, "a run of another job has begun its step")
    deployment.kill_code_server()
    deployment.start_code_server()
    wait_for(lambda: deployment.reads(3), "a run has resumed under the next code server", START_LIMIT_S)
    assert deployment.is_in(second, dg.DagsterRunStatus.FAILURE)
    wait_for(lambda: deployment.is_in(other, dg.DagsterRunStatus.FAILURE), "the other run has failed", FAILED_LIMIT_S)
    third, before = deployment.run(), newest_commit(deployment.settings.warehouse, "weather")
    below = psutil.Process(deployment.status().pid).children(recursive=True)

    deployment.ask(TERMINATE, run=third.run_id)
    assert (
        wait_for(lambda: deployment.is_in(third, dg.DagsterRunStatus.CANCELED), "it is canceled", START_LIMIT_S)
        < TERMINATED_LIMIT_S
    )
    failures = deployment.instance.all_logs(third.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    assert [entry.get_dagster_event().step_failure_data.error_display_string for entry in failures] == []
    reports = deployment.instance.all_logs(third.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
    assert ["weather", "ingest"] in [entry.get_dagster_event().asset_key.path for entry in reports]
    ended = deployment.status()
    assert (ended.state, ended.error, ended.has_process) == ("stopped", None, False)
    assert not psutil.wait_procs(below, timeout=5)[1]
    after = newest_commit(deployment.settings.warehouse, "weather")
    assert after.generation == 3
    assert {name: task.positions for name, task in after.tasks.items()} == {
        name: task.positions for name, task in before.tasks.items()
    }
    runs = deployment.instance.get_runs()
    assert {run.run_id for run in runs} == {first.run_id, second.run_id, third.run_id, other.run_id}
    for run in runs:
        assert len(deployment.instance.all_logs(run.run_id)) < 200
    assert secrets_found(deployment) == []


def secrets_found(deployment: Deployment) -> list[str]:
    """Where a secret can be read: in Dagster's tables, or in a log file."""
    found, secrets = [], (*SECRETS, deployment.settings.kafka["sasl.password"])
    with psycopg.connect(deployment.dagster_url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in tables:
            for secret in secrets:
                if connection.execute(
                    f"SELECT 1 FROM {table} AS row WHERE row::text LIKE %s LIMIT 1", [f"%{secret}%"]
                ).fetchone():
                    found.append(f"{secret} in table {table}")
    assert len(tables) > 10
    logs = [
        *deployment.settings.logs.iterdir(),
        *deployment.folder.rglob("*.log"),
        *deployment.folder.rglob("*.err"),
        *deployment.folder.rglob("*.out"),
    ]
    assert len(logs) > 2
    found += [f"{secret} in {log}" for log in logs for secret in secrets if secret in log.read_text(errors="replace")]
    return found
