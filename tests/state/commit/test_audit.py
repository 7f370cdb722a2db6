"""What the audit of the newest commits finds, and what it accepts."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from weir.state.changelog.compaction import Compaction
from weir.state.commit.audit import newest_commits, offset_breaks, row_count
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import LOST_RECORDS_ACCEPTED, CommitRecord, TableSwap, TaskCommit
from weir.state.commit.rollup import roll_up
from weir.state.commit.tables import AppendTable, read_rows
from weir.state.types import FileEntry, StateId, TableSpec

FACTS = TableSpec(name="facts", schema=pl.Schema({"n": pl.Int64(), "_epoch": pl.Int64()}))
TOTALS = TableSpec(
    name="totals",
    keys=("k",),
    schema=pl.Schema({"k": pl.String(), "_epoch": pl.Int64(), "_seq": pl.Int64(), "_deleted": pl.Boolean()}),
)


@pytest.fixture
def driver(tmp_path):
    committer = Committer(tmp_path, "app", (FACTS, TOTALS), fingerprint="f")
    committer.claim()
    yield committer
    committer.close()


def record(
    warehouse: Path, epoch: int, *, offset: int | None = None, read: int | None = None, reason: str = ""
) -> CommitRecord:
    """A commit of ten records per epoch, unless told otherwise, with a row in each table."""
    app, offset = warehouse / "app", epoch * 10 if offset is None else offset
    files = (
        write_file(app, FACTS, pl.DataFrame({"n": [epoch], "_epoch": [epoch]})),
        write_file(app, TOTALS, pl.DataFrame({"k": ["a"], "_epoch": [epoch], "_seq": [0], "_deleted": [False]})),
    )
    tasks = {
        "0_0": TaskCommit(
            state=StateId(1, epoch),
            instance="i",
            positions={"t": {0: offset}},
            totals={"records_in": epoch * 10 if read is None else read},
        )
    }
    return CommitRecord(
        kind="commit",
        generation=1,
        epoch=epoch,
        at_ms=epoch,
        fingerprint="f",
        reason=reason,
        files=files,
        tasks=tasks,
    )


@pytest.mark.parametrize(
    ("fields", "is_wrong", "text"),
    [
        ({}, None, ""),
        ({"offset": 19}, True, "goes back in t-0"),
        ({"read": 31}, True, "11 records over 10 offsets: some were read twice"),
        ({"read": 29}, False, "9 records over 10 offsets: the other offsets hold no record"),
        ({"offset": 5, "read": 5}, None, ""),
        ({"offset": 0, "read": 20, "reason": LOST_RECORDS_ACCEPTED}, None, ""),
    ],
    ids=["in order", "back", "twice", "gap", "restarted", "another topic accepted"],
)
def test_offsets_that_do_not_add_up_from_commit_to_commit_are_found(tmp_path, driver, fields, is_wrong, text):
    for commit in (record(tmp_path, 1), record(tmp_path, 2), record(tmp_path, 3, **fields)):
        driver.commit(commit)
    found = list(offset_breaks(newest_commits(tmp_path, "app", 100)))
    assert [each.is_wrong for each in found] == ([] if is_wrong is None else [is_wrong])
    assert all(text in each.sentence and each.sentence.startswith("task 0_0, epochs 2 to 3") for each in found)


def test_the_window_begins_after_a_commit_or_with_the_very_first(tmp_path, driver):
    assert newest_commits(tmp_path, "app", 10) is None
    for epoch in range(1, 6):
        driver.commit(record(tmp_path, epoch))
    window = newest_commits(tmp_path, "app", 3)
    assert (window.base.epoch, [commit.epoch for commit in window.commits]) == (3, [4, 5])
    whole = newest_commits(tmp_path, "app", 5)
    assert (whole.base, [commit.epoch for commit in whole.commits]) == (None, [1, 2, 3, 4, 5])


def test_counts_continue_from_the_newest_commit_that_swapped_everything_in(tmp_path, driver):
    """It has the backfill's counts: what was late for another program says nothing about this one's rate."""
    driver.commit(record(tmp_path, 1))
    assert newest_commits(tmp_path, "app", 100).counted_from is None
    swap = TableSwap(backfill="b", table="facts", column=None, start_ms=0, end_ms=1, cut_epoch=1, files=())
    driver.commit(replace(record(tmp_path, 3), files=(), swaps=(swap,)))
    for epoch in (4, 5, 6):
        driver.commit(record(tmp_path, epoch))
    assert [newest_commits(tmp_path, "app", epochs).counted_from.epoch for epochs in (100, 4, 3)] == [3, 3, 4]


def test_missing_and_surplus_rows_are_found(tmp_path, driver):
    for epoch in range(1, 5):
        driver.commit(record(tmp_path, epoch))
    window = newest_commits(tmp_path, "app", 100)
    for table in ("facts", "totals"):
        count = row_count(tmp_path, "app", table, window)
        assert (count.first_epoch, count.last_epoch, count.committed, count.found, count.is_right) == (1, 4, 4, 4, True)
    lost = replace(
        window,
        commits=tuple(
            replace(commit, files=(*commit.files, commit.files[0], commit.files[1])) for commit in window.commits
        ),
    )
    twice = replace(window, commits=tuple(replace(commit, files=()) for commit in window.commits))
    assert not any(
        row_count(tmp_path, "app", table, other).is_right for table in ("facts", "totals") for other in (lost, twice)
    )


@pytest.mark.slow
def test_compacted_updates_and_rolled_up_commits_are_accepted(tmp_path, driver):
    for epoch in range(1, 5):
        driver.commit(record(tmp_path, epoch))
    window = newest_commits(tmp_path, "app", 100)
    list(Compaction(tmp_path, "app", is_whole=True).run(["totals", "facts"]))
    totals, facts = (row_count(tmp_path, "app", table, window) for table in ("totals", "facts"))
    assert (totals.committed, totals.found, totals.is_right) == (4, 1, True)
    assert (facts.found, facts.is_right) == (4, True)
    driver.commit(record(tmp_path, 5))
    roll_up(tmp_path / "app", StateId(1, 4).version)
    count = row_count(tmp_path, "app", "facts", newest_commits(tmp_path, "app", 100))
    assert (count.first_epoch, count.last_epoch, count.committed, count.is_right) == (5, 5, 1, True)


def test_a_commit_that_is_still_being_appended_is_left_out(tmp_path, driver, monkeypatch):
    driver.commit(record(tmp_path, 1))
    monkeypatch.setattr(AppendTable, "append", lambda *_: None)
    driver.commit(record(tmp_path, 2))
    count = row_count(tmp_path, "app", "facts", newest_commits(tmp_path, "app", 100))
    assert (count.last_epoch, count.committed, count.found, count.is_right) == (1, 1, 1, True)


def test_rows_that_a_backfill_has_replaced_are_left_out_and_later_ones_are_counted(tmp_path, driver):
    start = datetime(2024, 5, 1, tzinfo=UTC)
    spec = TableSpec(name="timed", schema=pl.Schema({"_ts": pl.Datetime("ms", "UTC"), "_epoch": pl.Int64()}))

    def rows(epoch: int, count: int) -> FileEntry:
        return write_file(tmp_path / "app", spec, pl.DataFrame({"_ts": [start] * count, "_epoch": [epoch] * count}))

    driver.close()
    driver = Committer(tmp_path, "app", (spec,), fingerprint="f")
    generation = driver.claim().generation
    for epoch in (1, 2, 3):
        driver.commit(replace(record(tmp_path, epoch), generation=generation, files=(rows(epoch, 2),)))
    swap = TableSwap(
        backfill="b", table="timed", column="_ts", start_ms=0, end_ms=1 << 42, cut_epoch=2, files=(rows(2, 7),)
    )
    driver.commit(replace(record(tmp_path, 4), generation=generation, files=(rows(4, 2),), swaps=(swap,)))
    counted = row_count(tmp_path, "app", "timed", newest_commits(tmp_path, "app", 100))
    assert (counted.first_epoch, counted.last_epoch) == (3, 4)
    assert (counted.committed, counted.found, counted.is_right) == (4, 4, True)
    assert read_rows(tmp_path / "app" / "timed").height == 11
    driver.close()
