"""What the benches of restarts, restores and growth put together themselves, without services."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import closing

import polars as pl
import psutil
import pytest

from bench import growth, restart, restore
from bench.apps import sum_per_key_restore as app
from weir.pipelines.tasks.tables import application_tables
from weir.state.changelog.restore import restore_task
from weir.state.commit.log import newest_commit
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.storage.places import folder_at
from weir.state.types import IsolationLevel, StateId

ROWS = 2_500
CHILD = "import time; print('ready', flush=True); time.sleep(600)"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"


def test_rows_are_committed_once_each_and_every_task_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(restore, "EPOCH_ROWS", 300)
    topology = app.topology
    committer = Committer(tmp_path, app.id, application_tables(topology), fingerprint=topology.fingerprint)
    generation = committer.claim().generation
    tasks = {f"0_{at}": TaskCommit(state=StateId(generation, 1), instance="first") for at in range(4)}
    committer.commit(
        CommitRecord(
            kind="commit", generation=generation, epoch=1, at_ms=1, fingerprint=topology.fingerprint, tasks=tasks
        )
    )
    committer.close()
    restore.commit_rows(tmp_path, ROWS)
    rows = pl.read_delta(str(tmp_path / app.id / "_changelog" / "sums"))
    assert sorted(rows["user"]) == [f"u{number:08}" for number in range(ROWS)]
    assert Counter(rows["task"]) == dict.fromkeys(tasks, ROWS // 4)
    newest = newest_commit(folder_at(tmp_path), app.id)
    assert newest.epoch == 4  # 1,200 rows each
    assert {task.state for task in newest.tasks.values()} == {StateId(generation + 1, 4)}
    for name, task in newest.tasks.items():
        store = restore_task(
            folder_at(tmp_path) / app.id,
            tmp_path / "restored" / name,
            name,
            topology.sub_topologies[0].stores,
            task,
            newest.state_id,
            generation=newest.generation,
            task_rows=[],
        )
        with closing(store), store.reader(IsolationLevel.READ_COMMITTED) as view:
            assert view.count("sums") == ROWS // 4


def test_records_of_a_changelog_are_those_of_kafka_streams():
    records = restore._changelog_records(10, 2, 4, 0).rows()
    assert [(key, value) for key, value, _ in records] == [
        ("u00000006", b"\0\0\0\0\0\0\0\2"),
        ("u00000009", b"\0\0\0\0\0\0\0\3"),
    ]


class Sleeper:
    name = "sleeper"

    def command(self):
        return [sys.executable, "-c", PARENT]

    def committed(self):
        return {0: 3, 1: 5}


def test_a_side_is_killed_with_all_that_it_has_started(tmp_path, monkeypatch):
    monkeypatch.setattr(restart.cluster, "variables", lambda client: {})
    with restart._Started(Sleeper(), tmp_path, tmp_path) as started:
        parent = psutil.Process(started.process.pid)
        while not (tmp_path / "sleeper.out").read_text():
            pass
        (child,) = parent.children()
        started.wait(lambda committed: committed == {0: 3, 1: 5})
    assert psutil.wait_procs([child], timeout=5)[1] == []
    assert started.process.returncode == -9


def test_a_commit_counts_once_it_holds_what_came_after_the_kill():
    ends = {0: 3, 1: 5}
    assert not restart._holds_any(ends, {0: 3})
    assert restart._holds_any(ends, {0: 3, 1: 6})
    assert not restart._holds_all(ends, {0: 3, 1: 6})
    assert restart._holds_all(ends, {0: 4, 1: 6})


def test_restarts_are_compared_by_their_medians():
    def turns(*seconds):
        return [{"first_commit_s": each, "all_partitions_s": 2 * each, "cpu_s": 1.0} for each in seconds]

    found = restart.summary({"weir": turns(3.0, 9.0, 2.0), "other": turns(6.0, 1.0, 4.0)})
    assert found["other"]["weir_takes"] == 0.75
    assert found["weir"]["medians"] == {"first_commit_s": 3.0, "all_partitions_s": 6.0, "cpu_s": 1.0}


@pytest.mark.slow
def test_what_ten_times_as_much_costs_is_measured(monkeypatch):
    monkeypatch.setattr(growth, "EPOCH_RECORDS", 100)
    keys, tasks = growth.of_keys(200, 2), growth.of_tasks(2, 3)
    for each in (keys["anywhere"], keys["among the newest"], tasks["turn_ms, each task"]):
        assert each["ratio"] == pytest.approx(each["ms with ten times as much"] / each["ms"], abs=0.1)
        assert each["ms"] > 0
