"""One driver of the faulty application, to be killed: ``python -m tests.faults.drive DIR BROKERS``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from infra.settings import Settings
from pipelines.spark.runner import run
from tests.faults.hook import DRIVER_FILE, FAULTS_DIR, note

if __name__ == "__main__":
    faults = Path(os.environ[FAULTS_DIR])
    (faults / DRIVER_FILE).write_text(str(os.getpid()))
    note(faults, "driver starts")
    settings = Settings(dir=Path(sys.argv[1]), bootstrap_servers=sys.argv[2], slots=2, max_epoch_records=800)
    run("tests.faults.applications:app", settings, bootstrap_servers=sys.argv[2], until_caught_up=True,
        take_over=True, on_step="tests.faults.hook:on_step")
    note(faults, "driver caught up")
