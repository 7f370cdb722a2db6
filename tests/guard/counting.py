"""Counts what Weir does while a piece of work runs: calls, queries, transactions, syncs, requests, bytes."""

from __future__ import annotations

import functools
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any
from unittest.mock import patch

import deltalake
import numpy as np
import polars as pl

import weir
from weir.state.engine.environment import _META, DATA, PAGE_BYTES
from weir.state.storage.contract import Folder
from weir.state.storage.local import Local

Counts = dict[str, int]

WEIR = f"{Path(str(weir.__file__)).parent}/"
_PACKAGES = {
    WEIR: "python",
    f"{Path(str(pl.__file__)).parent}/": "polars",
    f"{Path(str(deltalake.__file__)).parent}/": "delta_rs",
}
"""What the counts of calls are called, by the folder of the functions."""
_COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>"}
"""Functions of their own up to Python 3.11, and no calls since."""
_OF_C = {
    ("posix", "fsync"): "syncs",
    ("posix", "fdatasync"): "syncs",
    ("posix", "sync"): "syncs",
    ("Environment", "sync"): "syncs",
    ("Environment", "begin"): "lmdb_transactions",
    ("Environment", "open_db"): "lmdb_transactions",
    ("PyLazyFrame", "collect"): "polars_queries",
}
"""What calls of functions of C are counted as, by module or class, and name."""
_CALLERS = 3
"""How many lines are kept for each place: that which calls, and those that have led there."""
_NO_REQUESTS = {"at_once", "begun"}
"""Methods of a folder that ask its storage nothing by themselves."""


def counted(work: Callable[[], object], folder: Path) -> Counts:
    """What ``work`` does in this thread, with its files and stores below ``folder``; counts of 0 are left out."""
    before, calls = _Disk(folder), _Calls()
    _listening(calls, work)
    return {**calls.counts, **_Disk(folder).since(before)}


def places_of(work: Callable[[], object]) -> Mapping[str, Counter[str]]:
    """By the name of a count, in which lines of Weir's what it counts is done."""
    calls = _Places()
    _listening(calls, work)
    return calls.places


def _listening(calls: _Calls, work: Callable[[], object]) -> None:
    profile = sys.getprofile()
    with _storage_requests(calls):
        sys.setprofile(calls)
        try:
            work()
        finally:
            sys.setprofile(profile)


class _Calls:
    """Hears of each call, and counts."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self._packages: dict[CodeType, str | None] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            package = self.package(frame.f_code)
            if package == "python":
                if frame.f_code.co_name not in _COMPREHENSIONS:
                    self.note("python_calls", frame)
            elif package is not None and frame.f_back and self.package(frame.f_back.f_code) == "python":
                self.note(f"{package}_calls", frame)
        elif event == "c_call":
            of = argument.__self__
            name = of.__name__ if isinstance(of, ModuleType) else type(of).__name__
            if (what := _OF_C.get((name, argument.__name__))) is not None:
                self.note(what, frame)

    def note(self, what: str, frame: FrameType) -> None:
        """``what`` was done, in ``frame`` or by calling it."""
        self.counts[what] += 1

    def package(self, code: CodeType) -> str | None:
        if code not in self._packages:
            names = (name for folder, name in _PACKAGES.items() if code.co_filename.startswith(folder))
            self._packages[code] = next(names, None)
        return self._packages[code]


class _Places(_Calls):
    """Also keeps where."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, Counter[str]] = defaultdict(Counter)

    def note(self, what: str, frame: FrameType) -> None:
        found, lines = frame.f_back if what == "python_calls" else frame, list[str]()
        while found is not None and len(lines) < _CALLERS:
            if self.package(found.f_code) == "python":
                lines.append(f"{found.f_code.co_filename.removeprefix(WEIR)}:{found.f_lineno}")
            found = found.f_back
        self.places[what][" < ".join(lines)] += 1


class _Disk:
    """The files below a folder as they are now."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
        self._maps = {path: _pages(path) for path in self._files if path.name == DATA}

    def since(self, before: _Disk) -> Counter[str]:
        """What was written, by what it is for: the sizes of files that are new or changed, the pages of LMDB's maps,
        and how many of its transactions have written."""
        found = Counter[str]()
        for path, now in self._files.items():
            then = before._files.get(path)
            if path in self._maps:
                was, data = before._maps.get(path, b""), self._maps[path]
                found["bytes_map"] += PAGE_BYTES * _pages_changed(was, data)
                found["lmdb_writes"] += _last_write(data) - _last_write(was)
            elif then is None or (then.st_ino, then.st_mtime_ns) != (now.st_ino, now.st_mtime_ns):
                found[f"bytes_{_purpose(path.relative_to(self._folder))}"] += now.st_size
        return +found


def _pages(data: Path) -> bytes:
    """Those in use of an environment's file; behind them is only room."""
    with data.open("rb") as file:
        metas = [_META.unpack(file.read(PAGE_BYTES)[: _META.size]) for _ in range(2)]
        file.seek(0)
        return file.read((max(last_page for *_, last_page, _ in metas) + 1) * PAGE_BYTES)


def _pages_changed(before: bytes, now: bytes) -> int:
    size = max(len(before), len(now))
    pages = [np.frombuffer(each.ljust(size, b"\0"), np.uint64).reshape(-1, PAGE_BYTES // 8) for each in (before, now)]
    return int((pages[0] != pages[1]).any(axis=1).sum())


def _last_write(data: bytes) -> int:
    """The number of the newest transaction that has written."""
    return max(_META.unpack_from(data, page * PAGE_BYTES)[4] for page in range(2)) if data else 0


def _purpose(path: Path) -> str:
    """What a file is for, by its path below the folder of a run."""
    if path.parts[0] == "state":
        return "state_files"
    if path.parts[2] == "_commits":
        return "commit_log"
    if "_delta_log" in path.parts:
        return "delta_logs"
    return {"_changelog": "changelogs", "_blobs": "blobs"}.get(path.parts[2], "outputs")


@contextmanager
def _storage_requests(calls: _Calls) -> Iterator[None]:
    """Note the calls of each method of a folder, without those that it makes of others."""
    depth = 0

    def noting(name: str, method: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(method)
        def call(*arguments: object, **options: object) -> object:
            nonlocal depth
            if not depth:
                calls.note(f"requests_{name}", sys._getframe(1))
            depth += 1
            try:
                return method(*arguments, **options)
            finally:
                depth -= 1

        return call

    methods = [name for name in vars(Folder) if not name.startswith("_") and callable(getattr(Local, name, None))]
    asking = {name: noting(name, getattr(Local, name)) for name in methods if name not in _NO_REQUESTS}
    with patch.multiple(Local, **asking):
        yield


@contextmanager
def at_once() -> Iterator[None]:
    """What is given to pools of threads is done at once, by the thread that gives it: only that one is counted."""

    def submit(
        pool: ThreadPoolExecutor, work: Callable[..., object], /, *given: object, **options: object
    ) -> Future[object]:
        future = Future[object]()
        try:
            future.set_result(work(*given, **options))
        except BaseException as error:
            future.set_exception(error)
        return future

    with patch.object(ThreadPoolExecutor, "submit", submit):
        yield
