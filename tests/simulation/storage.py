"""The warehouse of a world: a storage that keeps the promises of ``weir.state.storage.contract``, and fails.

Its files are real ones, in a file system in memory, because delta-rs and polars open them by their paths. ``PageCache``
is the journal beside them: it hears every fsync of the code under test, and winds the files back when the power fails.
What delta-rs writes itself is not synced until somebody syncs it, as on a disk.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import lmdb

from weir.state.engine.environment import MAX_DATABASES
from weir.state.storage.contract import File, Staged, Target
from weir.state.storage.local import Local

Calls = Callable[[str, str], AbstractContextManager[None]]
"""What is around a call, given its kind and the name of the file: it may fail before, or its answer may be lost. Calls
that read may only fail before, and are not within it."""


@dataclass(frozen=True)
class SimulatedFolder(Local):
    """A folder of which each call may fail."""

    calls: Calls = field(compare=False, repr=False)

    @property
    def parent(self) -> SimulatedFolder:
        return SimulatedFolder(self.path.parent, self.calls)

    def __truediv__(self, name: str) -> SimulatedFolder:
        return SimulatedFolder(self.path / name, self.calls)

    def __str__(self) -> str:
        return str(self.path)

    def get(self, name: str) -> bytes:
        self.calls("get", name)
        return super().get(name)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        self.calls("get", name)
        return super().get_range(name, start, length)

    def find(self, name: str) -> File | None:
        self.calls("find", name)
        return super().find(name)

    def list(self, prefix: str = "", *, after: str = "", below: bool = False) -> Iterator[File]:
        self.calls("list", prefix)
        yield from super().list(prefix, after=after, below=below)

    def folders(self) -> Iterator[str]:
        self.calls("folders", "")
        yield from super().folders()

    def make(self) -> None:
        with self.calls("make", ""):
            super().make()

    def put(self, name: str, data: bytes) -> None:
        with self.calls("put", name):
            super().put(name, data)

    def stage(self, data: bytes) -> Staged:
        with self.calls("stage", ""):
            return super().stage(data)

    def put_staged_if_absent(self, name: str, staged: Staged) -> bool:
        with self.calls("put_if_absent", name):
            return super().put_staged_if_absent(name, staged)

    def add(
        self, name: str, write: Callable[[Target], object], *, what: str, needed: int, is_durable: bool = True
    ) -> int:
        with self.calls("add", name):
            return super().add(name, write, what=what, needed=needed, is_durable=is_durable)

    def upload(self, name: str, source: Path, size_bytes: int, *, what: str) -> int:
        with self.calls("upload", name):
            return super().upload(name, source, size_bytes, what=what)

    def download(self, name: str, target: Path, size_bytes: int, *, take: bool = False) -> int:
        self.calls("download", name)
        return super().download(name, target, size_bytes, take=take)

    def sync(self, names: Iterable[str] = ()) -> None:
        with self.calls("sync", ""):
            super().sync(names)

    def sync_content(self, name: str) -> None:
        with self.calls("sync_content", name):
            super().sync_content(name)

    def delete(self, names: Iterable[str]) -> None:
        with self.calls("delete", ""):
            super().delete(names)

    def delete_folder(self, name: str) -> None:
        with self.calls("delete_folder", name):
            super().delete_folder(name)

    def remove_empty(self, name: str) -> None:
        with self.calls("remove_empty", name):
            super().remove_empty(name)

    def remove_leftovers(self) -> None:
        with self.calls("remove_leftovers", ""):
            super().remove_leftovers()


class PageCache:
    """Which contents and names below ``root`` are on disk. ``kept``, in the same file system, has what must not go."""

    def __init__(self, root: Path, kept: Path) -> None:
        self._root, self._kept = root, kept
        kept.mkdir(parents=True)
        root.mkdir(parents=True)
        self._at_hand = set[int]()
        """Files, by inode, that are kept."""
        self._synced: set[int] = set()
        """Files, by inode, of which the content is on disk."""
        self._names: dict[int, dict[str, int]] = {}
        """By the inode of a folder, its names that are on disk, with their inodes."""

    def fsync(self, descriptor: int) -> None:
        """What ``os.fsync`` is to the code under test."""
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path != str(self._root) and not path.startswith(f"{self._root}/"):
            return
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            self._names[found.st_ino] = self._names_in(path)
        else:
            self._synced.add(found.st_ino)
            self._keep(path, found.st_ino)

    def lose_power(self, rng: Random) -> list[str]:
        """Of what is not on disk, lose some: each name is as it is or as it was, each content is whole, cut or empty.

        Returns what is not as it was a moment ago.
        """
        changed = list[str]()
        self._settle(self._root, rng, rng.choice([0.0, 0.0, 0.5, 0.9]), changed)
        for folder, _, names in os.walk(self._root):
            self._synced |= {os.stat(f"{folder}/{name}").st_ino for name in names}
            self._names[os.stat(folder).st_ino] = self._names_in(folder)
        return changed

    def _settle(self, folder: Path, rng: Random, stays: float, changed: list[str]) -> None:
        """``stays`` is the chance of what is not on disk."""
        now, on_disk = _inodes(folder), self._names.get(os.stat(folder).st_ino, {})
        for name in sorted(now.keys() | on_disk.keys()):
            path, was = folder / name, on_disk.get(name)
            is_other = now.get(name) != was
            if is_other and rng.random() >= stays:
                changed.append(f"{path.relative_to(self._root)} is {'gone' if was is None else 'as before'}")
                self._put_back(path, was)
            if path.is_dir():
                self._settle(path, rng, stays, changed)
            elif path.exists() and os.stat(path).st_ino not in self._synced and rng.random() >= stays:
                changed.append(f"{path.relative_to(self._root)} is torn")
                _tear(path, rng)

    def _put_back(self, path: Path, was: int | None) -> None:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if was is None:
            return
        if (self._kept / str(was)).exists():
            os.link(self._kept / str(was), path)
            return
        path.mkdir()
        for name, inode in self._names.get(was, {}).items():
            self._put_back(path / name, inode)
        self._names[os.stat(path).st_ino] = self._names.get(was, {})

    def _names_in(self, folder: str) -> dict[str, int]:
        names = dict[str, int]()
        with os.scandir(folder) as entries:
            for entry in entries:
                names[entry.name] = entry.inode()
                if not entry.is_dir():
                    self._keep(entry.path, entry.inode())
        return names

    def _keep(self, path: str, inode: int) -> None:
        if inode not in self._at_hand:
            self._at_hand.add(inode)
            with suppress(FileExistsError, FileNotFoundError):  # another thread was quicker
                os.link(path, f"{self._kept}/{inode}")


def _inodes(folder: Path) -> dict[str, int]:
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries}


def _tear(path: Path, rng: Random) -> None:
    content = path.read_bytes()
    half = content[: len(content) // 2]
    path.unlink()
    path.write_bytes(rng.choice([b"", half, half + bytes(len(content) - len(half))]))


def spoil(instance: Path) -> None:
    """After a loss of power a store that was not closed cleanly is anything: here keys have the values of others, which
    neither a checksum nor a count tells."""
    if json.loads((instance / "instance.json").read_bytes())["clean_txn"] is not None:
        return
    with lmdb.open(str(instance), max_dbs=MAX_DATABASES, sync=False, create=False) as environment:
        with environment.begin() as txn:
            stores = [name for name, _ in txn.cursor() if not name.startswith(b"_")]
        for name in stores:
            database = environment.open_db(name, create=False)
            with environment.begin(database, write=True) as txn:
                rows = dict(txn.cursor())
                for key, value in zip(rows, reversed(rows.values()), strict=True):
                    txn.put(key, value)
