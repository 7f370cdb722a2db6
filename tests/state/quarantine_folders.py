"""Folders in quarantine as a run leaves them, of a chosen age and size."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weir.state.engine.quarantine import quarantine
from weir.state.engine.task_store import TaskStore

DAY_S, MIB = 86_400.0, 1 << 20


def put(state: Path, name: str, *, age_s: float, now_s: float | None = None, task: str = "0_0", mib: int = 1) -> Path:
    """Quarantine an instance of ``mib`` MiB on disk, in a file that looks a hundred times as large."""
    folder = state / task / name
    folder.mkdir(parents=True)
    write(folder / "data.mdb", mib=mib, looks_mib=100 * mib)
    moved = quarantine(folder, f"{name} was damaged")
    assert moved is not None
    at_s = (time.time() if now_s is None else now_s) - age_s
    os.utime(moved / "reason.txt", (at_s, at_s))
    return moved


def write(path: Path, *, mib: int, looks_mib: int) -> None:
    """A sparse file."""
    with path.open("wb") as file:
        file.truncate(looks_mib * MIB)
        file.write(os.urandom(mib * MIB))
        os.fsync(file.fileno())  # until then a file system may not have allocated the blocks


@contextmanager
def quarantined_while_open(state: Path, name: str) -> Iterator[Path]:
    """An instance, quarantined long ago, that another process has open."""
    folder = state / "0_0" / name
    TaskStore.create(folder, "0_0", ["a"]).close()
    with open_elsewhere(folder):
        moved = quarantine(folder, "asked for")
        assert moved is not None
        os.utime(moved / "reason.txt", (0, 0))
        yield moved


@contextmanager
def open_elsewhere(folder: Path) -> Iterator[None]:
    """Another process has an instance of ``0_0`` with the store ``a`` open."""
    program = """
import sys
from pathlib import Path
from weir.state.engine.task_store import TaskStore
store = TaskStore.open(Path(sys.argv[1]), "0_0", ["a"])
print("open", flush=True)
sys.stdin.read()
store.close()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "open\n"
        yield
        process.stdin.close()
        assert process.wait() == 0
