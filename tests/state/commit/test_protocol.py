"""Commits under crashes, zombies and fighting drivers: nothing lost, nothing doubled."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from tests.azure_server import AZURITE
from tests.forked import end_of, started
from tests.state.commit.commits import (
    CHANGES,
    FACTS,
    TABLES,
    TOTALS,
    Crash,
    all_counts,
    committed,
    committer,
    facts,
    fight,
    record,
)
from weir.state.commit.files import write_file
from weir.state.commit.log import COMMITS
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import AppendTable, file_actions, read_rows, read_table
from weir.state.errors import EpochLimitError, FencedError, TableAheadError, TableBehindError, TableSchemaError
from weir.state.storage.contract import Folder
from weir.state.storage.local import Local
from weir.state.storage.places import folder_at, storage_options, table_at
from weir.state.types import StateId, TableSpec

STORAGES = {"local": "local", "s3": "s3_bucket"} | ({"azure": "azure_container"} if AZURITE else {})


@pytest.fixture(params=STORAGES.values(), ids=STORAGES)
def warehouse(request, tmp_path) -> Folder:
    if request.param == "local":
        return Local(tmp_path)
    return folder_at(f"{request.getfixturevalue(request.param)}/warehouse")


def test_the_first_claim_creates_the_tables_and_commits_follow(warehouse):
    steps: list[str] = []
    driver = committer(warehouse, on_step=steps.append)
    claim = driver.claim()
    assert (claim.generation, claim.newest) == (1, None)
    assert all_counts(warehouse) == [0, 0, 0]
    for epoch in (1, 2, 5):
        driver.commit(record(warehouse, 1, epoch))
    driver.close()
    assert steps == ["pivot appended", "table appended", "table appended", "table appended", "settled"] * 3
    assert facts(warehouse) == [1, 2, 5]
    newest = newest_commit(warehouse, "app")
    assert newest is not None
    assert (newest.epoch, newest.tasks["0_0"].positions, newest.reason) == (5, {"t": {0: 5}}, "interval")
    log = read_rows(warehouse / "app" / "_commits").sort("generation", "epoch")
    assert log.select("generation", "epoch", "kind").rows() == [
        (1, 0, "claim"),
        (1, 1, "commit"),
        (1, 2, "commit"),
        (1, 5, "commit"),
    ]
    again = committer(warehouse).claim()
    assert (again.generation, again.newest) == (2, newest)


def test_a_commit_that_was_refused_before_its_pivot_leaves_nothing_to_one_of_the_same_number(warehouse):
    """What is appended is the row of the record that stands, whatever was prepared before."""
    driver = committer(warehouse)
    driver.claim()
    refused = record(warehouse, 1, 1)

    def refuse():
        raise LookupError

    with pytest.raises(LookupError):
        driver.commit(refused, refuse)
    more = replace(record(warehouse, 1, 1), tasks={"0_0": replace(refused.tasks["0_0"], positions={"t": {0: 9}})})
    driver.commit(more)
    driver.close()
    newest = newest_commit(warehouse, "app")
    assert newest.tasks["0_0"].positions == {"t": {0: 9}}
    assert {each.path for each in newest.files} == {each.path for each in more.files}
    assert facts(warehouse) == [1]


def test_an_epoch_beyond_the_last_number_is_refused_before_anything_is_written(warehouse):
    """Its version would be one of another generation, or one that the log has already."""
    driver = committer(warehouse)
    driver.claim()
    driver.commit(record(warehouse, 1, 2**32 - 1))
    with pytest.raises(EpochLimitError, match="'app' has used up its 4,294,967,296 epochs"):
        driver.commit(record(warehouse, 1, 2**32))
    driver.close()
    assert newest_commit(warehouse, "app").epoch == 2**32 - 1
    assert committer(warehouse).claim().generation == 2


def test_a_commit_that_is_not_confirmed_is_as_if_it_had_not_been_tried(warehouse):
    """It is asked once all is ready for the pivot, which would make the commit stand."""
    driver, there = committer(warehouse), list[set[str]]()
    driver.claim()
    driver.commit(record(warehouse, 1, 1))

    def entries() -> set[str]:
        return {file.name for file in (warehouse / "app").list(below=True) if "/_delta_log/" in file.name}

    def refuse() -> None:
        there.append(entries())
        raise LookupError("the topic is another one")

    before, wanted = entries(), record(warehouse, 1, 2)
    with pytest.raises(LookupError):
        driver.commit(wanted, refuse)
    assert there == [before]
    assert entries() == before
    assert newest_commit(warehouse, "app").epoch == 1
    driver.commit(wanted)
    driver.close()
    assert all_counts(warehouse) == [2, 4, 2]


def test_reading_a_table_of_updates_gives_its_newest_rows_without_deleted_ones(warehouse):
    driver = committer(warehouse)
    driver.claim()
    for epoch in (1, 2, 3, 4):
        driver.commit(record(warehouse, 1, epoch))
    assert sorted(read_table(warehouse / "app" / "totals")["n"]) == [2, 3]  # epoch 4 deleted k1
    assert sorted(read_table(warehouse / "app" / "_changelog/s")["n"]) == [2, 3, 4]
    assert read_table(warehouse / "app" / "facts").height == 4


@pytest.mark.parametrize("dies_after", range(1, 6))
def test_a_driver_that_dies_at_any_step_of_a_commit_leaves_one_that_is_redone_whole(warehouse, dies_after):
    """And when a zombie of it resumes later, it changes nothing."""
    left = dies_after

    def die(step: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Crash

    first = committer(warehouse)
    first.claim()
    first.commit(record(warehouse, 1, 1))
    first._on_step = die
    second_record = record(warehouse, 1, 2)
    with pytest.raises(Crash):
        first.commit(second_record)
    successor = committer(warehouse)
    claim = successor.claim()
    assert claim.newest is not None
    assert claim.newest.epoch == 2
    assert all_counts(warehouse) == [2, 4, 2]
    successor.commit(record(warehouse, 2, 3))
    first._on_step = lambda step: None
    first.commit(second_record)  # the zombie ends its commit: all of it is there already
    with pytest.raises(FencedError, match=r"wrote version 1\.2\b.* is at 2\.3"):
        first.commit(record(warehouse, 1, 3))
    assert all_counts(warehouse) == [3, 6, 3]
    assert facts(warehouse) == [1, 2, 3]


def test_files_are_on_disk_before_the_row_names_them_and_the_row_before_a_table_has_them(tmp_path, monkeypatch):
    """PROTOCOL 13: after a power failure no row may name a lost file, and no table may have what no row names."""
    driver, events, sync, link = committer(tmp_path), list[tuple[str, Path]](), os.fsync, os.link
    driver.claim()

    def noted_sync(descriptor):
        sync(descriptor)
        events.append(("synced", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))

    def noted_link(source, target):
        assert ("synced", Path(source)) in events, "an entry is on disk before it is part of the log"
        link(source, target)
        events.append(("linked", Path(target)))

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "link", noted_link)
    wanted = record(tmp_path, 1, 1)
    driver.commit(wanted)
    links = [at for at, (what, _) in enumerate(events) if what == "linked"]
    assert [events[at][1].parents[1].name for at in links[:1]] == [COMMITS.name]
    assert len(links) == 1 + len(TABLES)
    pivot, first_append = links[:2]
    (row,) = {path for what, path in events[:pivot] if what == "synced" and path.parent.name == COMMITS.name}
    for path in [*(tmp_path / "app" / entry.table / entry.path for entry in wanted.files), row]:
        file, folder = (events.index(("synced", each)) for each in (path, path.parent))
        assert max(file, folder) < pivot, path
    assert ("synced", tmp_path / "app" / "_changelog/s") in events[:pivot], "the folder task=0_0 is new"
    assert ("synced", events[pivot][1].parent) in events[pivot:first_append]
    between = [path for what, path in events[pivot : links[-1]] if what == "synced"]
    assert all(path.is_dir() for path in between), "entries were written with the row: a commit waits for names alone"
    assert list((tmp_path / "app").rglob(".*.tmp")) == []
    driver.close()


def test_what_a_commit_had_ready_that_was_not_made_is_gone_after_the_next(tmp_path):
    driver = committer(tmp_path)
    driver.claim()
    wanted = record(tmp_path, 1, 1)
    for _ in range(3):
        with pytest.raises(ConnectionError):
            driver.commit(wanted, confirm=unconfirmed)
    assert len(list((tmp_path / "app").rglob(".*.tmp"))) == 1 + len(TABLES)
    assert newest_commit(tmp_path, "app") is None
    driver.commit(wanted)
    assert list((tmp_path / "app").rglob(".*.tmp")) == []
    assert newest_commit(tmp_path, "app").state_id == wanted.state_id
    driver.close()


def test_what_a_driver_had_ready_for_a_commit_that_it_did_not_make_is_gone_once_it_is_closed(tmp_path):
    driver = committer(tmp_path)
    driver.claim()
    with pytest.raises(ConnectionError):
        driver.commit(record(tmp_path, 1, 1), confirm=unconfirmed)
    driver.close()
    assert list((tmp_path / "app").rglob(".*.tmp")) == []


def test_a_row_whose_entry_the_disk_has_no_room_for_is_removed_and_the_next_try_commits(tmp_path, monkeypatch):
    driver = committer(tmp_path, tables=())
    driver.claim()
    folder, stage = tmp_path / "app" / COMMITS.name, Local.stage
    rows = {*folder.glob("*.parquet")}

    def full(place, data):
        if {*folder.glob("*.parquet")} > rows:
            raise OSError(errno.ENOSPC, "No space left on device")
        return stage(place, data)

    wanted = CommitRecord(kind="commit", generation=1, epoch=1, at_ms=0, fingerprint="f")
    with monkeypatch.context() as filled:
        filled.setattr(Local, "stage", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                driver.commit(wanted)
    assert {*folder.glob("*.parquet")} == rows
    driver.commit(wanted)
    assert newest_commit(tmp_path, "app").state_id == wanted.state_id
    driver.close()


def unconfirmed():
    raise ConnectionError


def test_a_fenced_driver_writes_nothing(warehouse):
    older, newer = committer(warehouse), committer(warehouse)
    older.claim()
    newer.claim()
    with pytest.raises(FencedError):
        older.commit(record(warehouse, 1, 1))
    assert all_counts(warehouse) == [0, 0, 0]
    assert newest_commit(warehouse, "app") is None
    newer.commit(record(warehouse, 2, 1))
    assert facts(warehouse) == [1]


def test_a_driver_that_slept_until_the_log_was_cleaned_up_is_fenced_though_its_number_is_free_again(tmp_path):
    """PROTOCOL 3: its entry lands where one was removed, and nobody reads it."""
    older, newer = committer(tmp_path, tables=(FACTS,)), committer(tmp_path, tables=(FACTS,))
    older.claim()
    entry = write_file(tmp_path / "app", FACTS, pl.DataFrame({"n": [-1], "_epoch": [1]}))
    newer.claim()
    log = AppendTable(tmp_path / "app" / COMMITS.name, COMMITS.name, "app")
    for epoch in range(1, 4):
        newer.commit(CommitRecord(kind="commit", generation=2, epoch=epoch, at_ms=0, fingerprint="f"))
        log.checkpoint()
        for path in Path(log.folder.uri, "_delta_log").iterdir():
            os.utime(path, (0, 0))
    log.checkpoint()
    assert (log.folder / "_delta_log").find(f"{older._claimed_log()._log.version + 1:020}.json") is None
    with pytest.raises(FencedError, match=r"wrote version 1\.0\b.* is at 2\.3"):
        older.commit(CommitRecord(kind="commit", generation=1, epoch=1, at_ms=0, fingerprint="f", files=(entry,)))
    newest = newest_commit(tmp_path, "app")
    assert newest is not None
    assert (newest.generation, newest.epoch) == (2, 3)
    assert facts(tmp_path) == []


def test_when_two_drivers_claim_at_the_same_moment_one_is_fenced(warehouse, monkeypatch):
    first, second = committer(warehouse), committer(warehouse)
    write = AppendTable.write

    def other_comes_first(table, version, files):
        monkeypatch.setattr(AppendTable, "write", write)
        first.claim()
        return write(table, version, files)

    monkeypatch.setattr(AppendTable, "write", other_comes_first)
    with pytest.raises(FencedError):
        second.claim()
    first.commit(record(warehouse, 1, 1))
    assert facts(warehouse) == [1]
    assert read_rows(warehouse / "app" / "_commits").filter(pl.col("kind") == "claim").height == 1


def test_a_driver_that_claims_while_an_older_one_commits_still_gets_its_claim(warehouse, monkeypatch):
    """The older driver's commit lands after the newer one has read the log and before it claims."""
    older, newer = committer(warehouse), committer(warehouse)
    older.claim()
    wanted, write = record(warehouse, 1, 1), AppendTable.write

    def older_comes_first(table, version, files):
        monkeypatch.setattr(AppendTable, "write", write)
        older.commit(wanted)
        return write(table, version, files)

    monkeypatch.setattr(AppendTable, "write", older_comes_first)
    claim = newer.claim()
    assert claim.newest is not None
    assert (claim.generation, claim.newest.epoch) == (2, 1)
    with pytest.raises(FencedError):
        older.commit(record(warehouse, 1, 2))
    newer.commit(record(warehouse, 2, 2))
    assert facts(warehouse) == [1, 2]


