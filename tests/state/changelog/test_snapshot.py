"""Snapshots: copies at a commit, made while the task runs; with the changelog since, they equal the lost store."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from tests.state.changelog.epochs import SPECS, TOTALS, content, run_epoch
from weir.state.changelog.restore import RestoreProgress, restore_task
from weir.state.changelog.rows import changelog_spec
from weir.state.changelog.snapshot import (
    SNAPSHOT_FOLDER,
    has_snapshots,
    publish_snapshot,
    remove_snapshots_but,
    snapshot_files,
)
from weir.state.commit.evolution import TOMBSTONE_HORIZON
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, SnapshotRef, TaskCommit
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.task_store import TASK_STORE, TaskStore
from weir.state.types import StateId, StoreKind, StoreSpec

EPOCHS = range(1, 9)
PUBLISHED_AT = 4


@dataclass
class Life:
    """A task that ran eight epochs, each committed; in the fifth, uncommitted, a snapshot was published."""

    app: Path
    store: TaskStore
    contents: dict[int, dict[str, list]]
    snapshot: SnapshotRef

    def restored(
        self, folder: Path, epoch: int = EPOCHS[-1], snapshot: SnapshotRef | None = None, *, take: bool = False
    ) -> tuple[dict, str]:
        """The content that a restore as of ``epoch`` gives, and the source that it reports."""
        state, seen = StateId(1, epoch), list[RestoreProgress]()
        store = restore_task(
            self.app,
            folder,
            "0_0",
            SPECS,
            TaskCommit(state=state, instance="new", snapshot=snapshot or self.snapshot),
            state,
            generation=5,
            task_rows=self.contents[epoch][TASK_STORE],
            take_snapshot=take,
            on_progress=seen.append,
        )
        try:
            assert (store.current, store.base, store.generation) == (state, state, 5)
            return content(store), seen[-1].source
        finally:
            store.close()


@pytest.fixture
def life(tmp_path):
    rng, app = random.Random(3), tmp_path / "warehouse" / "app"
    driver = Committer(tmp_path / "warehouse", "app", [changelog_spec(spec) for spec in SPECS], fingerprint="f")
    driver.claim()
    folder = tmp_path / "state" / "0_0" / "one"
    TaskStore.create(folder, "0_0", ["totals", "windows"]).close()
    store = TaskStoreCache.get(folder, "0_0", ["totals", "windows"])
    assert publish_snapshot(app, folder, "0_0") is None, "there is no commit yet"
    expected, contents, snapshot = None, {}, None
    for epoch in EPOCHS:
        files = run_epoch(store, app, epoch, expected, rng)
        expected = StateId(1, epoch)
        if epoch == PUBLISHED_AT + 1:
            assert store.uncommitted.records
            snapshot = publish_snapshot(app, folder, "0_0")
        driver.commit(
            CommitRecord(kind="commit", generation=1, epoch=epoch, at_ms=0, fingerprint="f", files=tuple(files))
        )
        store.settle(generation=1, expected=expected, committed=expected)
        contents[epoch] = content(store)
    driver.close()
    yield Life(app, store, contents, snapshot)
    TaskStoreCache.close_all()


def test_a_snapshot_holds_the_newest_commit_that_the_task_had_heard_of(life, tmp_path):
    assert life.snapshot.state == StateId(1, PUBLISHED_AT)
    assert life.snapshot.rows == sum(map(len, life.contents[PUBLISHED_AT].values()))
    path = life.app / life.snapshot.path
    assert path.stat().st_size == life.snapshot.size_bytes < 1 << 20, "room to grow is not copied"
    found, _ = life.restored(tmp_path / "new", PUBLISHED_AT)
    assert found == life.contents[PUBLISHED_AT]
    assert sorted(entry.name for entry in life.store.folder.parent.iterdir()) == ["one"]


@pytest.mark.parametrize("take", [False, True])
@pytest.mark.parametrize("epoch", [PUBLISHED_AT + 1, EPOCHS[-1]])
def test_a_snapshot_and_the_changelog_since_equal_the_lost_store(life, tmp_path, epoch, take):
    """With puts, deletes, sweeps and long keys."""
    found, source = life.restored(tmp_path / "new", epoch, take=take)
    assert found == life.contents[epoch]
    assert source == "snapshot of 1.4 and the changelog since"
    assert (life.app / life.snapshot.path).exists() != take


def test_a_snapshot_on_another_file_system_is_copied(life, elsewhere):
    found, source = life.restored(elsewhere / "new", take=True)
    assert found == life.contents[EPOCHS[-1]]
    assert source.startswith("snapshot")
    assert (life.app / life.snapshot.path).exists()


LOST = ("missing", "cut short", "flipped", "older than forgotten deletions", "never written")
"""What is wrong with the snapshot itself."""


def damage(life: Life, how: str) -> SnapshotRef:
    path, snapshot = life.app / life.snapshot.path, life.snapshot
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "cut short":
        path.write_bytes(data[:-4096])
    elif how == "flipped":
        path.write_bytes(data[:9_000] + bytes([data[9_000] ^ 1]) + data[9_001:])
    elif how == "of another state":
        return replace(snapshot, state=StateId(1, 3))
    elif how == "older than forgotten deletions":
        DeltaTable(life.app / changelog_spec(TOTALS).name).alter.set_table_properties(
            {TOMBSTONE_HORIZON: "5"}, raise_if_not_exists=False
        )
    elif how == "never written":
        path.write_bytes(bytes(len(data)))
    return snapshot


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("missing", "cannot be read (No such file"),
        ("cut short", "cannot be read (it ends 4,096 bytes early)"),
        ("flipped", "is damaged: its checksum"),
        ("of another state", "holds state 1.4, not 1.3"),
        ("older than forgotten deletions", "has dropped deletions up to epoch 5"),
        ("never written", "is damaged"),
    ],
)
def test_without_a_good_snapshot_the_restore_reads_the_changelog_alone(life, tmp_path, how, reason):
    found, source = life.restored(tmp_path / "new", snapshot=damage(life, how))
    assert found == life.contents[EPOCHS[-1]]
    assert source.startswith("changelog; snapshot ")
    assert reason in source
    found, source = life.restored(tmp_path / "newer", take=True)
    assert found == life.contents[EPOCHS[-1]]
    assert source.startswith("changelog" if how in LOST else "snapshot")


def test_which_tasks_have_snapshots():
    expiring = replace(TOTALS, retention_ms=1_000)
    windows = StoreSpec(name="w", key=pl.Schema(), value=pl.Schema(), kind=StoreKind.WINDOW, retention_ms=1_000)
    assert has_snapshots([TOTALS, windows, expiring])
    assert not has_snapshots([TOTALS, replace(expiring, is_logged=False)])
    assert not has_snapshots([])


PUBLISH = """
import sys
from pathlib import Path
from weir.state.changelog.snapshot import publish_snapshot
while True:
    publish_snapshot(Path(sys.argv[1]), Path(sys.argv[2]), "0_0")
    print("published", flush=True)
