"""A compact copy of an instance at its last commit; its task may keep writing meanwhile.

The copy is taken from one LMDB snapshot, and uncommitted writes are rolled back in the copy. Copies are compared by
``weir.state.changelog.verify`` and published by ``weir.state.changelog.snapshot``.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.environment import FILE_MODE, MAX_DATABASES
from weir.state.engine.processes import is_alive, own_mark
from weir.state.engine.task_store import TaskStore
from weir.state.errors import TaskCorruptedError
from weir.state.full_disk import disk_full, is_disk_full

_PREFIX = ".copy-"


@contextmanager
def committed_copy(folder: Path, task_id: str) -> Iterator[TaskStore]:
    """An open copy of the instance in ``folder``, without an undo log; it is removed at the end of the block.

    Its state is the last commit that the task knows of, None before the first. The copy's folder is next to the
    instance's; copies left by dead processes are removed first.

    Raises:
        TaskCorruptedError: The instance cannot be read in full, or its row counts are wrong.
        DiskFullError: There is no room for the copy.
    """
    for left in folder.parent.glob(f"{_PREFIX}*"):
        if not is_alive(left.name.removeprefix(_PREFIX).partition("-")[0]):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{_PREFIX}{own_mark()}-") as scratch:
        target = Path(scratch)
        try:
            _copy(folder, target)
        except lmdb.Error as error:
            if is_disk_full(error):
                raise disk_full(error, f"a copy of task {task_id}", [target]) from error
            raise TaskCorruptedError(task_id, str(folder), f"LMDB: {error}") from error
        copy = TaskStore.adopt(target, task_id)
        try:
            copy.settle(generation=copy.generation, expected=copy.base, committed=copy.base)
            yield copy
        finally:
            copy.close()


def _copy(folder: Path, target: Path) -> None:
    if (opened := TaskStoreCache.opened(folder)) is not None:
        opened.copy_to(target)
        return
    with lmdb.open(str(folder), readonly=True, max_dbs=MAX_DATABASES, create=False, mode=FILE_MODE) as source:
        source.copy(str(target), compact=True)
