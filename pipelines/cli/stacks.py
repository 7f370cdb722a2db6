"""``weir stacks``: what every thread of an application's driver is doing, asked of a driver that may hang."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from weir.pipelines.cli.log_files import STACKS_SIGNAL, stacks_file
from weir.pipelines.cli.options import AppArgument, CommandError, DebugOption, DirOption, load_settings
from weir.pipelines.cli.render import console

if TYPE_CHECKING:
    from weir.infra.control import ApplicationStatus
    from weir.infra.settings import Settings

ANSWER_LIMIT_S = 2.0
LOOK_EVERY_S = 0.01


def dump_stacks(settings: Settings, life: ApplicationStatus, answer_limit_s: float = ANSWER_LIMIT_S) -> str:
    """The stacks of the driver's threads, the newest call first; they are in the folder's ``logs`` too.

    Raises:
        CommandError: The driver is on another host, has ended, is starting, or does not answer.
    """
    if not life.has_process:
        raise CommandError(f"no driver of {life.application} runs on this host")
    if not _catches(life.pid, STACKS_SIGNAL):
        raise CommandError(f"the driver of {life.application} (process {life.pid}) cannot be asked yet; try again")
    file = stacks_file(settings.logs, life.application)
    before, until = _size(file), time.monotonic() + answer_limit_s
    os.kill(life.pid, STACKS_SIGNAL)
    size = before
    while time.monotonic() < until:
        time.sleep(LOOK_EVERY_S)
        earlier, size = size, _size(file)
        if before < size == earlier:  # it is written in many small pieces
            return file.read_bytes()[before:].decode("utf-8", "backslashreplace")
    raise CommandError(
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


def stacks(application: AppArgument, directory: DirOption = None, debug: DebugOption = False) -> None:
    """Print what every thread of a running application's driver is doing, for a run that hangs."""
    from weir.infra.control import ControlDatabase
    from weir.pipelines.cli.registry import require

    settings = load_settings(directory)
    life = ControlDatabase(settings.control_database_url).application_status(require(settings, application))
    if life is None:
        raise CommandError(f"{application} has not run in {settings.dir} yet")
    console.print(dump_stacks(settings, life), markup=False, soft_wrap=True)
