"""Old rows of the commit log are rolled up beside drivers that commit, claim and die: nothing lost, nobody fenced."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.forked import end_of, started
from tests.state.commit.commits import (
    FACTS,
    Crash,
    all_counts,
    committed,
    committer,
    facts,
    fight,
    has_told,
    record,
    tell,
)
from weir.state.commit import rollup
from weir.state.commit.log import COMMITS, commits_above, newest_commit
from weir.state.commit.protocol import Committer
from weir.state.commit.rollup import roll_up
from weir.state.commit.tables import file_actions, read_rows
from weir.state.errors import FencedError, TableLostError

THROUGH_ALL = 1 << 62


def log_files(warehouse: Path) -> list[int]:
    """Row counts of the log's files, fewest first."""
    return sorted(file_actions(DeltaTable(warehouse / "app" / COMMITS.name))["num_records"])


@pytest.fixture
def driver(tmp_path) -> Iterator[Committer]:
    """A driver that has claimed and made eight commits."""
    driver = committer(tmp_path)
    driver.claim()
    for epoch in range(1, 9):
        driver.commit(record(tmp_path, 1, epoch))
    yield driver
    driver.close()


def test_rolled_up_rows_keep_everything_but_their_files_and_the_newest_commit_keeps_its_own(tmp_path, driver):
    folder, before = tmp_path / "app" / COMMITS.name, newest_commit(tmp_path, "app")
    assert roll_up(tmp_path / "app", THROUGH_ALL) == 8
    assert log_files(tmp_path) == [1, 8]
    assert newest_commit(tmp_path, "app") == before
    kept = list(commits_above(folder, file_actions(DeltaTable(folder)), 0))
    assert [(one.epoch, one.at_ms, one.tasks["0_0"].positions) for one in kept] == [
        (epoch, epoch, {"t": {0: epoch}}) for epoch in range(1, 9)
    ]
    assert [len(one.files) for one in kept] == [0] * 7 + [3]
    assert [one.is_rolled_up for one in kept] == [True] * 7 + [False]
    assert roll_up(tmp_path / "app", THROUGH_ALL) == 0


def test_rows_above_what_the_tables_have_stay_as_they_are(tmp_path, driver):
    assert roll_up(tmp_path / "app", record(tmp_path, 1, 5).state_id.version) == 6
    folder = tmp_path / "app" / COMMITS.name
    assert [one.epoch for one in commits_above(folder, file_actions(DeltaTable(folder)), 0) if one.files] == [6, 7, 8]


@pytest.mark.slow
def test_a_full_file_is_not_rewritten(tmp_path, driver, monkeypatch):
    monkeypatch.setattr(rollup, "ROWS_A_FILE", 6)
    for epoch in range(9, 25):
        driver.commit(record(tmp_path, 1, epoch))
        roll_up(tmp_path / "app", THROUGH_ALL)
    assert log_files(tmp_path) == [1, 3, 6, 6, 9]
    folder = tmp_path / "app" / COMMITS.name
    assert [one.epoch for one in commits_above(folder, file_actions(DeltaTable(folder)), 0)] == list(range(1, 25))


