"""A store rebuilt from its changelog equals the store that was lost."""

from __future__ import annotations

import random
import re
from pathlib import Path

import polars as pl
import pytest

from weir.state.changelog.restore import RestoreProgress, restore_task
from weir.state.changelog.rows import SEGMENT_EPOCHS, changelog_frame, changelog_spec
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.commit.tables import read_table
from weir.state.engine.task_store import LONG_KEYS, TASK_STORE, TaskStore
from weir.state.stores.typed import TypedStore
from weir.state.types import IsolationLevel, StateId, StoreKind, StoreSpec

TIME = pl.Datetime("ms", "UTC")
TOTALS = StoreSpec(
    name="totals",
    key=pl.Schema({"carrier": pl.String(), "id": pl.Int64()}),
    value=pl.Schema({"flights": pl.Int64(), "mean": pl.Float64()}),
)
WINDOWS = StoreSpec(
    name="windows",
    key=pl.Schema({"k": pl.String(), "window_start": TIME, "window_end": TIME}),
    value=pl.Schema({"last": pl.String()}),
    kind=StoreKind.WINDOW,
)
SPECS = (TOTALS, WINDOWS)


def epoch_rows(rng: random.Random) -> tuple[pl.DataFrame, pl.DataFrame]:
    totals = pl.DataFrame(
        {
            "carrier": [rng.choice(["UA", "AA", None, "long" * 200]) for _ in range(20)],
            "id": [rng.randrange(8) for _ in range(20)],
            "flights": [rng.randrange(99) for _ in range(20)],
            "mean": [rng.choice([None, rng.random()]) for _ in range(20)],
            "_ts": [rng.randrange(10**12) for _ in range(20)],
        },
        schema_overrides={"mean": pl.Float64},
    )
    start = [rng.randrange(6) * 1000 for _ in range(10)]
    windows = pl.DataFrame(
        {
            "k": [f"k{rng.randrange(3)}" for _ in range(10)],
            "window_start": start,
            "window_end": [at + 1000 for at in start],
            "last": [str(rng.random()) for _ in range(10)],
            "_ts": start,
        }
    )
    return totals, windows.cast({"window_start": TIME, "window_end": TIME})


def run_epoch(store: TaskStore, app: Path, epoch: int, expected: StateId | None, rng: random.Random) -> list:
    """Puts, deletes and a sweep of old windows; returns the changelog files of the epoch."""
    with store.session() as session:
        for spec, rows in zip(SPECS, epoch_rows(rng), strict=True):
            typed = TypedStore(spec, session)
            keys = typed.encode(rows)
            typed.write(keys, rows)
            typed.delete(rng.sample(keys, 5))
        windows = TypedStore(WINDOWS, session)
        closed, _ = windows.scan(upper=windows.window_upper(2000))
        windows.delete(closed)
        session.put_many(TASK_STORE, [b"t-0"], [b"%d" % epoch])
        partition = {"task": "0_0", "segment": str(epoch // SEGMENT_EPOCHS)}
        files = [
            write_file(
                app, changelog_spec(spec), changelog_frame(spec, session).with_columns(_epoch=pl.lit(epoch)), partition
            )
            for spec in SPECS
        ]
        assert (
            store.apply(
                session,
                state=StateId(1, epoch),
                expected=expected,
                generation=1,
                plan_hash=str(epoch),
                make_receipt=repr_bytes,
            )
            is not None
        )
    return files


def repr_bytes(value: object) -> bytes:
    return repr(value).encode()


def content(store: TaskStore) -> dict[str, list]:
    with store.reader(IsolationLevel.READ_COMMITTED) as reader:
        return {name: list(reader.scan(name)) for name in ("totals", "windows", TASK_STORE, LONG_KEYS)}


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
