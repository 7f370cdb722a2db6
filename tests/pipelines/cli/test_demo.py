"""``weir demo`` as a newcomer may treat it: killed while loading, interrupted, killed while running, started again; and
where its UI cannot start."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from polars.testing import assert_frame_equal

from tests.pipelines.cli.typed import Answer, Terminal
from tests.waiting import wait_for
from weir import StateReader
from weir.pipelines.cli import dagster_ui
from weir.pipelines.examples import load_flights
from weir.pipelines.examples.flights import app
from weir.pipelines.examples.loading import LoadSummary
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_rows

WEIR = [sys.executable, "-c", "from weir.pipelines.cli import main; main()"]
CSV_TOTALS = {"flights": 336_776, "late": 70_774, "cancelled": 8_255}
WAIT_LIMIT_S = 240.0
IN_SMALL_EPOCHS = {"WEIR_MAX_EPOCH_RECORDS": "2000"}
"""Otherwise a year of flights takes three seconds, too short to interrupt in the middle."""


class Folder:
    """A folder, and the commands that run in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warehouse = path / ".weir" / "warehouse"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}

    def demo(self, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*WEIR, "demo", "--no-ui"],
            cwd=self.path,
            env={**self.environment, **environment},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def demo_that_has_committed(self) -> subprocess.Popen[str]:
        """A demo in the middle of its run that has committed something itself."""
        before, running = self.committed_records(), self.demo(**IN_SMALL_EPOCHS)
        wait_for(lambda: self.committed_records() > before or running.poll() is not None, "it commits", WAIT_LIMIT_S)
        assert running.poll() is None, "the demo ended before it could be stopped: " + running.communicate()[0]
        return running

    def json(self, *arguments: str):
        done = subprocess.run(
            [*WEIR, *arguments, "--json"],
            cwd=self.path,
            env=self.environment,
            text=True,
            capture_output=True,
            check=True,
        )
        return json.loads(done.stdout)

    def committed_records(self) -> int:
        newest = newest_commit(self.warehouse, "flights")
        tasks = newest.tasks.values() if newest else ()
        return sum(task.totals.get("records_in", 0) for task in tasks if task.positions)

    def processes(self) -> list[psutil.Process]:
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if str(self.path) in " ".join(process.info["cmdline"] or ())
        ]


@pytest.fixture
def flights(terminal, monkeypatch) -> Terminal:
    """Where the demo loads a hundred flights of one carrier into topics in memory."""
    value = json.dumps({"dep_time": 900, "dep_delay": 20}).encode()

    def load(*arguments: object, **options: object) -> LoadSummary:
        is_new = ("flights", 0) not in terminal.topics.rows
        terminal.topics.rows["flights", 0] = [(b"UA-EWR", value, 60_000 * minute) for minute in range(100)]
        return LoadSummary(topic="flights", records=100, loaded=100 * is_new, seconds=0.1, end_offsets={0: 100})

    monkeypatch.setattr(load_flights, "load", load)
    return terminal


def is_shown_without_the_ui(flights: Terminal, refused: Answer) -> bool:
    """What the refusal offers ends with the results of all flights."""
    assert refused.code == 1, refused.text
    done = flights.take("demo --no-ui", refused)
    assert done.code == 0, done.text
    return "100 flights, 100 late, 0 cancelled" in done.text and "Nothing to do" in done.text


def test_without_a_free_port_the_results_are_shown_without_the_ui(flights, monkeypatch):
    class Taken(socket.socket):
        def bind(self, address: object) -> None:
            raise OSError(errno.EADDRINUSE, "Address already in use")

    with monkeypatch.context() as patch:
        patch.setattr(dagster_ui.socket, "socket", Taken)
        refused = flights.weir("demo")
    assert "no free port for the Dagster UI" in refused.text
    assert is_shown_without_the_ui(flights, refused)


def test_if_the_ui_does_not_start_its_log_says_why_and_the_results_are_shown_without_it(flights, monkeypatch):
    """Another module of Dagster's name is in its way."""
    (flights.folder / "modules").mkdir()
    (flights.folder / "modules" / "dagster.py").write_text("raise SystemExit('this is no Dagster')")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{flights.folder}/modules:{os.environ.get('PYTHONPATH', '')}")
        refused = flights.weir("demo")
    (log,) = re.findall(r"the Dagster UI did not start; (\S+) says why", refused.text)
    assert "this is no Dagster" in Path(log).read_text()
    assert is_shown_without_the_ui(flights, refused)


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.faults
def test_a_demo_that_is_killed_and_interrupted_continues_and_ends_with_the_same_tables(tmp_path):
    """Killed while loading, interrupted in the middle of a run, killed there, finished, and started again."""
    folder = Folder(tmp_path)
    segments = tmp_path / ".weir" / "kafka"

    loading = folder.demo()
    wait_for(
        lambda: (
            sum(file.stat().st_size for file in segments.rglob("flights-*/*.log")) > 0 or loading.poll() is not None
        ),
        "it loads",
        WAIT_LIMIT_S,
    )
    loading.kill()
    loading.communicate()

    interrupted = folder.demo_that_has_committed()
    asked = time.monotonic()
    interrupted.send_signal(signal.SIGINT)
    interrupted.send_signal(signal.SIGINT)
    output, _ = interrupted.communicate(timeout=WAIT_LIMIT_S)
    assert interrupted.returncode == 0, output
    assert time.monotonic() - asked < 10
    assert "`weir demo` continues from here" in output
    [status] = folder.json("status")["applications"]
    assert (status["state"], status["error"]) == ("stopped", None)
    assert 0 < status["records_in"] < CSV_TOTALS["flights"]

    killed = folder.demo_that_has_committed()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert status["records_in"] < folder.committed_records() < CSV_TOTALS["flights"]

    finishing = folder.demo()
    output, _ = finishing.communicate(timeout=WAIT_LIMIT_S)
    assert finishing.returncode == 0, output
    assert "Nothing to do" not in output
    totals = folder.json("show", "flights", "carrier_totals", "--limit", "0")
    assert len(totals) == 16
    assert {name: sum(row[name] for row in totals) for name in CSV_TOTALS} == CSV_TOTALS
    finals = read_rows(folder.warehouse / "flights" / "late_departures")
    assert finals.select("carrier", "origin", "window_start").is_unique().all()
    [status] = folder.json("status")["applications"]
    assert status["records_in"] == sum(status["positions"]["flights"].values()) == CSV_TOTALS["flights"]
    open_windows = StateReader(tmp_path / ".weir", app).windows("hourly").rows
    assert open_windows.height == status["open_windows"]
    assert finals["flights"].sum() + open_windows["flights"].sum() + status["late_records"] == CSV_TOTALS["flights"]

    again = folder.demo()
    output, _ = again.communicate(timeout=WAIT_LIMIT_S)
    assert again.returncode == 0, output
    assert "Nothing to do" in output
    assert_frame_equal(read_rows(folder.warehouse / "flights" / "late_departures"), finals, check_row_order=False)
    wait_for(lambda: not folder.processes(), "all have ended", WAIT_LIMIT_S)
