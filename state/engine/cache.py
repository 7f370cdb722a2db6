"""Open task stores by folder, one cache per process: LMDB environments are opened after Spark's fork.

Losing a cached store is harmless; it is used only while its folder still holds the files it was opened from. Of a
task's instances one is open, so that nothing holds on to one that a restore has replaced.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from weir.state.engine.environment import missing
from weir.state.engine.task_store import TaskStore
from weir.state.own_stores import Supplier


class TaskStoreCache:
    """The task stores that this process has open."""

    _open: ClassVar[dict[Path, tuple[TaskStore, tuple[int, int]]]] = {}
    _pid: ClassVar[int] = 0

    @classmethod
    def get(
        cls, folder: Path, task_id: str, stores: Sequence[str], suppliers: Mapping[str, Supplier] | None = None
    ) -> TaskStore:
        """The open store of an instance folder, opened on first use; raises as ``TaskStore.open``."""
        if cls._pid != os.getpid():  # environments of a parent process must not be used, nor closed, after a fork
            cls._open, cls._pid = {}, os.getpid()
        try:
            files = os.stat(folder / "data.mdb")
        except FileNotFoundError:
            cls.discard(folder)
            raise missing(folder, task_id) from None
        identity = (files.st_dev, files.st_ino)
        cached = cls._open.get(folder)
        if cached is not None and cached[1] == identity and cached[0].has_stores(stores, suppliers):
            return cached[0]
        cls.discard_all(folder.parent)  # this instance, or one that a restore has replaced
        store = TaskStore.open(folder, task_id, stores, suppliers)
        cls._open[folder] = (store, identity)
        return store

    @classmethod
    def opened(cls, folder: Path) -> TaskStore | None:
        """A folder's store if this process has it open; a process must not open an LMDB environment twice."""
        cached = cls._open.get(folder) if cls._pid == os.getpid() else None
        return None if cached is None else cached[0]

    @classmethod
    def discard(cls, folder: Path) -> None:
        """Close a folder's store, if it is open: after an error, or when the task has moved away."""
        cached = cls._open.pop(folder, None)
        if cached is not None and cls._pid == os.getpid():
            cached[0].close()

    @classmethod
    def discard_all(cls, task_folder: Path) -> None:
        """``discard`` for every instance of a task."""
        for folder in [folder for folder in cls._open if folder.parent == task_folder]:
            cls.discard(folder)

    @classmethod
    def close_all(cls, *, clean: bool = False) -> None:
        """Close every store of this process; ``clean`` as for ``TaskStore.close``."""
        for store, _ in cls._open.values():
            store.close(clean=clean)
        cls._open = {}