def test_a_commit_that_never_reached_the_log_leaves_no_trace_in_later_rows(warehouse, monkeypatch):
    driver = committer(warehouse)
    driver.claim()
    with monkeypatch.context() as broken:
        failing(broken, "_commits", after_success=False, times=99)
        with pytest.raises(OSError, match="storage"):
            driver.commit(record(warehouse, 1, 1))
    entry = write_file(warehouse / "app", FACTS, pl.DataFrame({"n": [2], "_epoch": [2]}))
    driver.commit(CommitRecord(kind="commit", generation=1, epoch=2, at_ms=0, fingerprint="f", files=(entry,)))
    newest = newest_commit(warehouse, "app")
    assert newest is not None
    assert newest.table_versions == {"facts": StateId(1, 2).version}


def failing(monkeypatch, table: str, *, after_success: bool, times: int) -> list[str]:
    """Make a table's Delta writes raise, before or after they take effect."""
    write = AppendTable.write
    failed: list[str] = []

    def fail(self, version, files):
        mine = self.name == table and len(failed) < times
        written = (not mine or after_success) and write(self, version, files)
        if mine:
            failed.append(table)
            raise OSError("the storage went away")
        return written

    monkeypatch.setattr(AppendTable, "write", fail)
    return failed


@pytest.mark.parametrize("table", ["_commits", "facts"])
@pytest.mark.parametrize("after_success", [True, False])
def test_a_write_that_raises_once_is_read_back_and_done_once(warehouse, monkeypatch, table, after_success):
    driver = committer(warehouse)
    driver.claim()
    failed = failing(monkeypatch, table, after_success=after_success, times=1)
    driver.commit(record(warehouse, 1, 1))
    driver.commit(record(warehouse, 1, 2))
    assert failed == [table]
    assert all_counts(warehouse) == [2, 4, 2]
    assert read_rows(warehouse / "app" / "_commits").height == 3


