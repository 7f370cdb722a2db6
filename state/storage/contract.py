"""What Weir asks of the storage that holds its durable files: folders, and files that are whole or not there.

The promises here are what ``docs/protocol.md`` builds on, and ``tests/state/storage`` holds each implementation to
them. The local disk is ``weir.state.storage.local``; how a path becomes a folder, and a folder a Delta table, is in
``weir.state.storage.places``. LMDB's files are not durable files: ``weir.state.engine`` has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

Result = TypeVar("Result")
Target: TypeAlias = str | BytesIO
"""Where polars is to write a file."""


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A file that has no name yet: ``Folder.stage``."""

    data: bytes
    scratch: Path | None = None
    """Where it is meanwhile, if the storage has it already."""
    synced: Future[None] | None = None
    """What makes its content durable."""


@dataclass(frozen=True, kw_only=True)
class File:
    """A file that is in a folder."""

    name: str
    """Below the folder, with ``/`` between the parts."""
    size_bytes: int
    modified_s: float
    """When it was written, in seconds since 1970, by the storage's clock."""


class Folder(Protocol):
    """A folder of a storage. Names are those of files below it, and may lead through further folders: ``a/b.json``.

    A file is visible to every process once the call that made it has returned, and in full: nobody ever sees a part of
    one. *Durable* means that it survives the loss of power. Two handles of one folder are equal. Making a handle looks
    at nothing, so the folder need not exist.

    Errors are those of ``OSError``. ``FileNotFoundError`` says that a name is not there.
    """

    @property
    def name(self) -> str:
        """The last part of its path."""

    @property
    def parent(self) -> Folder:
        """The folder above."""

    @property
    def path(self) -> Path | None:
        """Where it is on a local disk; None if it is not on one."""

    @property
    def uri(self) -> str:
        """The folder as delta-rs and polars take it."""

    @property
    def options(self) -> Mapping[str, str] | None:
        """What delta-rs and polars take as ``storage_options``."""

    def __truediv__(self, name: str) -> Folder:
        """The folder of that name below this one."""

    def make(self) -> None:
        """Make this folder and those above it that are missing, durably, before others write into it. Where folders are
        no more than names of files, there is nothing to make."""

    def get(self, name: str) -> bytes:
        """A whole file."""

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Bytes of a file from ``start`` on; fewer than ``length`` where it ends."""

    def find(self, name: str) -> File | None:
        """The file of that name, without its content; None if there is none."""

    def list(self, prefix: str = "", *, after: str = "", below: bool = False) -> Iterator[File]:
        """The files whose names begin with ``prefix`` and sort after ``after``, in no particular order.

        ``below`` also lists those in folders below. What is written or deleted meanwhile may be listed or not. Hidden
        files, whose names begin with a dot, are not listed. Empty if the folder does not exist.
        """

    def at_once(self, calls: Iterable[Callable[[], Result]]) -> Sequence[Result]:
        """What each of the calls returns, in their order. Where each waits for a server they are made at the same time,
        from threads; else one after another.

        The error of the first that fails is raised; those after it may have been made or not.
        """

    def begun(self, calls: Iterable[Callable[[], Result]]) -> AbstractContextManager[Callable[[], Sequence[Result]]]:
        """The same, but where each waits for a server they are under way within the block, which gets a function that
        returns or raises as ``at_once`` does. None is under way after the block.
        """

    def folders(self) -> Iterator[str]:
        """The names of the folders directly below that hold files, in no particular order, without hidden ones. Where
        folders are no more than names of files, an empty one is none."""

    def put(self, name: str, data: bytes) -> None:
        """Make or replace a file. It is durable on return; a crash leaves the old content or the new."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Make a file unless there is one of that name; of several writers exactly one gets True.

        It is durable on return. After an error it may be there all the same: read it to find out, and ``sync`` it.

        Raises:
            FileNotFoundError: The storage has folders of its own, and this one is gone.
        """

    def stage(self, data: bytes) -> Staged:
        """A file that nobody sees before ``put_staged_if_absent``. If making its content durable means waiting for a
        disk, that begins now. Whoever stages it has to ``drop`` it in the end, put or not; what a killed process has
        staged is a leftover."""

    def put_staged_if_absent(self, name: str, staged: Staged) -> bool:
        """``put_if_absent`` of what was staged here; it may be called again, with another name."""

    def drop(self, staged: Staged) -> None:
        """Forget what was staged here, which is not going to be put any more."""

    def add(
        self, name: str, write: Callable[[Target], object], *, what: str, needed: int, is_durable: bool = True
    ) -> int:
        """Make a file under a name that nobody else knows yet, and return its size in bytes.

        It is durable on return, or else by ``sync``, by this process or another. Until the name is told nobody reads
        it, so this is the one call that may leave a part of a file if the process dies. ``what`` is written, of about
        ``needed`` bytes, for the message if there is no room.

        Raises:
            DiskFullError: There is no room for it, and no file.
        """

    def upload(self, name: str, source: Path, size_bytes: int, *, what: str) -> int:
        """Copy the first ``size_bytes`` of a local file as ``add`` makes files, durable on return.

        Returns the CRC-32 of what arrived.

        Raises:
            DiskFullError: There is no room for it, and no file.
        """

    def download(self, name: str, target: Path, size_bytes: int, *, take: bool = False) -> int:
        """Copy a file of ``size_bytes`` into a new local one, and return the CRC-32 of what arrived.

        With ``take`` it is not needed any more, so that it may be moved: what is left of it is for ``delete``.

        Raises:
            OSError: It is gone, or shorter; the local file may be there in part.
        """

    def sync(self, names: Iterable[str] = ()) -> None:
        """Make files that were added here durable, and then the names of all files in their folders, this one's too."""

    def sync_content(self, name: str) -> None:
        """Make the content of one file durable, but not yet its name."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; it is fine if one is not there. After a crash of the machine they may be back."""

    def delete_folder(self, name: str) -> None:
        """Delete a folder with all that is below it, if it is there, so that no reader takes a part of it for a table;
        also what killed calls left of others."""

    def remove_empty(self, name: str) -> None:
        """Remove a folder below if it is empty; nobody may be about to add a file there."""

    def remove_leftovers(self) -> None:
        """Remove from this folder, but not from those below, what killed calls left of files and deleted folders."""
