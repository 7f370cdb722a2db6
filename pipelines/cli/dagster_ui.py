"""Serves a folder's Dagster UI until Ctrl-C; Dagster runs as a separate process and is never imported here."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from weir.infra.settings import Settings
from weir.pipelines.cli.keeper import start_kept
from weir.pipelines.cli.render import console, notices
from weir.pipelines.operations.errors import OperationError

DEFAULT_PORT = 3000
START_LIMIT_S = 120.0
_DAGSTER_YAML = "telemetry:\n  enabled: false\nnux:\n  enabled: false\n"


def free_port(preferred: int = DEFAULT_PORT) -> int:
    """``preferred`` if nothing listens there, otherwise one that the system picks."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OperationError("this machine has no free port for the Dagster UI; use `weir demo --no-ui` to run without it")


def prepare_home(home: Path) -> None:
    """Create the folder for Dagster's own records; an existing ``dagster.yaml`` stays as it is."""
    home.mkdir(parents=True, exist_ok=True)
    instance = home / "dagster.yaml"
    if not instance.exists():
        instance.write_text(_DAGSTER_YAML, encoding="utf-8")


def _wait_until_up(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/server_info", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise OperationError(f"the Dagster UI did not start; {log} says why; use `weir demo --no-ui` to run without it")


def serve(settings: Settings) -> None:
    """Start the UI on port 3000, or another free one, and block until Ctrl-C or SIGTERM; leaves no process behind."""
    prepare_home(settings.dagster_home)
    url = f"http://127.0.0.1:{(port := free_port())}"
    log = settings.logs / "dagster.log"
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "dagster",
        "dev",
        "-m",
        "weir.orchestration.definitions",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    environment = {"DAGSTER_HOME": str(settings.dagster_home), "WEIR_DIR": str(settings.dir)}

    def interrupt(*_: object) -> None:
        for number in earlier:
            signal.signal(number, signal.SIG_IGN)  # one signal is enough: stopping takes seconds
        raise KeyboardInterrupt

    earlier = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    server = start_kept(command, log=log, environment=environment)
    try:
        with notices.status("starting the Dagster UI"):
            _wait_until_up(server, url, log)
        console.print(f"\nDagster UI: [bold]{url}[/bold]  (stop it with Ctrl-C; its log is {log})", soft_wrap=True)
        code = server.wait()
        raise OperationError(f"the Dagster UI exited with code {code}; {log} says why")
    except KeyboardInterrupt:
        notices.print("stopping the Dagster UI")
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
        for number, handler in earlier.items():
            signal.signal(number, handler)