def test_an_append_that_fails_for_good_is_redone_before_the_next_pivot(warehouse, monkeypatch):
    """PROTOCOL 14: commit 2 would hide commit 1."""
    steps: list[str] = []
    driver = committer(warehouse, on_step=steps.append)
    driver.claim()
    with monkeypatch.context() as broken:
        failing(broken, "facts", after_success=False, times=99)
        with pytest.raises(OSError, match="storage"):
            driver.commit(record(warehouse, 1, 1))
        with pytest.raises(OSError, match="storage"):
            driver.commit(record(warehouse, 1, 2))
    newest = newest_commit(warehouse, "app")
    assert newest is not None
    assert newest.epoch == 1
    driver.commit(record(warehouse, 1, 2))
    assert facts(warehouse) == [1, 2]
    assert all_counts(warehouse) == [2, 4, 2]


def test_while_the_log_cannot_be_written_nothing_is_committed_and_a_retry_commits_once(warehouse, monkeypatch):
    driver = committer(warehouse)
    driver.claim()
    wanted = record(warehouse, 1, 1)
    with monkeypatch.context() as broken:
        failing(broken, "_commits", after_success=False, times=99)
        with pytest.raises(OSError, match="storage"):
            driver.commit(wanted)
    assert newest_commit(warehouse, "app") is None
    assert all_counts(warehouse) == [0, 0, 0]
    driver.commit(wanted)
    driver.commit(wanted)
    assert all_counts(warehouse) == [1, 2, 1]


