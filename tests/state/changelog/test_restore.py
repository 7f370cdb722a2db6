"""A store rebuilt from its changelog equals the store that was lost."""

from __future__ import annotations

import random
import re

import polars as pl
import pytest

from tests.state.changelog.epochs import SPECS, TOTALS, content, run_epoch
from weir.state.changelog.restore import RestoreProgress, restore_task
from weir.state.changelog.rows import SEGMENT_EPOCHS, changelog_spec
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.commit.tables import read_table
from weir.state.engine.task_store import LONG_KEYS, TASK_STORE, TaskStore
from weir.state.stores.typed import TypedStore
from weir.state.types import IsolationLevel, StateId


@pytest.fixture
def committed(tmp_path):
    """Six committed epochs across the end of a segment, of a task and, with other rows, of its neighbor."""
    rng, app = random.Random(7), tmp_path / "warehouse" / "app"
    driver = Committer(tmp_path / "warehouse", "app", [changelog_spec(spec) for spec in SPECS], fingerprint="f")
    driver.claim()
    store = TaskStore.create(tmp_path / "state" / "one", "0_0", ["totals", "windows"])
    expected, contents = None, {}
    for epoch in range(SEGMENT_EPOCHS - 3, SEGMENT_EPOCHS + 3):
        files = run_epoch(store, app, epoch, expected, rng)
        expected = StateId(1, epoch)
        neighbor = pl.DataFrame(
            {
                "carrier": ["XX"],
                "id": [epoch],
                "flights": [1],
                "mean": [None],
                "_ts": [1],
                "_epoch": [epoch],
                "_deleted": [False],
            }
        )
        files.append(write_file(app, changelog_spec(TOTALS), neighbor, {"task": "0_1", "segment": "0"}))
        driver.commit(
            CommitRecord(kind="commit", generation=1, epoch=epoch, at_ms=0, fingerprint="f", files=tuple(files))
        )
        store.settle(generation=1, expected=expected, committed=expected)
        contents[epoch] = content(store)
    yield app, store, contents
    store.close()
    driver.close()


@pytest.mark.parametrize("epochs_back", [0, 2, 5])
def test_a_restored_store_equals_the_lost_one_at_its_commit(committed, tmp_path, epochs_back):
    app, _, contents = committed
    epoch = max(contents) - epochs_back
    seen: list[RestoreProgress] = []
    restored = restore_task(
        app,
        tmp_path / "state" / "two",
        "0_0",
        SPECS,
        TaskCommit(state=StateId(1, epoch), instance="two"),
        StateId(1, epoch),
        generation=5,
        task_rows=contents[epoch][TASK_STORE],
        on_progress=seen.append,
    )
    try:
        assert content(restored) == contents[epoch]
        assert (restored.current, restored.base, restored.generation) == (StateId(1, epoch), StateId(1, epoch), 5)
        done = [progress.bytes_read for progress in seen]
        assert done == sorted(done)
        assert (seen[-1].per_cent, seen[-1].seconds_left) == (100.0, 0.0)
        assert re.fullmatch(r"\d+ rows, 0\.\d of 0\.\d MB \(100 %\), 0 s left", str(seen[-1]))
        assert seen[-1].rows == len(contents[epoch]["totals"]) + len(contents[epoch]["windows"])
    finally:
        restored.close()


def test_a_task_without_changes_restores_to_an_empty_store(committed, tmp_path):
    app, _, _ = committed
    restored = restore_task(
        app,
        tmp_path / "state" / "two",
        "0_7",
        SPECS,
        TaskCommit(state=None, instance="two"),
        StateId(1, 2000),
        generation=5,
        task_rows=[],
    )
    assert content(restored) == {"totals": [], "windows": [], TASK_STORE: [], LONG_KEYS: []}
    restored.close()


def test_the_changelog_read_as_a_table_is_the_store(committed):
    """Anyone may query state with SQL: the newest row per key, without deleted keys."""
    app, store, _ = committed
    table = read_table(app / changelog_spec(TOTALS).name).filter(pl.col("task") == "0_0")
    with store.reader(IsolationLevel.READ_COMMITTED) as reader:
        typed = TypedStore(TOTALS, reader)
        keys, rows = typed.scan()
        held = pl.concat([typed.decode(keys), rows], how="horizontal")
    order = ["carrier", "id"]
    wanted = table.select(*order, "flights", "mean", pl.col("_ts").dt.timestamp("ms")).sort(order)
    assert held.sort(order).equals(wanted)
