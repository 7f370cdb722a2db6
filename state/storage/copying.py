"""Files of the local file system copied by the kernel, with the checksum of what arrived."""

from __future__ import annotations

import errno
import mmap
import os
import zlib
from pathlib import Path
from typing import BinaryIO


def copy(source: Path, target: Path, size_bytes: int) -> int:
    """Copy the first ``size_bytes`` into a new file, and return the CRC-32 of what arrived."""
    with source.open("rb") as reader, target.open("x+b") as writer:
        done = 0
        while done < size_bytes:
            sent = os.sendfile(writer.fileno(), reader.fileno(), done, size_bytes - done)
            if not sent:
                raise OSError(0, f"it ends {size_bytes - done:,} bytes early")
            done += sent
        return _checksum(writer, size_bytes)


def move(source: Path, target: Path, size_bytes: int) -> int:
    """Like ``copy``, but moves the file within a file system."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return copy(source, target, size_bytes)
    if (found := target.stat().st_size) != size_bytes:
        raise OSError(0, f"it has {found:,} bytes instead of {size_bytes:,}")
    with target.open("rb") as file:
        return _checksum(file, size_bytes)


def _checksum(file: BinaryIO, size_bytes: int) -> int:
    with mmap.mmap(file.fileno(), size_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ) as content:
        return zlib.crc32(content)