def test_a_missing_file_is_found_before_the_pivot(warehouse):
    driver = committer(warehouse)
    driver.claim()
    wanted = record(warehouse, 1, 1)
    (warehouse / "app" / "facts").delete([wanted.files[0].path])
    with pytest.raises(TableBehindError, match="facts"):
        driver.commit(wanted)
    assert newest_commit(warehouse, "app") is None


def test_a_promised_file_that_is_gone_stops_the_next_start(warehouse):
    def die(step: str) -> None:
        raise Crash

    driver = committer(warehouse, on_step=die)
    driver.claim()
    wanted = record(warehouse, 1, 1)
    with pytest.raises(Crash):
        driver.commit(wanted)
    (warehouse / "app" / "facts").delete([wanted.files[0].path])
    with pytest.raises(TableBehindError, match=r"commit 1\.1 names the file"):
        committer(warehouse).claim()


@pytest.mark.parametrize("kept", [0, 2])
def test_tables_ahead_of_a_log_that_was_lost_or_is_an_older_copy_stop_every_start(tmp_path, kept):
    """Their appends would count as done, or their rows would double."""
    log, copy = tmp_path / "app" / "_commits", tmp_path / "copy"
    driver = committer(tmp_path)
    driver.claim()
    for epoch in (1, 2, 3, 4):
        driver.commit(record(tmp_path, 1, epoch))
        if epoch == kept:
            shutil.copytree(log, copy)
    shutil.rmtree(log)
    if kept:
        shutil.copytree(copy, log)
    newest = "1.2" if kept else "none"
    for _ in range(3):
        with pytest.raises(
            TableAheadError, match=rf"has commit 1\.4, but the newest one in the commit log is {newest}"
        ):
            committer(tmp_path).claim()
    assert facts(tmp_path) == [1, 2, 3, 4]


