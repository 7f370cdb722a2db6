"""Folders of the local file system, as ``weir.state.storage.contract`` wants them.

A file gets its name by a link or a rename once its content is on disk; then the folder is synced.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from weir.state.engine.environment import make_folders, sync_file, sync_folder
from weir.state.full_disk import writing
from weir.state.storage.contract import File, Result, Staged, Target
from weir.state.storage.copying import copy, move
from weir.state.storage.syncs import begin_sync

_SCRATCH_SUFFIX = ".tmp"
_SCRATCH_LIFE_S = 3600.0
_REMOVED = ".removed"


@dataclass(frozen=True)
class Local:
    """A folder of the local file system."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def parent(self) -> Local:
        return Local(self.path.parent)

    @property
    def uri(self) -> str:
        return str(self.path)

    @property
    def options(self) -> None:
        return None

    def __truediv__(self, name: str) -> Local:
        return Local(self.path / name)

    def __str__(self) -> str:
        return str(self.path)

    def make(self) -> None:
        make_folders(self.path)

    def get(self, name: str) -> bytes:
        with open(f"{self.path}/{name}", "rb", buffering=0) as file:
            return file.read()

    def get_range(self, name: str, start: int, length: int) -> bytes:
        with open(f"{self.path}/{name}", "rb") as file:
            file.seek(start)
            return file.read(length)

    def find(self, name: str) -> File | None:
        try:
            found = os.stat(f"{self.path}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return File(name=name, size_bytes=found.st_size, modified_s=found.st_mtime)

    def at_once(self, calls: Iterable[Callable[[], Result]]) -> Sequence[Result]:
        return [call() for call in calls]

    @contextmanager
    def begun(self, calls: Iterable[Callable[[], Result]]) -> Iterator[Callable[[], Sequence[Result]]]:
        results = self.at_once(calls)
        yield lambda: results

    def list(self, prefix: str = "", *, after: str = "", below: bool = False) -> Iterator[File]:
        parent, _, start = prefix.rpartition("/")
        yield from self._list(parent, start, after, below=below)

    def _list(self, parent: str, start: str, after: str, *, below: bool) -> Iterator[File]:
        try:
            entries = os.scandir(f"{self.path}/{parent}")
        except (FileNotFoundError, NotADirectoryError):
            return
        with entries:
            for entry in entries:
                if entry.name.startswith(".") or not entry.name.startswith(start):
                    continue
                name = f"{parent}/{entry.name}" if parent else entry.name
                if entry.is_dir():
                    if below:
                        yield from self._list(name, "", after, below=True)
                elif name > after:
                    try:
                        found = entry.stat()
                    except FileNotFoundError:  # deleted meanwhile
                        continue
                    yield File(name=name, size_bytes=found.st_size, modified_s=found.st_mtime)

    def folders(self) -> Iterator[str]:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.path) as entries:
            for entry in entries:
                if entry.is_dir() and not entry.name.startswith("."):
                    yield entry.name

    def put(self, name: str, data: bytes) -> None:
        path = self.path / name
        make_folders(path.parent)
        with _scratch(path.parent, data) as scratch:
            os.replace(scratch, path)
        sync_folder(path.parent)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        staged = self.stage(data)
        try:
            return self.put_staged_if_absent(name, staged)
        finally:
            self.drop(staged)

    def stage(self, data: bytes) -> Staged:
        scratch = _new_scratch(self.path)
        try:
            scratch.write_bytes(data)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
        return Staged(data=data, scratch=scratch, synced=begin_sync(sync_file, scratch))

    def put_staged_if_absent(self, name: str, staged: Staged) -> bool:
        assert staged.scratch is not None
        assert staged.synced is not None
        path = self.path / name
        staged.synced.result()
        try:
            os.link(staged.scratch, path)
        except FileExistsError:
            return False
        sync_folder(path.parent)
        return True

    def drop(self, staged: Staged) -> None:
        assert staged.scratch is not None
        staged.scratch.unlink(missing_ok=True)

    def add(
        self, name: str, write: Callable[[Target], object], *, what: str, needed: int, is_durable: bool = True
    ) -> int:
        path = self.path / name
        with writing(path, what, needed):
            make_folders(path.parent)
            write(str(path))
            if is_durable:
                sync_file(path)
                sync_folder(path.parent)
        return path.stat().st_size

    def upload(self, name: str, source: Path, size_bytes: int, *, what: str) -> int:
        path = self.path / name
        with writing(path, what, size_bytes):
            make_folders(path.parent)
            checksum = copy(source, path, size_bytes)
            sync_file(path)
            sync_folder(path.parent)
        return checksum

    def download(self, name: str, target: Path, size_bytes: int, *, take: bool = False) -> int:
        return (move if take else copy)(self.path / name, target, size_bytes)

    def sync(self, names: Iterable[str] = ()) -> None:
        folders = {self.path}
        for name in names:
            self.sync_content(name)
            folders.add((self.path / name).parent)
        for folder in folders:
            sync_folder(folder)

    def sync_content(self, name: str) -> None:
        sync_file(self.path / name)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def delete_folder(self, name: str) -> None:
        aside = self.path / _REMOVED
        while (self.path / name).exists():
            with suppress(FileNotFoundError):  # another process has just emptied it
                aside.mkdir(exist_ok=True)
                (self.path / name).rename(aside / uuid.uuid4().hex)
                break  # what is there now is another one
        shutil.rmtree(aside, ignore_errors=True)

    def remove_empty(self, name: str) -> None:
        with suppress(OSError):  # not empty
            (self.path / name).rmdir()

    def remove_leftovers(self) -> None:
        shutil.rmtree(self.path / _REMOVED, ignore_errors=True)
        for scratch in self.path.glob(f".*{_SCRATCH_SUFFIX}"):
            with suppress(FileNotFoundError):  # its writer was quicker
                if time.time() - scratch.stat().st_mtime > _SCRATCH_LIFE_S:
                    scratch.unlink()


def _new_scratch(folder: Path) -> Path:
    return folder / f".{uuid.uuid4().hex}{_SCRATCH_SUFFIX}"


@contextmanager
def _scratch(folder: Path, data: bytes) -> Iterator[Path]:
    """The content on disk, under a hidden name."""
    scratch = _new_scratch(folder)
    try:
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield scratch
    finally:
        scratch.unlink(missing_ok=True)
