"""Files that become durable together, while others are still being written."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

from weir.state.storage.contract import Folder

_THREADS = 4
"""How many syncs wait for the disk at the same time: its journal makes them durable together."""


class Syncs:
    """Files that are synced while others are still being written."""

    def __init__(self) -> None:
        self.added: list[tuple[Folder, str]] = []
        """All of them, by folder and name, in the order in which they were begun."""
        self._begun: list[Future[None]] = []
        self._folders: set[Folder] = set()

    def begin(self, folder: Folder, name: str) -> None:
        """Sync a file of a folder that is complete; the folder is synced by ``wait``."""
        self.added.append((folder, name))
        self._begun.append(_syncing().submit(folder.sync_content, name))
        self._folders.add(folder)

    def wait(self) -> None:
        """Return once all files and their folders are durable; raises the error of one that is not."""
        # 1. Files written and synced: at the same time, since nobody knows their names before all of it is durable
        for begun in [*self._begun, *(_syncing().submit(folder.sync) for folder in self._folders)]:
            begun.result()
        self._begun, self._folders = [], set()


def begin_sync(sync: Callable[[Path], None], path: Path) -> Future[None]:
    """Sync a file of the local disk while other things are done."""
    return _syncing().submit(sync, path)


@cache
def _syncing() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, "sync")
