"""Processes that write to one instance take turns; one that is stopped inside its turn is not waited for for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, expected, sales, totals
from tests.waiting import wait_for
from weir.state.commit.protocol import newest_commit
from weir.state.engine import turns
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.instances import instance_folder
from weir.state.engine.processes import is_stopped
from weir.state.engine.task_store import TaskStore
from weir.state.errors import TaskCorruptedError
from weir.state.types import StateId

ROOT = Path(__file__).resolve().parents[3]
HOLDER = """
import sys
from pathlib import Path
from weir.state.engine.task_store import TaskStore
folder, task, *stores = sys.argv[1:]
store = TaskStore.open(Path(folder), task, stores)
with store._databases.changing() as txn:
    print("inside", flush=True)
    input()
print("done", flush=True)
"""


@contextmanager
def inside_a_turn(folder: Path, task: str, *stores: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is inside a write transaction, until it gets a line."""
    arguments = [sys.executable, "-c", HOLDER, str(folder), task, *stores]
    with subprocess.Popen(arguments, stdin=-1, stdout=-1, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout.readline() == "inside\n"
            yield process
        finally:
            process.kill()


def stop(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    wait_for(lambda: is_stopped(process.pid), "the process to be stopped")


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "0_0" / "instance"
    store = TaskStore.create(folder, "0_0", ["a"])
    store.bulk_load({"a": [([b"k"], [b"v"])]}, state=StateId(1, 1), generation=1)
    store.close()
    return folder


def settle(store: TaskStore, generation: int) -> None:
    store.settle(generation=generation, expected=StateId(1, 1), committed=StateId(1, 1))


def test_a_writer_waits_for_one_that_is_slow_and_goes_on_when_it_is_done(folder, monkeypatch):
    store = TaskStore.open(folder, "0_0", ["a"])
    monkeypatch.setattr(turns, "STOPPED_MAX_S", 0.0)
    with inside_a_turn(folder, "0_0", "a") as process:

        def finish(seconds: float) -> None:
            process.stdin.write("\n")
            process.stdin.flush()
            process.wait()

        monkeypatch.setattr(turns, "sleep", finish)
        settle(store, 2)
    assert store.generation == 2


@pytest.mark.parametrize("is_open", [True, False], ids=["open before", "opened then"])
def test_a_writer_that_is_stopped_inside_its_turn_is_given_up(folder, monkeypatch, is_open):
    monkeypatch.setattr(turns, "STOPPED_MAX_S", 0.2)
    store = TaskStore.open(folder, "0_0", ["a"]) if is_open else None
    with inside_a_turn(folder, "0_0", "a") as process:
        stop(process)
        with pytest.raises(
            TaskCorruptedError, match=rf"process {process.pid} is stopped \(SIGSTOP.*\) while it writes"
        ):
            settle(store or TaskStore.open(folder, "0_0", ["a"]), 2)


def test_a_writer_that_dies_inside_its_turn_leaves_it_to_the_next(folder):
    with inside_a_turn(folder, "0_0", "a") as process:
        stop(process)
        process.kill()
        process.wait()
        store = TaskStore.open(folder, "0_0", ["a"])
        settle(store, 2)
    assert store.generation == 2


def test_a_writer_that_never_ends_is_given_up_whatever_it_does(folder, monkeypatch):
    store, now = TaskStore.open(folder, "0_0", ["a"]), [0.0]
    monkeypatch.setattr(turns, "monotonic", lambda: now[0])
    monkeypatch.setattr(turns, "sleep", lambda seconds: now.__setitem__(0, now[0] + 1))
    has_written = r"process \d+ has written to it for 600 s"
    with inside_a_turn(folder, "0_0", "a"), pytest.raises(TaskCorruptedError, match=has_written):
        settle(store, 2)
    assert now[0] > turns.TURN_MAX_S


def test_a_run_goes_on_beside_a_stopped_process_which_changes_nothing_when_it_wakes_up(tmp_path, monkeypatch):
    """What a driver leaves behind whose workers were stopped, and killed by nobody."""
    monkeypatch.setattr(turns, "STOPPED_MAX_S", 0.2)
    topics = Topics({("sales", part): sales(300, part) for part in (0, 1)})
    place = Place(application(), topics, tmp_path, max_records=50)
    place.run()
    TaskStoreCache.close_all()
    before = newest_commit(place.warehouse, "sales")
    task, committed = next(iter(before.tasks.items()))
    folder = instance_folder(place.state_folder / task, committed.instance)
    with inside_a_turn(folder, task, "sums") as process:
        stop(process)
        for part in (0, 1):
            topics.rows["sales", part] = sales(400, part)
        started_s = time.monotonic()
        place.run()
        assert time.monotonic() - started_s < 60
        assert totals(place) == expected(place)
        assert newest_commit(place.warehouse, "sales").tasks[task].instance != committed.instance
        os.kill(process.pid, signal.SIGCONT)
        assert process.communicate("\n")[0] == "done\n"
    for part in (0, 1):
        topics.rows["sales", part] = sales(450, part)
    place.run()
    assert totals(place) == expected(place)
