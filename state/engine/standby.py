"""Standbys: a task's stores once more, on another executor, which follow its commits so that a restore there is short.

A standby is the folder ``.standby`` below the task's, which is no instance: nobody runs epochs on it, and only queries
that say so read it. It begins with the instance that the task has left there, or as a restore does, from a snapshot or
from the changelogs, and goes on by the changelogs' rows since. A restore takes it over where it is
(``weir.state.changelog.restore``). It is trusted only in the generation that made it, or that goes on with it: another
one may have other columns, or rows that a backfill has put in. Choosing its executor belongs to the driver.
"""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.contract import Settlement
from weir.state.engine.doubts import doubt_of
from weir.state.engine.environment import replace_file
from weir.state.engine.in_memory import place
from weir.state.engine.instances import instance_folder
from weir.state.engine.task_store import TaskStore
from weir.state.engine.views import NewestView, open_reader
from weir.state.errors import StateError, TaskCorruptedError
from weir.state.types import IsolationLevel, StateId

_FOLDER, _NEW, _LOCK, _UNNEEDED = ".standby", ".standby-new", ".standby.lock", ".standby.unneeded"
_FOLLOWS = "follows"
"""A file in its folder while rows are loaded: of a standby that has it, nobody knows what it holds."""
_REACHED = "reached.json"
_LOOK_S = 0.05
READING_S = 1.0
"""How long a query and what brings a standby to a commit wait for each other at most; a query takes it for a moment."""


class StandbyError(StateError):
    """There is no standby that could be used."""


@dataclass(frozen=True, kw_only=True)
class Left:
    """An instance that its task has left, since it runs on another executor from a commit on."""

    instance: str
    state: StateId
    """The task's state as of that commit."""


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The commit that a standby was brought to last."""

    commit: StateId
    at_ms: int
    """When it was made, by its row of the commit log: commits of another log may have the same id."""
    instance: str
    """That of the task then."""


_REACHED_FILES = msgspec.json.Decoder(Reached)


def standby_folder(task: Path) -> Path:
    """The folder of the standby in a task's folder."""
    return task / _FOLDER


def standbys(state_folder: Path) -> Iterator[Path]:
    """The folders of the standbys in an application's tasks, those included that were never finished."""
    yield from sorted(
        {standby_folder(found.parent) for name in (_FOLDER, _NEW) for found in state_folder.glob(f"*/{name}")}
    )


def unneeded_mark(folder: Path) -> Path:
    """The file beside a standby's folder since whose time nobody has needed the standby."""
    return folder.with_name(_UNNEEDED)


def reached_by(task: Path) -> Reached | None:
    """The commit that the standby in a task's folder was brought to last; None if there is no standby, or it was never
    brought to one."""
    try:
        return _REACHED_FILES.decode((task / _FOLDER / _REACHED).read_bytes())
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


@contextmanager
def standby_of(task: Path, wait_s: float = 0.0) -> Iterator[Standby]:
    """The standby in a task's folder, which nobody else changes meanwhile.

    Raises:
        StandbyError: Another process is still at it after ``wait_s``, perhaps one that hangs.
    """
    task.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + wait_s
    with (task / _LOCK).open("ab") as lock:
        while not _is_locked(lock):
            if time.monotonic() > until_s:
                raise StandbyError(f"another process is at the standby in {task}")
            time.sleep(_LOOK_S)
        yield Standby(task)


@contextmanager
def reading_standby(task: Path, isolation: IsolationLevel, wait_s: float = READING_S) -> Iterator[NewestView | None]:
    """A snapshot of the standby in a task's folder, which may follow on meanwhile; None if there is none, or if it is
    still following after ``wait_s``."""
    if not (task / _LOCK).exists():
        yield None
        return
    with ExitStack() as held:
        until_s = time.monotonic() + wait_s
        with (task / _LOCK).open("rb") as lock:
            while not (is_locked := _is_locked(lock, fcntl.LOCK_SH)) and time.monotonic() < until_s:
                time.sleep(_LOOK_S)
            is_there = is_locked and (task / _FOLDER).is_dir() and not (task / _FOLDER / _FOLLOWS).exists()
            view = held.enter_context(open_reader(task / _FOLDER, isolation)) if is_there else None
        yield view


