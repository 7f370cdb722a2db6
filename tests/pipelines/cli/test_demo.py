"""``weir demo`` as a newcomer may treat it: killed while it loads, killed while it runs, finished, asked once more."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pipelines import StateReader
from pipelines.examples.flights import app

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.faults]

WEIR = [sys.executable, "-c", "from pipelines.cli import main; main()"]
CSV_TOTALS = {"flights": 336_776, "late": 70_774, "cancelled": 8_255}
WAIT_LIMIT_S = 240.0


class Folder:
    """A folder of its own and the commands run in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
        # A year of flights takes three seconds otherwise, too short to be met in the middle.
        self.environment["WEIR_MAX_EPOCH_RECORDS"] = "8000"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*WEIR, *arguments], cwd=self.path, env=self.environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def json(self, *arguments: str):
        done = subprocess.run([*WEIR, *arguments, "--json"], cwd=self.path, env=self.environment, text=True,
                              capture_output=True, check=True)
        return json.loads(done.stdout)

    def processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter(["cmdline"])
                if str(self.path) in " ".join(process.info["cmdline"] or ())]


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_LIMIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def committed_records(folder: Folder) -> int:
    found = folder.json("status")["applications"]
    return found[0]["records_in"] if found else 0


def test_a_killed_demo_goes_on_and_ends_with_the_same_tables(tmp_path):
    folder = Folder(tmp_path)
    segments = tmp_path / ".weir" / "kafka"

    loading = folder.start("demo", "--no-ui")
    wait_until(lambda: sum(file.stat().st_size for file in segments.rglob("flights-*/*.log")) > 0
               or loading.poll() is not None)
    loading.kill()
    loading.communicate()

    running = folder.start("demo", "--no-ui")
    wait_until(lambda: committed_records(folder) > 0 or running.poll() is not None)
    assert running.poll() is None, "the demo ended before it could be killed: " + running.communicate()[0]
    running.send_signal(signal.SIGKILL)
    running.communicate()
    assert 0 < committed_records(folder) < CSV_TOTALS["flights"]

    finishing = folder.start("demo", "--no-ui")
    output, _ = finishing.communicate(timeout=WAIT_LIMIT_S)
    assert finishing.returncode == 0, output
    assert "Nothing to do" not in output
    totals = folder.json("show", "flights", "carrier_totals", "--limit", "0")
    assert len(totals) == 16
    assert {name: sum(row[name] for row in totals) for name in CSV_TOTALS} == CSV_TOTALS
    finals = folder.json("show", "flights", "late_departures", "--limit", "0")
    windows = {(row["carrier"], row["origin"], row["window_start"]) for row in finals}
    assert len(windows) == len(finals)
    [status] = folder.json("status")["applications"]
    assert status["records_in"] == sum(status["positions"]["flights"].values()) == CSV_TOTALS["flights"]
    open_windows = StateReader(tmp_path / ".weir", app).windows("hourly").rows
    assert open_windows.height == status["open_windows"]
    assert (sum(row["flights"] for row in finals) + open_windows["flights"].sum() + status["late_records"]
            == CSV_TOTALS["flights"])

    again = folder.start("demo", "--no-ui")
    output, _ = again.communicate(timeout=WAIT_LIMIT_S)
    assert again.returncode == 0, output
    assert "Nothing to do" in output
    assert folder.json("show", "flights", "late_departures", "--limit", "0") == finals
    wait_until(lambda: not folder.processes())


def test_ctrl_c_in_mid_run_commits_and_exits_with_zero_within_ten_seconds(tmp_path):
    folder = Folder(tmp_path)
    running = folder.start("demo", "--no-ui")
    wait_until(lambda: committed_records(folder) > 0 or running.poll() is not None)
    asked = time.monotonic()
    running.send_signal(signal.SIGINT)
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=WAIT_LIMIT_S)
    assert running.returncode == 0, output
    assert time.monotonic() - asked < 10
    assert "goes on from here" in output
    [status] = folder.json("status")["applications"]
    assert (status["state"], status["error"]) == ("stopped", None)
    assert 0 < status["records_in"] < CSV_TOTALS["flights"]
