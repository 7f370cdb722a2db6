"""A store on a file system that is really small: it is full without a death, and nothing is held against the store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.small_disk import SmallDisk, small_disk
from weir.state.engine.environment import MAX_DEATHS
from weir.state.engine.task_store import TaskStore
from weir.state.types import IsolationLevel, StateId

ROOT = Path(__file__).resolve().parents[3]
VALUES, VALUE_BYTES = 100, 670_000
LIFE = f"""
import os, signal, sys
from pathlib import Path
from weir.state.engine.task_store import TaskStore
from weir.state.errors import DiskFullError, MapFullError
from weir.state.types import StateId
store, first = TaskStore.open(Path(sys.argv[1]), "0_0", ["a"]), StateId(1, 1)
store.settle(generation=2, expected=first, committed=first)
try:
    with store.session() as session:
        session.put_many("a", [b"%03d" % n for n in range({VALUES})], [b"x" * {VALUE_BYTES}] * {VALUES})
        while True:
            try:
                store.apply(session, state=StateId(2, 2), expected=first, generation=2, plan_hash="p",
                            make_receipt=lambda uncommitted: b"r")
                break
            except MapFullError:
                store.grow()
    store.close()
    print("applied")
except DiskFullError as error:
    store.spare()  # as a task does while it waits for space
    print(error, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def disk(tmp_path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 100) as found:
        yield found


def life(folder: Path) -> subprocess.CompletedProcess[str]:
    """A process that applies an epoch of 67 MB, or waits for space and is killed."""
    return subprocess.run(
        [sys.executable, "-c", LIFE, folder], capture_output=True, text=True, cwd=ROOT, check=False, timeout=120
    )


def test_lives_on_a_full_disk_leave_the_store_good_and_the_next_one_goes_on_once_there_is_room(disk):
    folder = disk.folder / "0_0" / "instance"
    store = TaskStore.create(folder, "0_0", ["a"])
    store.bulk_load({"a": [([b"k"], [b"v"])]}, state=StateId(1, 1), generation=1)
    store.close()
    disk.fill(80 << 20)
    for _ in range(MAX_DEATHS + 1):
        found = life(folder)
        assert found.returncode == -9, (found.returncode, found.stderr)  # not -7, SIGBUS
        assert str(folder / "data.mdb") in found.stdout
        assert "bytes free, but " in found.stdout
    disk.clear()
    disk.resize(300)
    done = life(folder)
    assert done.stdout == "applied\n", done.stderr
    store = TaskStore.open(folder, "0_0", ["a"])
    with store.reader(IsolationLevel.READ_UNCOMMITTED) as reader:
        assert len(list(reader.scan("a"))) == VALUES + 1
    store.close()
