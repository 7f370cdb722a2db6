"""Instances whose rows are in memory: the data file is in the host's shared memory, and the folder links to it.

So every process of the host that opens the folder sees the same rows, they survive the death of any process, and they
are gone when the machine or its container restarts: then the link leads nowhere, and the task is restored. Everything
else of an instance stays in its folder.
"""

from __future__ import annotations

import shutil
import uuid
from contextlib import suppress
from pathlib import Path

from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.environment import (
    DATA,
    FREE_DISK_RESERVE_BYTES,
    LOCK,
    PAGE_BYTES,
    release,
    sync_folder,
    trusted_environment,
)
from weir.state.engine.processes import is_alive, own_mark
from weir.state.full_disk import require_room

MEMORY = Path("/dev/shm")
"""A file system in memory, of which Linux has one."""

_MOVING = ".moving"
_PREFIX = "weir-"


def is_in_memory(folder: Path) -> bool:
    """Whether the rows of the instance in ``folder`` are in memory, or were."""
    return _memory_behind(folder / DATA) is not None


def place(folder: Path, *, in_memory: bool) -> None:
    """Move the rows of an instance into memory or back to its disk, unless they are there.

    No transaction of this process may be open. The move is one rename; a kill before it leaves the instance as it was,
    and what it left in memory is removed by a later call.

    Raises:
        DiskFullError: There is no room where they are to go; nothing has changed.
        TaskCorruptedError: They cannot be read.
    """
    if is_in_memory(folder) == in_memory or not (folder / DATA).is_file():
        return
    state_folder = folder.parent.parent
    _free_unused(state_folder)
    TaskStoreCache.discard(folder)
    source = (folder / DATA).resolve()
    part = folder / _MOVING
    _remove(part)
    if in_memory:
        target = _memory_of(state_folder) / f"{uuid.uuid4().hex[:12]}-{own_mark()}"
        target.mkdir(parents=True)
        try:
            _copy(folder, target)
        except BaseException:
            shutil.rmtree(target)
            raise
        part.symlink_to(target / DATA)
        moved = part
    else:
        part.mkdir()
        _copy(folder, part)
        moved = part / DATA
    (folder / LOCK).unlink(missing_ok=True)  # it counts the transactions of the other file
    moved.replace(folder / DATA)
    _remove(part)
    sync_folder(folder)
    if not in_memory:
        shutil.rmtree(source.parent, ignore_errors=True)


def free(folder: Path) -> None:
    """Give back the memory of all instances below ``folder``, which are of no more use."""
    for data in folder.rglob(DATA):
        if (memory := _memory_behind(data)) is not None:
            shutil.rmtree(memory, ignore_errors=True)
    if folder.is_dir():
        _free_unused(folder)
        with suppress(OSError):
            _memory_of(folder).rmdir()  # unless something is left


def _memory_behind(data: Path) -> Path | None:
    """The folder in memory to which a data file is a link; None if it is a file, or somebody else's link."""
    found = data.readlink().parent if data.is_symlink() else None
    return found if found is not None and found.parent.match(f"{MEMORY}/{_PREFIX}*") else None


def _copy(folder: Path, target: Path) -> None:
    """A copy as of the newest transaction, with its number."""
    task_id = folder.parent.name
    with trusted_environment(folder, task_id) as environment:
        pass  # else it is corrupted; what fails below is not its fault
    try:
        used_bytes = (environment.info()["last_pgno"] + 1) * PAGE_BYTES
        require_room(target, f"task {task_id}", used_bytes + FREE_DISK_RESERVE_BYTES)
        environment.copy(str(target))
    finally:
        environment.close()
        release(folder)


def _memory_of(state_folder: Path) -> Path:
    """The folder in memory of an application's state folder."""
    found = state_folder.stat()
    return MEMORY / f"{_PREFIX}{found.st_dev}-{found.st_ino}"


def _free_unused(state_folder: Path) -> None:
    """Remove what folders that are gone have left in memory; what a living process has just made may be about to be
    linked to."""
    memory = _memory_of(state_folder)
    if not memory.exists():
        return
    used = {_memory_behind(data) for data in state_folder.glob(f"*/*/{DATA}")}
    for made in memory.iterdir():
        if made not in used and not is_alive(made.name.partition("-")[2]):
            shutil.rmtree(made, ignore_errors=True)


def _remove(part: Path) -> None:
    if part.is_symlink() or part.is_file():
        part.unlink()
    elif part.exists():
        shutil.rmtree(part)
