"""Gets the stacks of a driver's threads, even from a driver that hangs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from weir.infra.control import ApplicationStatus
from weir.infra.settings import Settings
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.log_files import STACKS_SIGNAL, stacks_file

ANSWER_LIMIT_S = 2.0
LOOK_EVERY_S = 0.01


def dump_stacks(settings: Settings, life: ApplicationStatus, answer_limit_s: float = ANSWER_LIMIT_S) -> str:
    """The stacks of the driver's threads, the newest call first; they are in the folder's ``logs`` too.

    Raises:
        OperationError: The driver is on another host, has ended, is starting, or does not answer.
    """
    if not life.has_process:
        raise OperationError(f"no driver of {life.application} runs on this host")
    if not _catches(life.pid, STACKS_SIGNAL):
        raise OperationError(f"the driver of {life.application} (process {life.pid}) is still starting; try again")
    file = stacks_file(settings.logs, life.application)
    before, until = _size(file), time.monotonic() + answer_limit_s
    os.kill(life.pid, STACKS_SIGNAL)
    size = before
    while time.monotonic() < until:
        time.sleep(LOOK_EVERY_S)
        earlier, size = size, _size(file)
        if before < size == earlier:  # it is written in many small pieces
            return file.read_bytes()[before:].decode("utf-8", "backslashreplace")
    raise OperationError(
        f"the driver of {life.application} (process {life.pid}) has not answered within "
        f"{answer_limit_s:g} s: it is stopped, or the machine is too busy"
    )


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal, which would end it otherwise."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    mask = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask.split()[1], 16) >> (number - 1) & 1)
