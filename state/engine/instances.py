"""The folders of a task's local state: ``<state_dir>/<application>/<task>/<instance>/`` (PROTOCOL 20).

A restore builds a new instance beside the old one; plans name the instance, and the small ``CURRENT`` file tells
queries which one to read. Instances that cannot be trusted move to ``weir.state.engine.quarantine``.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from weir.state.engine.environment import IDENTITY, replace_file

_CURRENT = "CURRENT"
_GENERATION = "generation"


def task_folder(state_dir: Path, application: str, task_id: str) -> Path:
    """The folder of a task's instances."""
    return state_dir / application / task_id


def instance_folder(task: Path, instance: str) -> Path:
    """The folder of an instance by its name: below the task's, or beside it, ``../orders_0/first``, if the task had
    another name when the instance was made."""
    return Path(os.path.normpath(task / instance))


def new_instance() -> str:
    """A name that no instance has had yet."""
    return uuid.uuid4().hex[:12]


def set_current(task: Path, instance: str) -> None:
    """Name the instance that serves queries; readers see either the old name or the new one."""
    task.mkdir(parents=True, exist_ok=True)
    replace_file(task / _CURRENT, instance.encode())


def current_instance(task: Path) -> Path | None:
    """The folder of the instance that serves queries; None before there is one."""
    try:
        return instance_folder(task, (task / _CURRENT).read_text())
    except FileNotFoundError:
        return None


def note_generation(instance: Path, generation: int) -> None:
    """Note the newest generation that uses an instance, where a process can see it that must not open the instance.

    Not synced: what it keeps out is a process that was frozen, and none of those survives a power failure.
    """
    part = instance / f".{_GENERATION}.{os.getpid()}"
    part.write_text(str(generation))
    part.replace(instance / _GENERATION)


def noted_generation(instance: Path) -> int:
    """The newest generation that uses an instance; 0 if none is noted, or the machine died before it was on disk."""
    try:
        return int((instance / _GENERATION).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def instances(state_folder: Path) -> Iterator[Path]:
    """The instances of an application's tasks, without those in quarantine and copies, whose names begin with a dot."""
    for identity in state_folder.glob(f"*/[!.]*/{IDENTITY}"):
        yield identity.parent
