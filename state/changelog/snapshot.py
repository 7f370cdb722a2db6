"""Snapshots: compact copies of a task's stores at a commit, published in the warehouse and listed in the commit log.

A snapshot is the data file of a copy (``weir.state.engine.copies``) under a unique name, so a kill at any point
leaves either a listed file or one that no commit names. When to publish one is up to the driver, which also lists it.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import uuid
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from weir.state.commit.record import SnapshotRef
from weir.state.engine.copies import committed_copy
from weir.state.engine.environment import FREE_DISK_RESERVE_BYTES, make_folders, sync_folder
from weir.state.engine.task_store import TaskStore
from weir.state.errors import DiskFullError, StateError, TaskCorruptedError
from weir.state.full_disk import disk_full, is_disk_full, require_room, writing
from weir.state.types import IsolationLevel, StoreSpec

SNAPSHOT_FOLDER = "_snapshots"


class SnapshotError(StateError):
    """A snapshot cannot be used; the restore reads the changelog alone."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"snapshot {self.path} {self.reason}; the changelog alone is read"


def has_snapshots(stores: Sequence[StoreSpec]) -> bool:
    """Whether a task with these stores can be restored from snapshots.

    A task restores from its changelogs alone if it has a store of the user's, of whose rows a snapshot has only the
    keys, or one without a changelog, whose rows in a snapshot cannot be brought up to date.
    """
    return bool(stores) and all(spec.supplier is None and spec.is_logged for spec in stores)


def publish_snapshot(app_folder: Path, instance: Path, task_id: str) -> SnapshotRef | None:
    """Copy the committed state of the task's ``instance`` into the warehouse, synced; the task may run meanwhile.

    None if the task has not heard of a commit yet.

    Raises:
        TaskCorruptedError: The instance cannot be read in full.
        DiskFullError: There is no room for it, and nothing is left of it.
    """
    with committed_copy(instance, task_id) as copy:
        if (state := copy.base) is None:
            return None
        with copy.reader(IsolationLevel.READ_UNCOMMITTED) as reader:
            rows = sum(reader.count(store) for store in copy.stores)
        folder = app_folder / SNAPSHOT_FOLDER / task_id
        make_folders(folder)
        path, size_bytes = folder / f"{state}-{uuid.uuid4().hex[:12]}.mdb", copy.used_bytes
        part = path.with_suffix(".part")
        with writing(part, f"the snapshot of task {task_id}", size_bytes):
            checksum = _copy(copy.folder / "data.mdb", part, size_bytes)
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.rename(path)
            sync_folder(folder)
    return SnapshotRef(
        path=path.relative_to(app_folder).as_posix(), state=state, size_bytes=size_bytes, crc32=checksum, rows=rows
    )


def fetch_snapshot(
    app_folder: Path, snapshot: SnapshotRef, folder: Path, task_id: str, *, take: bool = False
) -> TaskStore:
    """Make a new instance from a snapshot in ``folder``, which must not exist, and return it open.

    With ``take`` the snapshot's file is moved if it is on the same file system, and copied otherwise: copying is most
    of the time that a restore takes.

    Raises:
        SnapshotError: It is missing or damaged; ``folder`` is removed.
        DiskFullError: There is no room for the instance, and no folder.
    """
    require_room(folder, f"task {task_id}", FREE_DISK_RESERVE_BYTES + (0 if take else snapshot.size_bytes))
    folder.mkdir(parents=True)
    try:
        checksum = (_move if take else _copy)(app_folder / snapshot.path, folder / "data.mdb", snapshot.size_bytes)
        if checksum != snapshot.crc32:
            raise SnapshotError(snapshot.path, f"is damaged: its checksum is {checksum:08x}, not {snapshot.crc32:08x}")
        store = TaskStore.adopt(folder, task_id)
        if store.base != snapshot.state:
            found = store.base
            store.close()
            raise SnapshotError(snapshot.path, f"holds state {found}, not {snapshot.state}")
        return store
    except DiskFullError:  # the snapshot is as good as it was
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except (OSError, TaskCorruptedError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        if is_disk_full(error):
            raise disk_full(error, f"task {task_id}", [folder], snapshot.size_bytes) from error
        reason = error.reason if isinstance(error, TaskCorruptedError) else error.strerror or str(error)
        raise SnapshotError(snapshot.path, f"cannot be read ({reason})") from error
    except SnapshotError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def remove_snapshots(app_folder: Path, snapshots: Iterable[SnapshotRef]) -> None:
    """Delete snapshots that are no longer listed; harmless if they are already gone."""
    for snapshot in snapshots:
        (app_folder / snapshot.path).unlink(missing_ok=True)


def snapshot_files(app_folder: Path) -> list[Path]:
    """The snapshots that are there, and those that were never finished."""
    return list((app_folder / SNAPSHOT_FOLDER).glob("*/*"))


def remove_snapshots_but(app_folder: Path, found: Iterable[Path], listed: Iterable[SnapshotRef]) -> None:
    """Delete files that the newest commit does not list, for example those left by a killed driver.

    ``found`` are the files of before the driver's claim: those of a newer driver are not among them.
    """
    kept = {app_folder / snapshot.path for snapshot in listed}
    for path in found:
        if path not in kept:
            path.unlink(missing_ok=True)


def _move(source: Path, target: Path, size_bytes: int) -> int:
    """Like ``_copy``, but moves the file within a file system."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return _copy(source, target, size_bytes)
    if (found := target.stat().st_size) != size_bytes:
        raise OSError(0, f"it has {found:,} bytes instead of {size_bytes:,}")
    with target.open("rb") as file:
        return _checksum(file, size_bytes)


def _copy(source: Path, target: Path, size_bytes: int) -> int:
    """Copy the first ``size_bytes`` into a new file, inside the kernel, and return the CRC-32 of what arrived."""
    with source.open("rb") as reader, target.open("x+b") as writer:
        done = 0
        while done < size_bytes:
            sent = os.sendfile(writer.fileno(), reader.fileno(), done, size_bytes - done)
            if not sent:
                raise OSError(0, f"it ends {size_bytes - done:,} bytes early")
            done += sent
        return _checksum(writer, size_bytes)


def _checksum(file: BinaryIO, size_bytes: int) -> int:
    with mmap.mmap(file.fileno(), size_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ) as content:
        return zlib.crc32(content)
