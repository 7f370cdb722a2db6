"""Compaction beside commits, two at a time, and killed at every step: tables equal those of an uncompacted twin."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import product

import polars as pl
import pytest
from deltalake import DeltaTable

from tests.forked import end_of, ended, started
from tests.state.changelog.twins import CHANGES, FACTS, NAMES, STEPS, TASKS, TOTALS, Twins, compact
from tests.waiting import wait_for
from weir.state.changelog.compaction import Compaction
from weir.state.changelog.merging import merged_updates
from weir.state.changelog.rows import SEGMENT_EPOCHS
from weir.state.commit.evolution import TOMBSTONE_HORIZON
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.removal import remove_tables, table_id
from weir.state.commit.tables import AppendTable, file_actions, read_rows
from weir.state.errors import TableBehindError


@pytest.fixture
def twins(tmp_path) -> Iterator[Twins]:
    twins = Twins(tmp_path)
    yield twins
    twins.close()


@pytest.mark.slow
def test_changelogs_and_updates_keep_the_newest_row_per_key_and_facts_keep_all(twins):
    twins.commit(30)
    reports = twins.compact()
    twins.check()
    assert {
        name: (report.files_before, report.files_after, report.rows_before, report.rows_after)
        for name, report in reports.items()
        if name in NAMES
    } == {"facts": (30, 1, 30, 30), "totals": (60, 1, 240, 34), "_changelog/totals": (60, 2, 240, 34)}
    assert (reports["_commits"].files_before, reports["_commits"].files_after) == (31, 2)
    twins.commit(3)
    assert twins.compact()["_changelog/totals"].files_after == 2
    twins.check()


def files_of(twins: Twins) -> dict[str, set[str]]:
    return {name: set(file_actions(DeltaTable(twins.app / name))["path"]) for name in (*NAMES, "_commits")}


@pytest.mark.slow
def test_a_compaction_of_unchanged_tables_writes_nothing_though_merged_files_hold_one_epoch(twins, monkeypatch):
    """A table of many keys is several files even after a merge; here some of them hold the keys of one epoch."""
    monkeypatch.setattr("weir.state.changelog.merging.merged_updates", partial(merged_updates, held_rows=2))
    twins.commit(2)
    twins.compact()
    before = files_of(twins)
    files = file_actions(DeltaTable(twins.app / TOTALS.name))
    assert files.filter(pl.col("min._epoch") == pl.col("max._epoch")).height > 1
    twins.compact(is_whole=False)
    assert all(report.files_after == report.files_before for report in twins.compact().values())
    assert files_of(twins) == before
    twins.commit()
    twins.compact()
    assert before[TOTALS.name].isdisjoint(files_of(twins)[TOTALS.name]), "new files are merged with the old ones"
    twins.check()


@pytest.mark.slow
def test_folders_of_closed_segments_are_removed_once_they_are_empty(tmp_path):
    twins = Twins(tmp_path, step=SEGMENT_EPOCHS // 2)
    twins.commit(6)  # segments 0 to 3, the last one open
    changelog = twins.app / CHANGES.name
    twins.compact()
    twins.check()
    folders = sorted(path.relative_to(changelog) for path in changelog.glob("task=*/segment=*"))
    assert [folder.name for folder in folders] == [f"segment={number}" for number in range(4)] * 2
    live = files_of(twins)[CHANGES.name]
    for path in changelog.glob("task=*/segment=*/*.parquet"):  # as vacuum does a day after
        if path.relative_to(changelog).as_posix() not in live:
            path.unlink()
    for task in TASKS:
        (changelog / f"task={task}" / "segment=4").mkdir()  # a driver's, about to write its first file of it
    twins.compact()
    assert sorted(path.relative_to(changelog).as_posix() for path in changelog.glob("task=*/segment=*")) == [
        f"task={task}/segment={number}" for task in TASKS for number in (3, 4)
    ]
    twins.commit()
    twins.check()
    twins.close()


@pytest.mark.slow
def test_while_the_application_runs_the_open_segment_stays_as_it_is(tmp_path):
    """PROTOCOL 22; closed rows land in the last closed segment."""
    twins = Twins(tmp_path, step=SEGMENT_EPOCHS // 4)
    twins.commit(10)  # segments 0 to 2, the last one open
    twins.compact(is_whole=False)
    files = file_actions(DeltaTable(twins.app / CHANGES.name))
    assert sorted(files.select("partition.task", "partition.segment").rows()) == [
        (task, segment) for task in TASKS for segment in (1, 2, 2, 2)
    ]
    twins.check()
    twins.commit(2)  # closes segment 2
    twins.compact(is_whole=False)
    assert sorted(file_actions(DeltaTable(twins.app / CHANGES.name))["partition.segment"]) == [2, 2, 3, 3]
    twins.check()
    twins.close()


@pytest.mark.slow
def test_deletions_older_than_the_retention_are_dropped_and_the_table_says_through_which_epoch(tmp_path):
    twins = Twins(tmp_path, at_ms=1000)
    twins.commit(24)
    twins.at_ms = time.time_ns() // 1_000_000
    twins.commit(2)
    twins.check()
    dead = (
        read_rows(twins.folders[1] / "app" / CHANGES.name)
        .sort("_epoch")
        .unique(["task", "k"], keep="last")
        .filter("_deleted")
    )
    twins.compact()
    rows = read_rows(twins.app / CHANGES.name)
    assert set(rows.filter("_deleted")["_epoch"]) == {epoch for epoch in dead["_epoch"] if epoch > 24}
    horizon = DeltaTable(twins.app / CHANGES.name).metadata().configuration[TOMBSTONE_HORIZON]
    assert int(horizon) == max(epoch for epoch in dead["_epoch"] if epoch <= 24)
    twins.check()
    twins.commit(2)
    twins.check()
    twins.close()


def test_a_plan_changes_nothing_and_says_how_many_files_would_be_left(twins):
    twins.commit(5)
    compaction = Compaction(twins.folders[0], "app", is_whole=True)
    planned = {report.table: report.files_after for report in compaction.plan(compaction.tables())}
    assert planned == {"facts": 1, "totals": 1, "_changelog/totals": 2}
    assert {name: file_actions(DeltaTable(twins.app / name)).height for name in NAMES} == {
        "facts": 5,
        "totals": 10,
        "_changelog/totals": 10,
    }


@pytest.mark.slow
def test_appends_that_a_dead_driver_still_owed_are_redone_first_and_a_table_that_cannot_catch_up_is_refused(twins):
    """PROTOCOL 15: by the same code as a start."""
    twins.commit(3)
    died = twins.written()
    with pytest.raises(KeyboardInterrupt):
        _dying(twins.driver).commit(died)
    assert read_rows(twins.app / "facts").height + read_rows(twins.app / "totals").height < 4 + 32
    missing = twins.app / died.files[-1].table / died.files[-1].path
    kept = missing.read_bytes()
    missing.unlink()
    with pytest.raises(TableBehindError):
        twins.compact()
    missing.write_bytes(kept)
    twins.compact()
    twins.check()


def _dying(driver: Committer) -> Committer:
    def die(step: str) -> None:
        raise KeyboardInterrupt

    driver._on_step = die
    return driver


REST_S = 0.02
"""Between commits: each makes the following ones, and the compactions, longer."""


@pytest.mark.faults
def test_commits_go_on_beside_compactions_at_their_steps(tmp_path):
    twins, failed, done = Twins(tmp_path, step=SEGMENT_EPOCHS // 5), [], threading.Event()
    met, every_step = set[str](), set[str]()
    twins.commit(10)

    def commits() -> None:
        try:
            while not done.wait(REST_S):
                twins.commit()
        except BaseException as error:
            failed.append(error)

    def go_on(step: str) -> None:
        """Not before a commit that began after the step is done; once for each step of a compaction."""
        if step not in met:
            met.add(step)
            wanted = twins.epoch + twins.step
            wait_for(lambda: twins.epoch > wanted or failed, f"commits go on at {step!r}", every_s=0.01)

    thread = threading.Thread(target=commits)
    thread.start()
    try:
        for retention_ms, is_whole in product((3_600_000, 0), (False, True)):
            met.clear()
            twins.compact(is_whole=is_whole, tombstone_retention_ms=retention_ms, on_step=go_on)
            every_step |= met
    finally:
        done.set()
        thread.join()
    assert not failed
    assert every_step >= set(STEPS) - {"horizon raised"}, "that one only if a deletion is dropped"
    commits_made = twins.epoch // twins.step  # each left a file at least
    assert file_actions(DeltaTable(twins.app / CHANGES.name)).height < commits_made
    twins.check()
    twins.close()


@pytest.mark.faults
def test_a_compaction_killed_at_each_step_leaves_every_table_right(twins, tmp_path):
    twins.commit(8)
    met = tmp_path / "met"
    for dies_at in range(1, 30):
        code = ended(compact, twins.folders[0], dies_at, met)
        twins.check()
        if code == 0:
            break
        assert code == -signal.SIGKILL
        if dies_at % 3 == 0:
            twins.commit()
    assert code == 0
    assert set(met.read_text().splitlines()) == set(STEPS)
    twins.commit(2)
    twins.check()


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("step", STEPS[:3])
def test_a_table_that_is_removed_meanwhile_is_left_out_and_the_others_are_merged(twins, step, returns):
    twins.commit(8)
    totals = twins.app / TOTALS.name

    def removed(name: str) -> None:
        if name == step and not ids:
            ids[TOTALS.name] = table_id(totals)
            remove_tables(twins.app, ids)
            if returns:
                AppendTable.create(twins.app, TOTALS, "app")

    ids: dict[str, str] = {}
    compaction = Compaction(twins.folders[0], "app", is_whole=True, tombstone_retention_ms=-60_000, on_step=removed)
    reports = [report.table for report in compaction.run([TOTALS.name, FACTS.name])]
    assert [name for name in reports if name != TOTALS.name or not returns] == [FACTS.name, "_commits"]
    assert file_actions(DeltaTable(twins.app / FACTS.name)).height == 1
    assert read_rows(totals).height == 0 if returns else not totals.exists()


@pytest.mark.faults
def test_of_two_compactions_at_the_same_time_each_table_is_merged_once(twins, tmp_path):
    twins.commit(12)
    both = [started(compact, twins.folders[0], 0, tmp_path / "met") for _ in range(2)]
    twins.commit(10)
    assert [end_of(process) for process in both] == [0, 0]
    twins.check()
    twins.compact()
    twins.check()


@pytest.mark.slow
def test_files_are_deleted_a_day_after_they_left_the_table_and_those_a_commit_may_still_name_stay(twins):
    twins.commit(4)
    waiting = twins.written()  # by the driver that runs, not committed yet
    twins.compact()
    names = {path.name for path in (twins.app / "facts").glob("*.parquet")}
    assert len(names) == 6, "four replaced, the merged one, and the one that waits"
    long_ago = time.time() - 3 * 86_400
    orphan = write_file(twins.app, FACTS, pl.DataFrame({"n": [9], "_epoch": [9]}))
    os.utime(twins.app / "facts" / orphan.path, (long_ago, long_ago))
    reports = twins.compact()
    assert reports["facts"].files_deleted == 1
    twins.driver.commit(waiting)
    twins.check()
