"""The bank on a Spark cluster, as tests look at it."""

from __future__ import annotations

from pathlib import Path

import psutil

from tests.faults.bank_run import BankRun
from weir.infra.control import ControlDatabase
from weir.infra.spark.standalone import StandaloneCluster

ROOT = Path(__file__).resolve().parents[2]
RUNS_LIMIT_S = JOINED_LIMIT_S = 120.0
TASKS = 9


def executors(cluster: StandaloneCluster, worker: int) -> list[psutil.Process]:
    """The Java processes of a worker's executors."""
    below = psutil.Process(cluster.workers[worker].pid).children()
    return [each for each in below if "--executor-id" in each.cmdline()]


def is_running(run: BankRun) -> bool:
    assert run.driver is not None
    assert run.driver.poll() is None, run.output()[-3000:]
    status = ControlDatabase(run.settings.control_database_url).application_status("bank")
    return status is not None and status.state == "running" and len(status.tasks) == TASKS


def executors_of(run: BankRun) -> dict[str, str]:
    """The executor of each task."""
    status = ControlDatabase(run.settings.control_database_url).application_status("bank")
    return {task.task: task.executor or "" for task in status.tasks}


def log_of(run: BankRun) -> str:
    return (run.settings.logs / "bank.log").read_text()
