"""Tells that a disk is full from other errors, and says which disk that is and what is free there."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import lmdb
import polars as pl
from deltalake.exceptions import DeltaError

from weir.state.errors import DiskFullError

DISK_FULL_WAIT_S = 5.0
"""How long whoever waits for space waits before the next try."""
_CODES = (errno.ENOSPC, errno.EDQUOT)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def is_disk_full(error: BaseException) -> bool:
    """Whether writing failed because the disk is full; polars and delta-rs give the error number only in their text."""
    if isinstance(error, DiskFullError | lmdb.DiskError) or (isinstance(error, OSError) and error.errno in _CODES):
        return True
    is_theirs = isinstance(error, (OSError, pl.exceptions.PolarsError, DeltaError))
    return is_theirs and any(f"(os error {code})" in str(error) for code in _CODES)


def disk_full(error: BaseException, what: str, folders: Sequence[Path], needed: int | None = None) -> DiskFullError:
    """The same in a sentence that names the fullest of ``folders``, of those that the error is about; ``what`` was to
    be written, and may need so many bytes."""
    if isinstance(error, DiskFullError):
        return error
    named = getattr(error, "filename", None)
    about = [folder for folder in folders if isinstance(named, str) and Path(named).is_relative_to(folder)]
    where = min(about or folders, key=free_bytes)
    return DiskFullError(what, str(where), needed, free_bytes(where), _reason(error))


def _reason(error: BaseException) -> str:
    """delta-rs gives causes below each other, in colour."""
    return (
        (_COLOUR.sub("", str(error)).strip() or type(error).__name__)
        .splitlines()[-1]
        .strip(" \N{DOWNWARDS ARROW WITH TIP RIGHTWARDS}")
    )


@contextmanager
def writing(path: Path, what: str, needed: int) -> Iterator[None]:
    """Within the block a new file is written; if there is no room for it, what there is of it is removed.

    Raises:
        DiskFullError: There is no room, for ``what`` and its ``needed`` bytes.
    """
    with telling(what, [path.parent], needed):
        try:
            yield
        except Exception as error:
            if is_disk_full(error):
                path.unlink(missing_ok=True)
            raise


@contextmanager
def telling(what: str, folders: Sequence[Path], needed: int | None = None) -> Iterator[None]:
    """Within the block ``what``, which may need so many bytes, is written below ``folders``; the error of a full disk
    becomes a sentence.

    Raises:
        DiskFullError: There is no room.
    """
    try:
        yield
    except Exception as error:
        if not is_disk_full(error) or not folders:
            raise
        raise disk_full(error, what, folders, needed) from error


def require_room(where: Path, what: str, needed: int) -> None:
    """Raise ``DiskFullError`` unless the file system of ``where``, which need not exist yet, has ``needed`` bytes
    free."""
    if (free := free_bytes(where)) < needed:
        raise DiskFullError(what, str(where.resolve()), needed, free)


def free_bytes(where: Path) -> int:
    """What is free on the file system that ``where`` is on, or will be."""
    while not where.exists():
        where = where.parent
    disk = os.statvfs(where)
    return disk.f_bavail * disk.f_frsize
