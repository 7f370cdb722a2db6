"""The deployment of docs/deployment.md: a code server, a webserver and a daemon, everything on PostgreSQL, runs queued
and in separate processes."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
from dagster._core.storage.tags import PARTITION_NAME_TAG

from weir.infra.control import ApplicationStatus, ControlDatabase
from weir.infra.kafka.broker import broker_for
from weir.infra.settings import Settings
from weir.orchestration.sensors.workers import worker_process
from weir.pipelines.cli.dagster_ui import free_port

START_LIMIT_S = 120.0
SECRETS = ("not-to-be-seen-1", "not-to-be-seen-2")
"""A database's password and that of a broker of one's own; the embedded one has another."""
FILES = Path(__file__).parents[2] / "docs" / "deployment"
WORKSPACE = str(FILES / "workspace.yaml")
LAUNCH = """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } } } }"""
LOADED = """{ repositoryOrError(
  repositorySelector: {repositoryLocationName: "shop", repositoryName: "__repository__"}) { __typename } }"""


class Deployment:
    """The processes, and what they have recorded."""

    def __init__(self, folder: Path, settings: Settings, dagster_url: str, app_id: str, program: str) -> None:
        """``program`` is the text of ``my_jobs/defs.py``, which defines the application ``app_id``."""
        self.folder, self.settings, self.app_id = folder, settings, app_id
        self.dagster_url = dagster_url
        shutil.copy(FILES / "dagster.yaml", folder)
        (folder / "my_jobs").mkdir()
        (folder / "my_jobs" / "defs.py").write_text(program)
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

    def launch(self, job: str, config: dict[str, Any] | None = None, partition: str | None = None) -> dg.DagsterRun:
        """Launch a run as the launchpad does."""
        params = {
            "selector": {"repositoryLocationName": "shop", "repositoryName": "__repository__", "jobName": job},
            "runConfigData": config or {},
            "executionMetadata": {"tags": [{"key": PARTITION_NAME_TAG, "value": partition}] if partition else []},
        }
        launched = self.ask(LAUNCH, params=params)["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        run = self.instance.get_run_by_id(launched["run"]["runId"])
        assert run is not None
        return run

    def status(self) -> ApplicationStatus | None:
        return self.database.application_status(self.app_id)

    def is_in(self, run: dg.DagsterRun, status: dg.DagsterRunStatus) -> bool:
        known = self.instance.get_run_by_id(run.run_id)
        return known is not None and known.status == status

    def run(self) -> dg.DagsterRun:
        """The run of the newest driver."""
        run = self.instance.get_run_by_id(self.status().owner.split()[-1])
        assert run is not None
        return run

    def run_after(self, run: dg.DagsterRun) -> dg.DagsterRun | None:
        """The newest run of the same job, if it was made later."""
        newest = self.instance.get_runs(dg.RunsFilter(job_name=run.job_name), limit=1)[0]
        return None if newest.run_id == run.run_id else newest

    def kill_worker(self, run: dg.DagsterRun) -> bool:
        """As soon as the run has one; false before."""
        pid = worker_process(self.instance, run)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return pid is not None

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


@contextlib.contextmanager
def deployed(folder: Path, app_id: str, program: str) -> Iterator[tuple[Deployment, str, Settings]]:
    """The application that ``program`` defines, with databases and a broker below ``folder``: the deployment, and the
    broker with the settings that reach it. The servers may still be starting; none is left after the block."""
    (folder / "home").mkdir()
    with _postgresql(folder / "postgresql") as url, pytest.MonkeyPatch.context() as patch:
        # without a named driver, SQLAlchemy 2.1 uses psycopg, which dagster-postgres does not support
        dagster_url = url.format("dagster").replace("postgresql://", "postgresql+psycopg2://")
        patch.setenv("DAGSTER_POSTGRES_URL", dagster_url)
        patch.setenv("WEIR_CONTROL_URL", url.format("weir").replace("postgresql://", "postgresql+psycopg://"))
        patch.setenv("WEIR_KAFKA_SASL_PASSWORD", SECRETS[1])
        patch.setenv("WEIR_DIR", str(folder / "weir"))
        patch.setenv("WEIR_SLOTS", "2")
        settings = Settings.load()
        with broker_for(settings) as (bootstrap_servers, settings):
            deployment = Deployment(folder / "home", settings, url.format("dagster"), app_id, program)
            try:
                yield deployment, bootstrap_servers, settings
            finally:
                deployment.close()


@contextlib.contextmanager
def _postgresql(folder: Path) -> Iterator[str]:
    """The URL of a server with the databases ``dagster`` and ``weir``; ``{}`` stands for the database's name."""
    pgserver = pytest.importorskip("pgserver")
    server = pgserver.get_server(folder)
    try:
        for name in ("dagster", "weir"):
            server.psql(f"CREATE DATABASE {name};")
        yield server.get_uri().replace("postgres:@", f"postgres:{SECRETS[0]}@").replace("/postgres?", "/{}?")
    finally:
        server.cleanup()
