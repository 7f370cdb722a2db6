"""A compact copy of an instance at its last commit, made while its task may go on writing.

The copy is one snapshot of LMDB's; what was uncommitted in it is rolled back in the copy. Comparing copies is
``weir.state.changelog.verify``, publishing them ``weir.state.changelog.snapshot``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.environment import MAX_DATABASES
from weir.state.engine.task_store import TaskStore
from weir.state.errors import TaskCorruptedError

_PREFIX = ".copy-"


@contextmanager
def committed_copy(folder: Path, task_id: str) -> Iterator[TaskStore]:
    """A copy of the instance in ``folder``, open, with no undo log; it is removed at the end of the block.

    Its state is the last commit that the task has heard of, None before the first. It lies beside the instance for
    as long as it is needed; copies of processes that have died are removed first.

    Raises:
        TaskCorruptedError: The instance cannot be read through, or its counts are wrong.
    """
    for left in folder.parent.glob(f"{_PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(_PREFIX).partition("-")[0]).exists():
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{_PREFIX}{os.getpid()}-") as scratch:
        target = Path(scratch)
        try:
            _copy(folder, target)
        except lmdb.Error as error:
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
    with lmdb.open(str(folder), readonly=True, max_dbs=MAX_DATABASES, create=False) as source:
        source.copy(str(target), compact=True)
