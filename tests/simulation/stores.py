"""The open stores of a world's processes: each has handles of its own, as a real one does, so that one which closes a
store, or opens another instance of the task, takes nothing away from the others.

To LMDB they are all one process, which must not open an environment twice. So they share it, and it is closed once the
last of them has closed it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import lmdb

from tests.simulation.replacing import modules_with, replace
from tests.simulation.scheduler import Process, Scheduler
from weir.state.engine.cache import TaskStoreCache

Cache = type[TaskStoreCache]
_OPENING = ("weir.state.engine.environment", "weir.state.engine.copies")
"""The modules that open environments."""


class Shared:
    """An open environment, and how many processes have it open."""

    def __init__(self, environment: lmdb.Environment) -> None:
        self.environment, self.users = environment, 0


class Handle:
    """An environment as one process has it open."""

    def __init__(self, shared: Shared) -> None:
        shared.users += 1
        self._shared: Shared | None = shared

    def __getattr__(self, name: str) -> Any:
        if self._shared is None:
            raise lmdb.Error("this process has closed the environment")
        return getattr(self._shared.environment, name)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.users -= 1
            if not shared.users:
                shared.environment.close()


class Stores:
    """What ``TaskStoreCache`` is to the code under test: the stores of the process that runs."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._caches: dict[Process | None, Cache] = {}
        self._shared: dict[tuple[int, int] | None, Shared] = {}
        """By file."""

    def __getattr__(self, name: str) -> Any:
        process = self._scheduler.current
        if process not in self._caches:
            self._caches[process] = none_open()
        return getattr(self._caches[process], name)

    @contextmanager
    def substituted(self) -> Iterator[None]:
        """Within the block all modules of the project open stores here."""
        with ExitStack() as stack:
            for module in modules_with("TaskStoreCache", TaskStoreCache):
                replace(stack, module, "TaskStoreCache", self)
            ours = SimpleNamespace(**{**vars(lmdb), "open": self._open})
            for name in _OPENING:
                replace(stack, sys.modules[name], "lmdb", ours)
            yield

    @contextmanager
    def using(self, cache: Cache) -> Iterator[None]:
        """Within the block the process that runs has the stores of ``cache``: it is a part of another one."""
        process = self._scheduler.current
        own = self._caches.get(process, cache)
        self._caches[process] = cache
        try:
            yield
        finally:
            self._caches[process] = own

    def close_all(self) -> None:
        """No process that has any is alive."""
        for shared in self._shared.values():
            shared.environment.close()
        self._shared.clear()
        self._caches.clear()

    def _open(self, path: str, **options: Any) -> Handle:
        shared = self._shared.get(_file(path))
        if shared is None or not shared.users:
            shared = Shared(lmdb.open(path, **options))
            self._shared[_file(path)] = shared
        return Handle(shared)


def none_open() -> Cache:
    """The stores of a process that has just begun."""

    class OwnStoreCache(TaskStoreCache):
        _open: ClassVar = {}
        _pid: ClassVar = os.getpid()

    return OwnStoreCache


def _file(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(f"{path}/data.mdb")
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
