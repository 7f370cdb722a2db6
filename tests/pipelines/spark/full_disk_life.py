"""Drivers as processes of their own that say what they wait for, and are killed at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.forked import ended
from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, sales

ROWS = 300


def shop(folder: Path) -> Place:
    """Two tasks that read a few epochs each."""
    topics = Topics({("sales", partition): sales(ROWS, partition) for partition in (0, 1)})
    return Place(application(), topics, folder, max_records=50)


def lived(folder: Path) -> tuple[str, int]:
    """What a driver waits for, and the code that its process ends with: -9 if it was killed as it should be."""
    said = folder / "said"
    said.unlink(missing_ok=True)
    code = ended(_live, folder, said)
    return said.read_text() if said.exists() else "", code


def _live(folder: Path, said: Path) -> None:
    place = shop(folder)

    def report(progress, tasks, ends):
        if progress.state == "waiting":
            said.write_text(progress.message)
            os.kill(os.getpid(), signal.SIGKILL)

    place.desk.report = report
    place.run()
