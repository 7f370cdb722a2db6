"""Drivers as processes of their own that print what they wait for, and are killed at once.

Run as a module it lives one such driver for each folder that it reads.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, sales

ROWS = 300
ENDED = "ended with "
_ROOT = Path(__file__).resolve().parents[3]


def shop(folder: Path) -> Place:
    """Two tasks that read a few epochs each."""
    topics = Topics({("sales", partition): sales(ROWS, partition) for partition in (0, 1)})
    return Place(application(), topics, folder, max_records=50)


class Lives:
    """Drivers that live one after another."""

    def __init__(self, parent: subprocess.Popen[str]) -> None:
        self._parent = parent

    def live(self, folder: Path) -> tuple[list[str], int]:
        """What the next one waits for, and the code that its process ends with: -9 if it was killed as it should be."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        print(folder, file=self._parent.stdin, flush=True)
        lines = list[str]()
        while (line := self._parent.stdout.readline()) and not line.startswith(ENDED):
            lines.append(line.strip())
        return lines, int(line.removeprefix(ENDED))


@contextmanager
def lives() -> Iterator[Lives]:
    """Importing everything takes longer than a life, so they are forks of one process that has done so."""
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as parent:
        yield Lives(parent)
        assert parent.stdin is not None
        parent.stdin.close()


def _live(folder: Path) -> None:
    place = shop(folder)

    def report(progress, tasks, ends):
        if progress.state == "waiting":
            print(progress.message, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    place.desk.report = report
    place.run()


if __name__ == "__main__":
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            _live(Path(line.strip()))
            os._exit(0)
        print(f"{ENDED}{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)
