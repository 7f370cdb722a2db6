"""Tables as of one commit: equal rows for every table, at each step of a commit and beside a driver."""

from __future__ import annotations

import threading
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from weir.state.commit.files import write_file
from weir.state.commit.pinned import Pinned, as_of, pinned
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import AppendTable
from weir.state.types import TableSpec

SPECS = [TableSpec(name=name, schema=pl.Schema({"n": pl.Int64(), "_epoch": pl.Int64()})) for name in ("a", "b", "c")]
NAMES = [spec.name for spec in SPECS]


def record(warehouse: Path, epoch: int, names: list[str] = NAMES) -> CommitRecord:
    """A commit of one row for each of the tables."""
    rows = pl.DataFrame({"n": [epoch], "_epoch": [epoch]})
    files = tuple(write_file(warehouse / "app", spec, rows) for spec in SPECS if spec.name in names)
    return CommitRecord(kind="commit", generation=1, epoch=epoch, at_ms=0, fingerprint="f", files=files)


def epochs(found: Pinned | None) -> dict[str, list[int]]:
    assert found is not None
    return {name: sorted(pl.read_delta(table)["_epoch"]) for name, table in found.tables.items()}


def test_there_is_nothing_before_the_first_commit(tmp_path):
    assert pinned(tmp_path, "app", []) is None
    driver = Committer(tmp_path, "app", SPECS, fingerprint="f")
    driver.claim()
    assert pinned(tmp_path, "app", NAMES) is None
    driver.close()


@pytest.mark.parametrize("appended", range(4))
def test_a_commit_counts_once_all_tables_have_it(tmp_path, appended):
    """A driver dies after ``appended`` of three appends; the commit before had no rows for the last table."""
    driver = Committer(tmp_path, "app", SPECS, fingerprint="f", on_step=die)
    driver.claim()
    commits = [record(tmp_path, 1), record(tmp_path, 2, ["a", "b"]), record(tmp_path, 3)]
    for commit, names in zip(commits, (NAMES, ["a", "b"], NAMES[:appended]), strict=True):
        with pytest.raises(KeyboardInterrupt):
            driver.commit(commit)  # which would have to append the previous one first
        driver._pending = None
        for name, entry in zip(names, commit.files, strict=False):
            AppendTable(tmp_path / "app" / name, name, "app").append(commit.state_id.version, [entry])
    found = pinned(tmp_path, "app", NAMES)
    newest = [3] if appended == 3 else []
    assert epochs(found) == {"a": [1, 2, *newest], "b": [1, 2, *newest], "c": [1, *newest]}
    assert found.epoch == (3 if newest else 2)
    driver.close()


def die(step: str) -> None:
    if step == "pivot appended":
        raise KeyboardInterrupt


def test_a_table_may_be_many_commits_ahead_of_another(tmp_path):
    """To a reader that opens one table a while after the next."""
    driver = Committer(tmp_path, "app", SPECS, fingerprint="f")
    driver.claim()
    for epoch in range(1, 31):
        driver.commit(record(tmp_path, epoch, ["a"]))
    folder, newest = tmp_path / "app" / "a", DeltaTable(tmp_path / "app" / "a")
    for ahead in range(30):
        table = as_of(folder, newest, "app", newest.transaction_version("app") - ahead)
        assert sorted(pl.read_delta(table)["_epoch"]) == list(range(1, 31 - ahead))
    driver.close()


@pytest.mark.slow
def test_beside_a_driver_all_tables_have_the_rows_of_one_commit(tmp_path):
    driver, done = Committer(tmp_path, "app", SPECS, fingerprint="f"), threading.Event()
    driver.claim()
    driver.commit(record(tmp_path, 1))

    def commits() -> None:
        epoch = 1
        while not done.wait(0.005):
            epoch += 1
            driver.commit(record(tmp_path, epoch))

    thread = threading.Thread(target=commits)
    thread.start()
    try:
        for _ in range(8):
            found = pinned(tmp_path, "app", NAMES)
            assert found is not None
            assert epochs(found) == {name: list(range(1, found.epoch + 1)) for name in NAMES}
    finally:
        done.set()
        thread.join()
        driver.close()
