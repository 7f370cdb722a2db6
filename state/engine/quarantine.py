"""The quarantine of local state: instances that cannot be trusted, in ``<task>/quarantine/`` (PROTOCOL 20).

Nothing opens a quarantined instance again; it is kept as evidence, within limits of age and size. Its age counts from
when its ``reason.txt`` was written, which nothing but a quarantine does; its size is what it takes on disk, since
LMDB's files are sparse. When to clean is up to ``weir.pipelines.operations.compaction``.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from weir.state.engine.environment import LOCK, replace_file, sync_folder
from weir.state.engine.in_memory import free
from weir.state.engine.instances import noted_generation
from weir.state.errors import FencedStoreError

HOLD_S = 3_600.0
"""How long the newest quarantined folder of a task is kept whatever the limits, so that somebody can look at it."""

_QUARANTINE = "quarantine"
_REASON = "reason.txt"
_BLOCK_BYTES = 512
_FLOCK = struct.Struct("hhqqi0q")
"""The kernel's ``struct flock``: type, whence, start, length, process."""


@dataclass(frozen=True, kw_only=True)
class QuarantineLimits:
    """How much is kept below one application's state folder."""

    max_age_s: float
    max_bytes: int


@dataclass(frozen=True, kw_only=True)
class QuarantinedFolder:
    """An instance in quarantine."""

    path: Path
    at_s: float
    """When it was quarantined, in seconds of Unix time."""
    size_bytes: int
    """What it takes on disk."""

    @property
    def task_folder(self) -> Path:
        return self.path.parent.parent


@dataclass(frozen=True, kw_only=True)
class KeptFolder:
    """A folder that was due and is still there."""

    folder: QuarantinedFolder
    why: str


@dataclass(kw_only=True)
class QuarantineCleaning:
    """What a cleaning removed, or would remove."""

    removed: list[QuarantinedFolder] = field(default_factory=list)
    kept: list[KeptFolder] = field(default_factory=list)
    """Folders that were due, but are open in a process or could not be removed; the next cleaning tries again."""


def quarantine(folder: Path, reason: str, generation: int | None = None) -> Path | None:
    """Move an instance that cannot be trusted aside, with the reason in its ``reason.txt``.

    Returns its new path, or None if there is no such folder. A driver gives its ``generation``: it may have been frozen
    at any step, so after the move it looks again for a newer one, whose open files have not noticed the move.

    Raises:
        FencedStoreError: A newer generation uses the instance, which is where it was.
    """
    if not folder.exists():
        return None
    _require_newest(folder, folder, generation)
    parent = folder.parent / _QUARANTINE
    parent.mkdir(exist_ok=True)
    number, target = 1, parent / folder.name
    while target.exists():
        number += 1
        target = parent / f"{folder.name}-{number}"
    replace_file(folder / _REASON, f"{reason}\n".encode())
    folder.rename(target)
    try:
        _require_newest(target, folder, generation)
    except FencedStoreError:
        (target / _REASON).unlink()
        target.rename(folder)
        raise
    free(target)
    sync_folder(parent)
    return target


def _require_newest(folder: Path, instance: Path, generation: int | None) -> None:
    if generation is not None and (found := noted_generation(folder)) > generation:
        raise FencedStoreError(instance.parent.name, generation, found)


def quarantined(state_folder: Path) -> list[QuarantinedFolder]:
    """The quarantined folders of an application's tasks, oldest first.

    What has no ``reason.txt`` was put there by somebody else and is left out.
    """
    found = []
    for reason in state_folder.glob(f"*/{_QUARANTINE}/*/{_REASON}"):
        folder = reason.parent
        with suppress(FileNotFoundError):  # removed meanwhile
            if not folder.is_symlink():
                at_s = reason.stat().st_mtime
                found.append(QuarantinedFolder(path=folder, at_s=at_s, size_bytes=_allocated_bytes(folder)))
    return sorted(found, key=lambda folder: (folder.at_s, folder.path))


def due(found: Sequence[QuarantinedFolder], limits: QuarantineLimits, now_s: float) -> list[QuarantinedFolder]:
    """Which of ``found``, oldest first, have to go: those that are too old, then as many as the size asks for.

    The newest of each task stays until it is ``HOLD_S`` old.
    """
    newest = {folder.task_folder: folder for folder in found}
    going, left_bytes = [], sum(folder.size_bytes for folder in found)
    for folder in found:
        age_s = now_s - folder.at_s
        if newest[folder.task_folder] is folder and age_s < HOLD_S:
            continue
        if age_s > limits.max_age_s or left_bytes > limits.max_bytes:
            going.append(folder)
            left_bytes -= folder.size_bytes
    return going


def clean(
    state_folder: Path, limits: QuarantineLimits, now_s: float, *, is_dry_run: bool = False
) -> QuarantineCleaning:
    """Remove what is ``due``.

    A folder that cannot be removed is reported and does not stop the rest, nor does another one go in its place. Of
    cleanings at the same time one removes a folder: the others find a file of it gone, and leave it to that one.
    """
    cleaning = QuarantineCleaning()
    for folder in due(quarantined(state_folder), limits, now_s):
        try:
            if is_open(folder.path):
                cleaning.kept.append(KeptFolder(folder=folder, why="a process has it open"))
                continue
            if not is_dry_run:
                discard(folder.path)
            cleaning.removed.append(folder)
        except FileNotFoundError:
            pass  # another cleaning removes it, or a reset has taken everything
        except OSError as error:
            cleaning.kept.append(KeptFolder(folder=folder, why=str(error)))
    return cleaning


def is_open(folder: Path) -> bool:
    """Whether a process has the LMDB environment open: then it holds a lock on the first byte of the lock file.

    Not for a process that has the environment open itself: closing the file here would release its lock.
    """
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        found = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, wanted))
        return bool(found[0] != fcntl.F_UNLCK)
    finally:
        os.close(descriptor)


def discard(folder: Path) -> None:
    """Delete a folder in quarantine, its reason last: what a kill leaves is still in quarantine, and goes next time."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != _REASON:
            entry.unlink()
    (folder / _REASON).unlink()
    folder.rmdir()


def _allocated_bytes(folder: Path) -> int:
    """What a folder takes on disk, as ``du`` counts it."""
    blocks = folder.lstat().st_blocks
    for root, folders, files in os.walk(folder):
        blocks += sum(Path(root, name).lstat().st_blocks for name in (*folders, *files))
    return blocks * _BLOCK_BYTES
