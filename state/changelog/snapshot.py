"""Snapshots: compact copies of a task's stores at a commit, published in the warehouse and listed in the commit log.

A snapshot is the data file of a copy (``weir.state.engine.copies``) under a unique name, so a kill at any point
leaves either a listed file or one that no commit names. When to publish one is up to the driver, which also lists it.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from weir.state.commit.record import SnapshotRef
from weir.state.engine.copies import committed_copy
from weir.state.engine.environment import FREE_DISK_RESERVE_BYTES
from weir.state.engine.task_store import TaskStore
from weir.state.errors import DiskFullError, StateError, TaskCorruptedError
from weir.state.full_disk import disk_full, is_disk_full, require_room
from weir.state.storage.object_store import is_away
from weir.state.storage.places import Place, folder_at
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


def publish_snapshot(app_folder: Place, instance: Path, task_id: str) -> SnapshotRef | None:
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
        path, size_bytes = f"{SNAPSHOT_FOLDER}/{task_id}/{state}-{uuid.uuid4().hex[:12]}.mdb", copy.used_bytes
        checksum = folder_at(app_folder).upload(
            path, copy.folder / "data.mdb", size_bytes, what=f"the snapshot of task {task_id}"
        )
    return SnapshotRef(path=path, state=state, size_bytes=size_bytes, crc32=checksum, rows=rows)


def fetch_snapshot(
    app_folder: Place, snapshot: SnapshotRef, folder: Path, task_id: str, *, take: bool = False
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
        warehouse = folder_at(app_folder)
        checksum = warehouse.download(snapshot.path, folder / "data.mdb", snapshot.size_bytes, take=take)
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
        if is_away(error):
            raise
        if is_disk_full(error):
            raise disk_full(error, f"task {task_id}", [folder], snapshot.size_bytes) from error
        reason = error.reason if isinstance(error, TaskCorruptedError) else error.strerror or str(error)
        raise SnapshotError(snapshot.path, f"cannot be read ({reason})") from error
    except SnapshotError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def remove_snapshots(app_folder: Place, snapshots: Iterable[SnapshotRef]) -> None:
    """Delete snapshots that are no longer listed; harmless if they are already gone."""
    folder_at(app_folder).delete(snapshot.path for snapshot in snapshots)


def snapshot_files(app_folder: Place) -> list[str]:
    """The paths of snapshots that are there, and of those that were never finished."""
    return [file.name for file in folder_at(app_folder).list(f"{SNAPSHOT_FOLDER}/", below=True)]


def remove_snapshots_but(app_folder: Place, found: Iterable[str], listed: Iterable[SnapshotRef]) -> None:
    """Delete files that the newest commit does not list, for example those left by a killed driver.

    ``found`` are the files of before the driver's claim: those of a newer driver are not among them.
    """
    folder_at(app_folder).delete({*found} - {snapshot.path for snapshot in listed})