def test_a_table_that_lost_its_delta_log_is_rebuilt_from_the_commits(warehouse):
    driver = committer(warehouse)
    driver.claim()
    for epoch in (1, 2, 3):
        driver.commit(record(warehouse, 1, epoch))
    (warehouse / "app" / "facts").delete_folder("_delta_log")
    committer(warehouse).claim()
    assert facts(warehouse) == [1, 2, 3]
    (warehouse / "app").delete_folder("facts")
    with pytest.raises(TableBehindError, match="facts"):
        committer(warehouse).claim()


def test_a_table_of_an_earlier_topology_is_brought_up_to_date_too(warehouse):
    def die(step: str) -> None:
        raise Crash

    driver = committer(warehouse, on_step=die)
    driver.claim()
    with pytest.raises(Crash):
        driver.commit(record(warehouse, 1, 1))
    later = committer(warehouse, tables=(TOTALS,))
    later.claim()
    assert all_counts(warehouse) == [1, 2, 1]


def test_a_redo_comes_before_wider_types_so_that_every_file_has_them(tmp_path):
    def die(step: str) -> None:
        raise Crash

    def with_decimal(precision: int) -> TableSpec:
        schema = {**CHANGES.schema, "n": pl.Decimal(precision, 2)}
        return replace(CHANGES, schema=pl.Schema(schema), evolves_freely=True)

    before, now = with_decimal(7), with_decimal(30)
    driver = committer(tmp_path, tables=(before,))
    driver.claim()
    for epoch, cents in ((1, "1.25"), (2, "2.25")):
        row = pl.DataFrame({"k": [f"k{epoch}"], "n": [Decimal(cents)], "_epoch": [epoch], "_deleted": [False]})
        files = (write_file(tmp_path / "app", before, row, {"task": "0_0"}),)
        driver._on_step = die if epoch == 2 else lambda step: None
        with pytest.raises(Crash) if epoch == 2 else nullcontext():
            driver.commit(replace(record(tmp_path, 1, epoch), files=files))
    committer(tmp_path, tables=(now,)).claim()
    table = DeltaTable(tmp_path / "app" / now.name)
    assert {str(pl.read_parquet_schema(file)["n"]) for file in table.file_uris()} == {"Decimal(precision=30, scale=2)"}
    rows = pl.DataFrame(table.to_pyarrow_table()).sort("k").select("k", "n").rows()
    assert rows == [("k1", Decimal("1.25")), ("k2", Decimal("2.25"))]


def test_different_columns_are_refused_and_both_lists_are_shown(warehouse):
    committer(warehouse).claim()
    other = TableSpec(name="facts", schema=pl.Schema({"n": pl.String(), "_epoch": pl.Int64()}))
    with pytest.raises(TableSchemaError, match="`n` was long, is string"):
        committer(warehouse, tables=(other,)).claim()


