"""One driver of an application, to be killed: ``python -m tests.faults.drive DIR BROKERS RECORDS [MODULE:APP]``.

``RECORDS`` is how many an epoch reads at most; the application is the faulty one if none is named.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.faults.hook import DRIVER_FILE, FAULTS_DIR, STARTS, note
from weir.infra.settings import Settings
from weir.pipelines.spark.runner import run

if __name__ == "__main__":
    faults = Path(os.environ[FAULTS_DIR])
    (faults / DRIVER_FILE).write_text(str(os.getpid()))
    note(faults, STARTS)
    folder, bootstrap_servers, records = sys.argv[1:4]
    reference = "tests.faults.applications:app" if len(sys.argv) == 4 else sys.argv[4]
    settings = Settings(dir=Path(folder), bootstrap_servers=bootstrap_servers, slots=2, max_epoch_records=int(records))
    run(
        reference,
        settings,
        bootstrap_servers=bootstrap_servers,
        until_caught_up=True,
        take_over=True,
        on_step="tests.faults.hook:on_step",
    )
    note(faults, "driver caught up")