def _is_locked(lock: IO[bytes], how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Standby:
    """The standby in a task's folder, for as long as ``standby_of`` keeps others from it."""

    def __init__(self, task: Path) -> None:
        self._task, self._folder, self.new = task, task / _FOLDER, task / _NEW
        """``new`` is where one is built, or removed."""

    def opened(
        self,
        task_id: str,
        stores: Sequence[str],
        generation: int,
        through: StateId,
        left: Left | None = None,
        before: int | None = None,
    ) -> TaskStore | None:
        """Its store, which ``generation`` can trust, or has from the generation ``before``, and which can follow to the
        commit ``through``; else what is ``left``, which becomes the standby. None if neither can be used; a standby
        that cannot is removed."""
        shutil.rmtree(self.new, ignore_errors=True)  # of a process that died
        unneeded_mark(self._folder).unlink(missing_ok=True)
        store = self._trusted(task_id, stores, generation, through, before)
        if store is None and left is not None and self._recycled(left, task_id, stores, generation):
            store = self._trusted(task_id, stores, generation, through, None)
        return store

    def _trusted(
        self, task_id: str, stores: Sequence[str], generation: int, through: StateId, before: int | None
    ) -> TaskStore | None:
        if not self._folder.is_dir():
            return None
        try:
            if not (self._folder / _FOLLOWS).exists():
                store = TaskStore.open(self._folder, task_id, stores)
                try:
                    base = store.base
                    is_older = base is not None and base == store.current and base.epoch <= through.epoch
                    if is_older and store.generation in (generation, before):
                        if store.generation != generation:
                            store.settle(generation=generation, expected=base, committed=base)
                        return store
                except BaseException:
                    store.close()
                    raise
                store.close()
        except TaskCorruptedError:
            pass
        self.remove()
        return None

    def _recycled(self, left: Left, task_id: str, stores: Sequence[str], generation: int) -> bool:
        """Whether the instance that is ``left`` is the standby from now on, without what the commit does not have."""
        instance = instance_folder(self._task, left.instance)
        if not instance.is_dir() or doubt_of(instance) is not None:
            return False
        try:
            place(instance, in_memory=False)
            TaskStoreCache.discard(instance)
            store = TaskStore.open(instance, task_id, stores)
            try:
                settled = store.settle(generation=generation, expected=left.state, committed=left.state)
            finally:
                store.close()
            if settled is not Settlement.NEEDS_RESTORE:
                instance.rename(self._folder)
                return True
        except (StateError, OSError):  # a standby is then built, and the instance is cleaned up in time
            pass
        return False

    def note(self, reached: Reached) -> None:
        """It has been brought to this commit."""
        replace_file(self._folder / _REACHED, msgspec.json.encode(reached))

    def built(self) -> None:
        """What is in ``new``, and closed, is the standby from now on."""
        self.new.rename(self._folder)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Rows are loaded into it; if that fails, it is removed."""
        (self._folder / _FOLLOWS).touch()
        try:
            yield
        except BaseException:
            self.remove()
            raise
        (self._folder / _FOLLOWS).unlink()

    def take(self, instance: Path) -> None:
        """Its folder becomes that of an instance, which must not exist; its store must be closed."""
        (self._folder / _REACHED).unlink(missing_ok=True)
        self._folder.rename(instance)

    def remove(self) -> None:
        """It is gone at once: a kill leaves nothing that could be taken for a standby."""
        shutil.rmtree(self.new, ignore_errors=True)
        if self._folder.is_dir():
            self._folder.rename(self.new)
            shutil.rmtree(self.new, ignore_errors=True)
