"""What the code under test gets while a world runs, in place of clocks, random ids, threads and disks, and where it
hands over.

Everything else is real: the planner, the coordinator, the committer, tasks, operators, LMDB, files and Delta logs.
"""

from __future__ import annotations

import sys
import time
import types
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from typing import Any

from tests.simulation.replacing import modules_with, replace
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.storage import Calls, SimulatedFolder

BEGIN_S = 1_750_000_000.0
"""The wall clock when a world begins."""
POINTS = {
    "weir.state.commit.protocol": ("AppendTable.create", "check_files", "newest_of"),
    "weir.state.commit.tables": ("AppendTable.append",),
    "weir.state.commit.delta_log": ("DeltaLog.append", "DeltaLog.refresh"),
    "weir.state.engine.task_store": ("TaskStore.settle", "TaskStore.apply"),
    "weir.pipelines.tasks.epoch": ("read_blob", "write_blob", "write_files"),
    "weir.pipelines.spark.coordinator": ("sync_blobs", "remove_blobs", "remove_snapshots", "remove_orphans"),
    "weir.pipelines.spark.driver": ("quarantine",),
    "weir.pipelines.spark.restore_jobs": ("quarantine", "restore_task", "set_current"),
    "weir.pipelines.spark.snapshot_jobs": ("publish",),
    "weir.state.changelog.compaction": ("replace_files",),
}
"""Functions before which a process hands over, by the module through which they are called."""


class Clock:
    """The module ``time``, by simulated time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def monotonic(self) -> float:
        return 1_000.0 + self._scheduler.now_s

    perf_counter = monotonic

    def time(self) -> float:
        return BEGIN_S + self._scheduler.now_s + self._scheduler.wall_ahead_s

    def time_ns(self) -> int:
        return int(self.time() * 1e9)

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class Event:
    """``threading.Event`` for simulated processes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._is_set = scheduler, False
        self._waiting: list[Process] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for process in self._waiting:
            process.wakes_s = self._scheduler.now_s
        self._waiting.clear()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            process = self._scheduler.current
            if process is not None:
                self._waiting.append(process)
            self._scheduler.sleep(3600.0 if timeout is None else timeout)
            if process in self._waiting:
                self._waiting.remove(process)
        return self._is_set


class AtOnce:
    """``ThreadPoolExecutor`` whose work is done when it is submitted."""

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, work: Callable[..., Any], *each: Iterable[Any]) -> list[Any]:
        return list(map(work, *each))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass


def _module(of: types.ModuleType, **changed: Any) -> types.SimpleNamespace:
    """A module with other members."""
    return types.SimpleNamespace(**{**vars(of), **changed})


@contextmanager
def on_disk(fsync: Callable[[int], None], calls: Calls) -> Iterator[None]:
    """Within the block folders of the local disk are simulated ones, and descriptors are synced by ``fsync``."""
    modules = ("weir.state.storage.local", "weir.state.engine.environment")
    with ExitStack() as stack:
        for module in (sys.modules[name] for name in modules):
            replace(stack, module, "os", _module(module.os, fsync=fsync))
        places = sys.modules["weir.state.storage.places"]
        replace(stack, places, "Local", partial(SimulatedFolder, calls=calls))
        yield


@contextmanager
def substitutes(scheduler: Scheduler, rng: Random, boot_id: Callable[[], str]) -> Iterator[None]:
    """Within the block all modules of the project live in the simulated world; ``boot_id`` is another one after the
    power has failed."""
    clock = Clock(scheduler)
    ids = _module(uuid, uuid4=lambda: uuid.UUID(int=rng.getrandbits(128), version=4))
    with ExitStack() as stack:
        put = partial(replace, stack)
        for name, real, ours in (("time", time, clock), ("uuid", uuid, ids)):
            for module in modules_with(name, real):
                put(module, name, ours)
        loaded = sys.modules
        driver = loaded["weir.pipelines.spark.driver"]
        for name in ("Pace", "Beat"):
            put(driver, name, partial(getattr(driver, name), now_s=clock.monotonic))
        made = driver._Clock
        put(driver, "_Clock", lambda: made(commit=clock.monotonic(), topics=clock.monotonic()))
        put(driver, "Event", partial(Event, scheduler))
        put(driver, "IDLE_WAIT_S", 0.1)  # fewer looks that find nothing

        put(
            loaded["weir.pipelines.spark.under_way"],
            "threading",
            types.SimpleNamespace(Event=partial(Event, scheduler)),
        )
        turns = loaded["weir.state.engine.turns"]
        put(turns, "monotonic", clock.monotonic)
        put(turns, "sleep", clock.sleep)
        protocol = loaded["weir.state.commit.protocol"]
        put(protocol, "as_completed", lambda futures: rng.sample(list(futures), len(futures)))
        for module in (driver, protocol):
            put(module, "ThreadPoolExecutor", AtOnce)
        put(loaded["weir.state.storage.syncs"], "_syncing", AtOnce)
        put(loaded["weir.state.engine.environment"], "boot_id", boot_id)
        for module_name, names in POINTS.items():
            for name in names:
                _make_point(scheduler, loaded[module_name], name, stack)
        local = loaded["weir.state.storage.local"]
        put(local, "os", _module(local.os, link=_linking(scheduler, local.os.link)))
        yield


def _make_point(scheduler: Scheduler, module: types.ModuleType, name: str, stack: ExitStack) -> None:
    owner_name, _, member = name.rpartition(".")
    owner = getattr(module, owner_name) if owner_name else module
    original = getattr(owner, member)

    def passing(*arguments: Any, **options: Any) -> Any:
        scheduler.point(f"before {name}")
        return original(*arguments, **options)

    is_bound = isinstance(vars(owner).get(member), classmethod)
    replace(stack, owner, member, staticmethod(passing) if is_bound else passing)


def _linking(scheduler: Scheduler, link: Callable[..., None]) -> Callable[..., None]:
    def linking(source: Any, target: Any) -> None:
        link(source, target)
        scheduler.point(f"linked {target.parent.parent.name} {target.name}")

    return linking
