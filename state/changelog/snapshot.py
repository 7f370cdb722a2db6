"""Snapshots: compact copies of a task's stores at a commit, published in the warehouse and listed in the commit log.

A snapshot is the data file of a copy (``weir.state.engine.copies``) under a name of its own, so that killed at any
point there is a listed file or one that nobody knows of. When to publish one, and listing it, belong to the driver.
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
from weir.state.engine.environment import sync_folder
from weir.state.engine.task_store import TaskStore
from weir.state.errors import StateError, TaskCorruptedError
from weir.state.stores.specs import SINCE
from weir.state.types import IsolationLevel, StoreKind, StoreSpec

SNAPSHOT_FOLDER = "_snapshots"


class SnapshotError(StateError):
    """A snapshot cannot be used: the changelog alone has to do."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"snapshot {self.path} {self.reason}; the changelog alone is read"


def has_snapshots(stores: Sequence[StoreSpec]) -> bool:
    """Whether snapshots serve a task with these stores.

    When a row grows old can depend on rows that did not change since a snapshot, so the index of expiry is made of
    all rows: a task with such a store restores from its changelogs alone.
    """
    return bool(stores) and all(
        (spec.retention_ms is None or spec.kind is StoreKind.WINDOW) and SINCE not in spec.value for spec in stores
    )


def publish_snapshot(app_folder: Path, instance: Path, task_id: str) -> SnapshotRef | None:
    """Copy the committed state of the task's ``instance`` into the warehouse, synced; the task may go on meanwhile.

    None when the task has heard of no commit yet.

    Raises:
        TaskCorruptedError: The instance cannot be read through.
    """
    with committed_copy(instance, task_id) as copy:
        if (state := copy.base) is None:
            return None
        with copy.reader(IsolationLevel.READ_UNCOMMITTED) as reader:
            rows = sum(reader.count(store) for store in copy.stores)
        folder = app_folder / SNAPSHOT_FOLDER / task_id
        folder.mkdir(parents=True, exist_ok=True)
        path, size_bytes = folder / f"{state}-{uuid.uuid4().hex[:12]}.mdb", copy.used_bytes
        part = path.with_suffix(".part")
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
    """Make a new instance of a snapshot in ``folder``, which must not exist, and return it open.

    With ``take`` its file is moved where it lies on the same file system, and copied elsewhere: copying is most of the
    time that a restore takes.

    Raises:
        SnapshotError: It is missing or damaged; what is in ``folder`` then is removed.
    """
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
    except (OSError, TaskCorruptedError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        reason = error.reason if isinstance(error, TaskCorruptedError) else error.strerror or str(error)
        raise SnapshotError(snapshot.path, f"cannot be read ({reason})") from error
    except SnapshotError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def remove_snapshots(app_folder: Path, snapshots: Iterable[SnapshotRef]) -> None:
    """Delete snapshots that a commit lists no more; harmless where they are gone."""
    for snapshot in snapshots:
        (app_folder / snapshot.path).unlink(missing_ok=True)


def remove_snapshots_but(app_folder: Path, listed: Iterable[SnapshotRef]) -> None:
    """Delete the files that no commit lists, as a killed driver leaves them."""
    kept = {app_folder / snapshot.path for snapshot in listed}
    for path in (app_folder / SNAPSHOT_FOLDER).glob("*/*"):
        if path not in kept:
            path.unlink(missing_ok=True)


def _move(source: Path, target: Path, size_bytes: int) -> int:
    """As ``_copy``, and without copying between folders of one file system."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return _copy(source, target, size_bytes)
    if (found := target.stat().st_size) != size_bytes:
        raise OSError(0, f"it has {found:,} bytes in place of {size_bytes:,}")
    with target.open("rb") as file:
        return _checksum(file, size_bytes)


def _copy(source: Path, target: Path, size_bytes: int) -> int:
    """Copy the first ``size_bytes`` into a new file, inside the kernel, and give the CRC-32 of what has arrived."""
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
