"""What a loss of power may leave of a table's checkpoints: all rows are still there, and appends go on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from weir.state.commit.checkpoints import last_checkpoint
from weir.state.commit.files import write_file
from weir.state.commit.tables import AppendTable, read_rows
from weir.state.errors import DamagedFileError
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
    """With checkpoints at 5 and 10, three commits after them, and the entries before the first gone."""
    made = Table(tmp_path)
    made.append(5)
    made.table.checkpoint()
    made.make_old()
    made.append(5)
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


def test_a_checkpoint_is_on_disk_before_entries_go(tmp_path, monkeypatch):
    table, synced, cleanup = Table(tmp_path), list[str](), DeltaTable.cleanup_metadata
    table.append(5)

    def noted(descriptor, fsync=os.fsync):
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def cleaned(self):
        assert synced == [f"{5:020}.checkpoint.parquet", "_last_checkpoint", "_delta_log"]
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
