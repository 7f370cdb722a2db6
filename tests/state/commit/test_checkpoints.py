"""What a loss of power may leave of a table's checkpoints: all rows are still there, and appends go on."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from weir.state.changelog.compaction import raise_horizon
from weir.state.commit.checkpoints import entry_name, last_checkpoint
from weir.state.commit.files import write_file
from weir.state.commit.tables import AppendTable, read_rows
from weir.state.errors import DamagedFileError
from weir.state.storage.places import table_at
from weir.state.types import TableSpec

SPEC = TableSpec(name="facts", schema=pl.Schema({"number": pl.Int64()}))


class Table:
    """A table of numbers from 1 on, one a commit."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / SPEC.name / "_delta_log"
        self.table = AppendTable.create(folder, SPEC, "app")

    def append(self, count: int) -> None:
        for _ in range(count):
            number = self.table.version + 1
            self.table.append(number, [write_file(self.folder, SPEC, pl.DataFrame({"number": [number]}))])

    def numbers(self) -> list[int]:
        return sorted(read_rows(self.folder / SPEC.name)["number"])

    def checkpoint(self, version: int) -> Path:
        (found,) = self.log.glob(f"{version:020}.checkpoint*.parquet")
        return found

    def make_old(self) -> None:
        """Everything in the log is beyond the time for which entries are kept."""
        for path in self.log.iterdir():
            os.utime(path, (time.time() - 7_200,) * 2)


@pytest.fixture
def table(tmp_path) -> Table:
    """With checkpoints at 5 and 10, three commits after them, and the entries before the first gone. All are so far
    apart that each checkpoint finds everything expired."""
    made = Table(tmp_path)
    made.append(5)
    made.table.checkpoint()
    made.append(5)
    made.make_old()
    made.table.checkpoint()
    made.append(3)
    assert not (made.log / f"{0:020}.json").exists()
    return made


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


@pytest.mark.parametrize("harm", [empty, cut])
@pytest.mark.parametrize("pointer", [None, empty, cut, Path.unlink])
def test_a_torn_checkpoint_gives_way_to_the_one_before(table, harm, pointer):
    harm(table.checkpoint(10))
    if pointer is not None:
        pointer(table.log / "_last_checkpoint")
    again = Table(table.folder)
    assert (again.numbers(), again.table.version) == ([*range(1, 14)], 13)
    again.append(2)
    again.table.checkpoint()
    assert (again.numbers(), last_checkpoint(again.folder / SPEC.name)) == ([*range(1, 16)], 15)


def test_what_a_killed_writer_left_of_a_newer_checkpoint_changes_nothing(table):
    cut(table.checkpoint(10))
    (table.log / f"{12:020}.checkpoint.parquet#1").write_bytes(b"PAR1")
    again = Table(table.folder)
    assert (again.numbers(), again.table.version) == ([*range(1, 14)], 13)


@pytest.mark.parametrize("pointer", [empty, cut, Path.unlink])
def test_a_torn_pointer_to_the_checkpoint_is_no_loss(table, pointer):
    pointer(table.log / "_last_checkpoint")
    again = Table(table.folder)
    again.append(1)
    assert again.numbers() == [*range(1, 15)]
    assert last_checkpoint(again.folder / SPEC.name) in (0, 10)


def test_the_only_checkpoint_that_has_the_rows_stays_and_is_named(table):
    cut(table.checkpoint(10))
    (table.log / f"{7:020}.json").unlink()
    before = table.checkpoint(10).read_bytes()
    with pytest.raises(DamagedFileError):
        Table(table.folder)
    assert table.checkpoint(10).read_bytes() == before


def test_what_another_writer_left_of_a_checkpoint_is_not_relied_on(table):
    """Of two parts the second is missing; delta-rs would drop all that is older than the first."""
    part = f"{13:020}.checkpoint.0000000001.0000000002.parquet"
    (table.log / part).write_bytes(table.checkpoint(10).read_bytes())
    table.append(2)
    table.make_old()
    table.table.checkpoint()
    cut(table.checkpoint(15))
    assert Table(table.folder).numbers() == [*range(1, 16)]


@pytest.mark.parametrize("harm", [empty, cut])
def test_a_torn_checkpoint_before_is_passed_over(table, harm):
    harm(table.checkpoint(10))
    table.append(2)
    table.make_old()
    table.table.checkpoint()
    cut(table.checkpoint(15))
    (table.log / "_last_checkpoint").unlink()
    assert Table(table.folder).numbers() == [*range(1, 16)]


def test_a_checkpoint_that_is_written_again_may_be_torn(table):
    table.table.checkpoint()
    table.make_old()
    table.table.checkpoint()
    cut(table.checkpoint(13))
    assert Table(table.folder).numbers() == [*range(1, 14)]


def test_entries_stay_as_long_as_the_property_says_that_was_changed_since_the_checkpoint_before(table):
    changed = {"delta.logRetentionDuration": "interval 30 days"}
    table_at(table.folder / SPEC.name).alter.set_table_properties(changed)
    table.make_old()
    table.table.checkpoint()
    assert (table.log / entry_name(5)).exists()


def test_without_one_before_no_entries_go(tmp_path):
    table = Table(tmp_path)
    table.append(5)
    table.make_old()
    table.table.checkpoint()
    cut(table.checkpoint(5))
    assert Table(tmp_path).numbers() == [*range(1, 6)]


def more_columns(table: AppendTable) -> None:
    table.evolve(table.folder.parent, replace(SPEC, schema=pl.Schema({**SPEC.schema, "more": pl.Int64()})))


def another_horizon(table: AppendTable) -> None:
    raise_horizon(table.folder, 7)


@pytest.mark.parametrize("change", [more_columns, another_horizon])
def test_a_change_of_a_table_neither_writes_a_checkpoint_nor_drops_entries(tmp_path, change):
    """delta-rs would do both at every hundredth version, and sync nothing."""
    table = Table(tmp_path)
    table.append(98)
    table.make_old()
    change(table.table)
    assert sorted(path.name for path in table.log.iterdir()) == [entry_name(version) for version in range(100)]


def test_a_checkpoint_is_on_disk_before_entries_go(tmp_path, monkeypatch):
    table, synced, cleanup = Table(tmp_path), list[str](), DeltaTable.cleanup_metadata
    table.append(5)
    table.table.checkpoint()
    table.append(5)

    def noted(descriptor, fsync=os.fsync):
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def cleaned(self):
        assert synced == [f"{10:020}.checkpoint.parquet", "_last_checkpoint", "_delta_log"]
        synced.append("entries cleaned")
        cleanup(self)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(DeltaTable, "cleanup_metadata", cleaned)
    table.table.checkpoint()
    assert "entries cleaned" in synced


def test_the_first_entry_of_a_table_is_on_disk(tmp_path, monkeypatch):
    synced = []

    def noted(descriptor, fsync=os.fsync):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append("entry" if path.parent.name == "_delta_log" else path.name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    Table(tmp_path)
    at = synced.index("entry")
    assert synced[at - 1] == "facts", "the folder of the log is named durably before"
    assert synced[at + 1] == "_delta_log", "and the entry is, in it"