def test_a_file_has_only_as_many_rows_as_fit_into_memory_at_a_time(tmp_path, driver, monkeypatch):
    length = read_rows(tmp_path / "app" / COMMITS.name)["record"].str.len_bytes().max()
    monkeypatch.setattr(rollup, "BYTES_A_FILE", 7 * length // 2)
    assert roll_up(tmp_path / "app", THROUGH_ALL) == 8
    assert log_files(tmp_path) == [1, 2, 3, 3]
    driver.commit(record(tmp_path, 1, 9))
    driver.commit(record(tmp_path, 1, 10))
    assert roll_up(tmp_path / "app", THROUGH_ALL) == 2
    assert log_files(tmp_path) == [1, 1, 3, 3, 3]
    folder = tmp_path / "app" / COMMITS.name
    assert [one.epoch for one in commits_above(folder, file_actions(DeltaTable(folder)), 0)] == list(range(1, 11))


def test_after_a_roll_up_the_driver_keeps_committing_and_the_next_one_claims(tmp_path, driver):
    roll_up(tmp_path / "app", THROUGH_ALL)
    driver.commit(record(tmp_path, 1, 9))
    successor = committer(tmp_path)
    claim = successor.claim()
    assert claim.newest is not None
    assert (claim.generation, claim.newest.epoch) == (2, 9)
    with pytest.raises(FencedError):
        driver.commit(record(tmp_path, 1, 10))
    assert roll_up(tmp_path / "app", THROUGH_ALL) == 2
    successor.commit(record(tmp_path, 2, 10))
    assert facts(tmp_path) == list(range(1, 11))


@pytest.mark.slow
def test_the_committer_rolls_up_by_itself_and_only_what_is_in_the_tables(tmp_path, monkeypatch):
    """The driver died before the tables had its newest commit: that one is redone from its row."""
    monkeypatch.setattr("weir.state.commit.protocol.ROLL_UP_EVERY_ROWS", 10)
    steps: list[str] = []

    def die_late(step: str) -> None:
        steps.append(step)
        if steps.count("pivot appended") == 30:
            raise Crash

    driver = committer(tmp_path, on_step=die_late)
    driver.claim()
    for epoch in range(1, 30):
        driver.commit(record(tmp_path, 1, epoch))
    with pytest.raises(Crash):
        driver.commit(record(tmp_path, 1, 30))
    driver.close()
    assert log_files(tmp_path)[-1] >= 10
    assert sum(log_files(tmp_path)) == 31
    committer(tmp_path).claim()
    assert all_counts(tmp_path) == [30, 60, 30]


@pytest.mark.parametrize("dies", ["before the log changes", "after the log changed"])
def test_a_roll_up_that_is_killed_leaves_the_log_whole(tmp_path, driver, monkeypatch, dies):
    replace = rollup.replace_files

    def die(*arguments, **options):
        if dies == "after the log changed":
            replace(*arguments, **options)
        raise Crash

    with monkeypatch.context() as broken:
        broken.setattr(rollup, "replace_files", die)
        with pytest.raises(Crash):
            roll_up(tmp_path / "app", THROUGH_ALL)
    assert sorted(read_rows(tmp_path / "app" / COMMITS.name)["epoch"]) == list(range(9))
    driver.commit(record(tmp_path, 1, 9))
    assert roll_up(tmp_path / "app", THROUGH_ALL) == (9 if dies == "before the log changes" else 1)
    assert sorted(read_rows(tmp_path / "app" / COMMITS.name)["epoch"]) == list(range(10))


def test_of_two_roll_ups_of_the_same_rows_one_does_nothing(tmp_path, driver, monkeypatch):
    write = rollup.write_file

    def other_comes_first(*arguments):
        monkeypatch.setattr(rollup, "write_file", write)
        assert roll_up(tmp_path / "app", THROUGH_ALL) == 8
        return write(*arguments)

    monkeypatch.setattr(rollup, "write_file", other_comes_first)
    assert roll_up(tmp_path / "app", THROUGH_ALL) == 0
    assert sorted(read_rows(tmp_path / "app" / COMMITS.name)["epoch"]) == list(range(9))


def test_a_table_that_lost_commits_the_log_no_longer_lists_stops_the_start(tmp_path, driver):
    roll_up(tmp_path / "app", THROUGH_ALL)
    driver.commit(record(tmp_path, 1, 9))
    shutil.rmtree(tmp_path / "app" / "facts" / "_delta_log")
    with pytest.raises(TableLostError, match=r"'facts' is at commit 0\.0, .* 1\.9 .*backup.*weir reset app`"):
        committer(tmp_path).claim()
    assert facts(tmp_path) == []


def roll_up_constantly(warehouse: Path, told: Path, wanted: Mapping[str, int]) -> None:
    while not has_told(told, wanted):
        settled = newest_commit(warehouse, "app")
        if settled is not None and roll_up(warehouse / "app", settled.state_id.version - 1):
            tell(told, "rolled")


@pytest.mark.faults
def test_drivers_fight_over_a_log_that_is_constantly_rolled_up(tmp_path):
    committer(tmp_path, tables=(FACTS,)).claim()
    told, wanted = tmp_path / "told", {"commit": 12, "fenced": 1, "rolled": 3}
    roller = started(roll_up_constantly, tmp_path, told, wanted)
    fighters = [started(fight, str(tmp_path), told, wanted) for _ in range(2)]
    assert [end_of(process) for process in (*fighters, roller)] == [0, 0, 0]
    committer(tmp_path, tables=(FACTS,)).claim()
    rows = read_rows(tmp_path / "app" / COMMITS.name)
    epochs = sorted(rows.filter(kind="commit")["epoch"])
    assert epochs == list(range(1, len(epochs) + 1)) == facts(tmp_path)
    assert committed(told) <= set(rows.filter(kind="commit").select("generation", "epoch").rows())
    claims = rows.filter(kind="claim")["generation"]
    assert claims.n_unique() == claims.len()