def test_records_out_of_order_are_refused(warehouse):
    driver = committer(warehouse)
    with pytest.raises(ValueError, match="generation 0"):
        driver.commit(record(warehouse, 1, 1))
    driver.claim()
    driver.commit(record(warehouse, 1, 2))
    for generation, epoch in ((1, 1), (2, 3)):
        with pytest.raises(ValueError, match="does not follow"):
            driver.commit(record(warehouse, generation, epoch))
    stranger = TableSpec(name="stranger", schema=FACTS.schema)
    entry = write_file(warehouse / "app", stranger, pl.DataFrame({"n": [1], "_epoch": [3]}))
    with pytest.raises(ValueError, match="stranger"):
        driver.commit(CommitRecord(kind="commit", generation=1, epoch=3, at_ms=0, fingerprint="f", files=(entry,)))


def test_the_newest_commit_is_found_without_reading_older_rows(warehouse, monkeypatch):
    """PROTOCOL 16; and tables are checkpointed along the way, so opening them stays quick."""
    monkeypatch.setattr("weir.state.commit.tables.CHECKPOINT_EVERY_VERSIONS", 25)
    driver = committer(warehouse, tables=(FACTS,))
    driver.claim()
    for epoch in range(1, 31):
        entry = write_file(warehouse / "app", FACTS, pl.DataFrame({"n": [epoch], "_epoch": [epoch]}))
        driver.commit(
            CommitRecord(kind="commit", generation=1, epoch=epoch, at_ms=epoch, fingerprint="f", files=(entry,))
        )
    driver.close()
    folder = warehouse / "app" / COMMITS.name
    files = file_actions(table_at(folder))
    folder.delete(files.filter(pl.col("max.epoch") < 30)["path"])
    newest = newest_commit(warehouse, "app")
    assert newest is not None
    assert newest.epoch == 30
    assert committer(warehouse, tables=(FACTS,)).claim().generation == 2
    assert any(file.name.endswith(".checkpoint.parquet") for file in (folder / "_delta_log").list())
    assert facts(warehouse) == list(range(1, 31))


@pytest.mark.slow
def test_fighting_drivers_commit_every_epoch_once(warehouse, tmp_path):
    """PROTOCOL 3: a commit that was reported as done is in the log, and no epoch is there twice."""
    committer(warehouse, tables=(FACTS,)).claim()
    told, wanted = tmp_path / "told", {"commit": 12, "fenced": 2}
    fighters = [started(fight, str(warehouse), told, wanted) for _ in range(3)]
    assert [end_of(fighter) for fighter in fighters] == [0, 0, 0]
    committer(warehouse, tables=(FACTS,)).claim()
    log = read_rows(warehouse / "app" / "_commits")
    commits = log.filter(pl.col("kind") == "commit").sort("generation", "epoch")
    assert commits["epoch"].to_list() == list(range(1, commits.height + 1))
    assert facts(warehouse) == commits["epoch"].to_list()
    assert committed(told) <= set(commits.select("generation", "epoch").rows())
    claims = Counter(log.filter(pl.col("kind") == "claim")["generation"])
    assert set(claims.values()) == {1}


def test_partitions_of_any_characters_are_read_back_by_us_by_delta_rs_and_by_polars(warehouse):
    """Their names are in the paths of a changelog's files."""
    driver, values = committer(warehouse), ["b c/d=e%f", "ü #?&+", "100 %", "a=b", None]
    driver.claim()
    files = []
    for number, value in enumerate(values):
        rows = pl.DataFrame({"k": ["k"], "n": [number], "_epoch": [1], "_deleted": [False]})
        files.append(write_file(warehouse / "app", CHANGES, rows, {"task": value}))
    driver.commit(replace(record(warehouse, 1, 1), files=tuple(files)))
    driver.close()
    table = warehouse / "app" / CHANGES.name
    expected = sorted(enumerate(values))
    for read in (
        read_rows(table),
        pl.from_arrow(table_at(table).to_pyarrow_table()),
        pl.read_delta(table.uri, storage_options=storage_options(table)),
        table_at(table).optimize.compact() and read_rows(table),
    ):
        assert sorted(read.select("n", "task").rows()) == expected
    some = pl.scan_delta(table.uri, storage_options=storage_options(table)).filter(pl.col("task") == values[0])
    assert some.select("n").collect().rows() == [(0,)]