"""


@pytest.mark.faults
def test_killed_while_publishing_leaves_the_task_and_the_listed_snapshot_as_they_were(life, tmp_path):
    rng, instance = random.Random(5), life.store.folder
    TaskStoreCache.close_all()
    for _ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", PUBLISH, str(life.app), str(instance)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout.readline() == "published\n"
        time.sleep(rng.uniform(0, 0.05))
        child.kill()
        child.communicate()
    store = TaskStore.open(instance, "0_0", ["totals"])
    assert content(store) == life.contents[EPOCHS[-1]]
    store.close()
    found, source = life.restored(tmp_path / "new")
    assert found == life.contents[EPOCHS[-1]]
    assert source.startswith("snapshot of 1.4")
    left = list((life.app / SNAPSHOT_FOLDER).glob("*/*"))
    assert len(left) > 1
    remove_snapshots_but(life.app, snapshot_files(life.app), [life.snapshot])
    assert list((life.app / SNAPSHOT_FOLDER).glob("*/*")) == [life.app / life.snapshot.path]
    newest = publish_snapshot(life.app, instance, "0_0")
    assert newest.state == StateId(1, EPOCHS[-1])
    assert [entry.name for entry in instance.parent.iterdir() if entry.name != "one"] == [], "half a copy is removed"
