"""File systems of a few megabytes that are really full, where the tests may mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from weir.state.full_disk import free_bytes

FILLER = "filler"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class SmallDisk:
    """The file system of ``folder``."""

    folder: Path

    def fill(self, leave: int = 0) -> None:
        """Leave so many bytes free."""
        with (self.folder / FILLER).open("ab", buffering=0) as file:
            while (size := min(_BLOCK, free_bytes(self.folder) - leave)) > 0:
                file.write(bytes(size))

    def clear(self) -> None:
        """Give the room back."""
        (self.folder / FILLER).unlink(missing_ok=True)

    def resize(self, megabytes: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={megabytes}m", self.folder], check=True)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk]:
    """Mount one at ``folder`` until the block ends; the test is skipped where only root may and it is not."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "small", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("only root may mount a file system")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
