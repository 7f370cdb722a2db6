"""The step hook of killed runs: notes every step, and kills who is next in the order of kills.

The order lies in a folder named by ``FAULTS_DIR``: files ``NNN.victim.step``, taken one after another. A victim is
``worker`` (the process at the step) or ``driver`` (whoever the step belongs to, the driver dies).
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

FAULTS_DIR = "FAULTS_DIR"
STEPS_FILE, DRIVER_FILE = "steps.log", "driver.pid"


def on_step(name: str) -> None:
    """Note ``name``; with even chance, carry out the next kill if it waits for this step."""
    folder = Path(os.environ[FAULTS_DIR])
    note(folder, name)
    waiting = min(folder.glob("*.*.kill"), default=None)
    if waiting is None:
        return
    _, victim, step = waiting.name.removesuffix(".kill").split(".")
    if step != name.replace(" ", "-") or random.random() < 0.5:
        return
    try:
        waiting.rename(waiting.with_suffix(".done"))
    except FileNotFoundError:  # another process was quicker
        return
    note(folder, f"killed {victim}")
    os.kill(int((folder / DRIVER_FILE).read_text()) if victim == "driver" else os.getpid(), signal.SIGKILL)


def note(folder: Path, text: str) -> None:
    """Append a line; lines of several processes never mix."""
    descriptor = os.open(folder / STEPS_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


def order(folder: Path, kills: list[tuple[str, str]]) -> None:
    """Put down (victim, step) pairs as the order of kills."""
    for number, (victim, step) in enumerate(kills):
        (folder / f"{number:03}.{victim}.{step.replace(' ', '-')}.kill").touch()


def left(folder: Path) -> int:
    """Kills that nobody has carried out yet."""
    return len(list(folder.glob("*.kill")))
