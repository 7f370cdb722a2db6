"""The step hook of killed runs: notes every step, and kills the next victim in the order of kills.

The order is in a folder named by ``FAULTS_DIR``: files ``NNN.victim.step``, taken one after another. A victim is
``worker`` (the process at the step) or ``driver`` (the driver dies, whichever process the step is in). A driver dies at
a worker's step only while state that no commit holds has been written, so that every such kill leaves something to roll
back.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

FAULTS_DIR = "FAULTS_DIR"
STEPS_FILE, DRIVER_FILE = "steps.log", "driver.pid"
KILLED_FILE = "killed.pid"
"""The driver that was killed last: what its processes do before they notice takes no other kill."""
WORKER_STEPS = ("blob written", "files written", "state written", "blob consumed", "undo dropped")
DRIVER_STEPS = ("pivot appended", "table appended", "settled")
STARTS = "driver starts"


def on_step(name: str) -> None:
    """Note ``name``; carry out the next kill if it waits for this step. A worker's step is common: chance picks one."""
    folder = Path(os.environ[FAULTS_DIR])
    note(folder, name)
    waiting = min(folder.glob("*.*.kill"), default=None)
    if waiting is None:
        return
    _, victim, step = waiting.name.removesuffix(".kill").split(".")
    if step != name.replace(" ", "-") or (name in WORKER_STEPS and random.random() < 0.5):
        return
    if victim == "driver" and name in WORKER_STEPS and not _has_uncommitted(folder):
        return
    driver = _pid(folder / DRIVER_FILE)
    if driver is not None and driver == _pid(folder / KILLED_FILE):
        return
    if victim == "driver":
        (folder / KILLED_FILE).write_text(str(driver))
    try:
        waiting.rename(waiting.with_suffix(".done"))
    except FileNotFoundError:  # another process was faster
        return
    note(folder, f"killed {victim}")
    os.kill(driver if driver is not None and victim == "driver" else os.getpid(), signal.SIGKILL)


def note(folder: Path, text: str) -> None:
    """Append a line; lines of several processes never mix."""
    descriptor = os.open(folder / STEPS_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


def order(folder: Path, kills: list[tuple[str, str]]) -> None:
    """Write (victim, step) pairs as the order of kills."""
    for number, (victim, step) in enumerate(kills):
        (folder / f"{number:03}.{victim}.{step.replace(' ', '-')}.kill").touch()


def steps(folder: Path) -> list[str]:
    """Everything that was noted so far."""
    found = folder / STEPS_FILE
    return found.read_text().splitlines() if found.exists() else []


def left(folder: Path) -> int:
    """How many kills have not been carried out yet."""
    return len(list(folder.glob("*.kill")))


def _pid(file: Path) -> int | None:
    text = file.read_text() if file.exists() else ""
    return int(text) if text else None


def _has_uncommitted(folder: Path) -> bool:
    """Whether this driver's tasks have written state since its last commit."""
    newest = next(step for step in reversed(steps(folder)) if step in ("state written", "pivot appended", STARTS))
    return newest == "state written"
