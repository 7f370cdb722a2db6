"""Appends that do not read the table: interleaved with other writers, never counted where the log was cleaned up."""

from __future__ import annotations

import os
import time

import polars as pl
import pytest
from deltalake import DeltaTable

from weir.state.commit import delta_log
from weir.state.commit.checkpoints import last_checkpoint
from weir.state.commit.delta_log import DeltaLog, replace_files
from weir.state.commit.files import write_file
from weir.state.commit.tables import AppendTable, file_actions, read_rows
from weir.state.errors import TableFeatureError
from weir.state.types import FileEntry, TableSpec

SPEC = TableSpec(
    name="t", schema=pl.Schema({"n": pl.Int64(), "_epoch": pl.Int64(), "task": pl.String()}), partition_by=("task",)
)


def entry(app, n: int, task: str = "0_0 100%/ü") -> FileEntry:
    return write_file(app, SPEC, pl.DataFrame({"n": [n], "_epoch": [n]}), {"task": task})


@pytest.fixture
def table(tmp_path) -> AppendTable:
    return AppendTable.create(tmp_path, SPEC, "app")


def test_rows_appended_are_read_by_deltas_libraries_with_their_partition_and_statistics(tmp_path, table):
    table.append(7, [entry(tmp_path, 3)])
    assert read_rows(tmp_path / "t").rows() == [(3, 3, "0_0 100%/ü")]
    delta = DeltaTable(tmp_path / "t")
    assert delta.transaction_version("app") == 7
    assert file_actions(delta).select("num_records", "min.n", "partition.task").rows() == [(1, 3, "0_0 100%/ü")]
    assert not [path for path in (tmp_path / "t" / "_delta_log").iterdir() if path.suffix == ".tmp"]


def test_an_append_comes_after_what_another_writer_has_put_into_the_log(tmp_path, table):
    for version in (1, 2):
        table.append(version, [entry(tmp_path, version)])
    merged = entry(tmp_path, 12)
    assert replace_files(tmp_path / "t", file_actions(DeltaTable(tmp_path / "t")), [merged], is_data_changed=True)
    table.append(3, [entry(tmp_path, 3)])
    assert sorted(read_rows(tmp_path / "t")["n"]) == [3, 12]
    DeltaTable(tmp_path / "t").alter.set_table_properties({"weir.x": "1"}, raise_if_not_exists=False)
    table.append(4, [entry(tmp_path, 4)])
    assert sorted(read_rows(tmp_path / "t")["n"]) == [3, 4, 12]


def test_an_append_whose_transaction_has_moved_writes_nothing(tmp_path, table):
    log = DeltaLog(tmp_path / "t", "app")
    table.append(5, [entry(tmp_path, 5)])
    assert not log.append(6, [entry(tmp_path, 6)])
    assert (log.transaction, read_rows(tmp_path / "t")["n"].to_list()) == (5, [5])


def test_a_replacement_under_a_transaction_writes_nothing_if_another_writer_was_quicker(tmp_path, table):
    """What it removes was found in a version of the table that is no longer the newest (docs/backfill.md, 7)."""
    table.append(1, [entry(tmp_path, 1)])
    log, found = DeltaLog(tmp_path / "t", "app"), file_actions(DeltaTable(tmp_path / "t"))
    assert replace_files(tmp_path / "t", found, [entry(tmp_path, 10)], is_data_changed=False)
    assert not log.append(2, [entry(tmp_path, 2)], found)
    assert (log.transaction, read_rows(tmp_path / "t")["n"].to_list()) == (1, [10])
    assert log.append(2, [entry(tmp_path, 2)], file_actions(DeltaTable(tmp_path / "t")))
    assert (log.transaction, read_rows(tmp_path / "t")["n"].to_list()) == (2, [2])


def test_a_writer_that_slept_until_the_log_was_cleaned_up_learns_that_its_entry_does_not_count(tmp_path, table):
    """Its next number is free again, since the entry that had it is gone."""
    sleeper = DeltaLog(tmp_path / "t", "app")
    for version in range(1, 8):
        table.append(version, [entry(tmp_path, version)])
    table.checkpoint()
    table.append(8, [entry(tmp_path, 8)])
    log, long_ago = tmp_path / "t" / "_delta_log", time.time() - 4000
    for path in log.iterdir():
        os.utime(path, (long_ago, long_ago))
    table.checkpoint()
    assert not (log / f"{1:020}.json").exists()
    assert last_checkpoint(tmp_path / "t") == 8
    sleeper.append(99, [entry(tmp_path, 99)])
    assert sleeper.transaction == 8
    assert sorted(read_rows(tmp_path / "t")["n"]) == list(range(1, 9))


def test_a_table_whose_writers_need_more_than_appends_of_files_is_refused(tmp_path, table):
    DeltaTable(tmp_path / "t").alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(TableFeatureError, match=r"of 'app' requires its writers to support writer version 3"):
        AppendTable(tmp_path / "t", "t", "app")


@pytest.mark.parametrize("is_data_changed", [True, False])
def test_of_two_replacements_of_one_file_the_second_changes_nothing(tmp_path, table, monkeypatch, is_data_changed):
    """Even if both have read the table before either writes."""
    table.append(1, [entry(tmp_path, 1)])
    files, live = file_actions(DeltaTable(tmp_path / "t")), delta_log._live

    def other_comes_first(snapshot):
        monkeypatch.setattr(delta_log, "_live", live)
        assert replace_files(tmp_path / "t", files, [entry(tmp_path, 10)], is_data_changed=is_data_changed)
        table.append(2, [entry(tmp_path, 2)])
        return live(snapshot)

    monkeypatch.setattr(delta_log, "_live", other_comes_first)
    assert not replace_files(tmp_path / "t", files, [entry(tmp_path, 11)], is_data_changed=is_data_changed)
    assert not replace_files(tmp_path / "t", files, [entry(tmp_path, 12)], is_data_changed=is_data_changed)
    assert sorted(read_rows(tmp_path / "t")["n"]) == [2, 10]


def test_an_append_costs_the_same_with_a_long_history_and_with_thousands_of_files(tmp_path, table, monkeypatch):
    """Nothing but the log's newest and next numbers is looked at: not the folder, not the files, not an older entry."""
    for version in range(1, 4):
        table.append(version, [entry(tmp_path, version)])

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an append looked at the whole table")

    for entry_path in sorted((tmp_path / "t" / "_delta_log").glob("*.json"))[:-1]:
        entry_path.unlink()
    monkeypatch.setattr("weir.state.storage.places.DeltaTable", refuse)
    table.append(4, [entry(tmp_path, 4)])
    left = sorted(path.name for path in (tmp_path / "t" / "_delta_log").iterdir())
    assert left == [f"{3:020}.json", f"{4:020}.json"]
