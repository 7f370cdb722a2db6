"""Files in the form that Delta and its readers expect."""

from __future__ import annotations

import errno
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier

import polars as pl
import pytest

from weir.state.commit.files import write_file
from weir.state.commit.tables import AppendTable, read_rows
from weir.state.storage.syncs import Syncs
from weir.state.types import TableSpec

SPEC = TableSpec(
    name="out/windows",
    partition_by=("task", "segment"),
    schema=pl.Schema(
        {
            "k": pl.String(),
            "window_start": pl.Datetime("ms", "UTC"),
            "n": pl.UInt32(),
            "task": pl.String(),
            "segment": pl.Int64(),
        }
    ),
)
VALUES = {"task": "0_0", "segment": "3"}
HOUR = datetime(2013, 1, 1, 10, tzinfo=UTC)
ROWS = pl.DataFrame(
    {"n": [1, None], "k": ["a", "b"], "window_start": [HOUR, None], "ignored": [0, 0]},
    schema_overrides={"n": pl.UInt32, "window_start": pl.Datetime("ms", "UTC")},
)


def test_rows_come_back_through_delta_with_times_and_partition_values(tmp_path):
    table = AppendTable.create(tmp_path, SPEC, "app")
    entry = write_file(tmp_path, SPEC, ROWS, {"task": "0_0", "segment": "3"})
    assert (entry.table, entry.rows) == ("out/windows", 2)
    assert (tmp_path / "out/windows" / entry.path).stat().st_size == entry.size_bytes
    assert "n" in pl.read_parquet_schema(tmp_path / "out/windows" / entry.path)
    assert "task" not in pl.read_parquet_schema(tmp_path / "out/windows" / entry.path)
    table.append(1, [entry])
    table.append(1, [entry])
    assert read_rows(tmp_path / "out/windows").sort("k").rows() == [
        ("a", HOUR, 1, "0_0", 3),
        ("b", None, None, "0_0", 3),
    ]


def test_statistics_let_readers_skip_files(tmp_path):
    table = AppendTable.create(tmp_path, SPEC, "app")
    entry = write_file(tmp_path, SPEC, ROWS, {"task": "0_0", "segment": "3"})
    assert json.loads(entry.stats) == {
        "numRecords": 2,
        "minValues": {"k": "a", "window_start": "2013-01-01T10:00:00.000000Z", "n": 1},
        "maxValues": {"k": "b", "window_start": "2013-01-01T10:00:00.000000Z", "n": 1},
        "nullCount": {"k": 0, "window_start": 1, "n": 1},
    }
    table.append(1, [entry])
    listed = table.files().row(0, named=True)
    assert (listed["path"], listed["max.n"], listed["min.window_start"]) == (entry.path, 1, HOUR)


def test_a_column_with_a_time_after_the_year_9999_has_no_statistics(tmp_path):
    far = ROWS.with_columns(pl.lit(1 << 48).cast(pl.Datetime("ms", "UTC")).alias("window_start"))
    stats = json.loads(write_file(tmp_path, SPEC, far, {"task": "0_0", "segment": "3"}).stats)
    assert stats["minValues"].keys() == stats["maxValues"].keys() == {"k", "n"}


def test_each_attempt_writes_a_file_with_a_unique_name(tmp_path):
    values = {"task": "0_0", "segment": "3"}
    assert write_file(tmp_path, SPEC, ROWS, values).path != write_file(tmp_path, SPEC, ROWS, values).path


@pytest.mark.parametrize(
    ("name", "values", "found"),
    [
        ("n", [{"id": 1}, {"id": 2}], r"Struct\({'id': Int64}\), and the table has it as UInt32"),
        ("k", [{"id": 1}, {"id": 2}], r"Struct\({'id': Int64}\), and the table has it as String"),
        ("k", [[1], [2]], r"List\(Int64\), and the table has it as String"),
        ("n", [[1], [2]], r"List\(Int64\), and the table has it as UInt32"),
    ],
)
def test_rows_of_other_types_than_the_table_has_are_not_written(tmp_path, name, values, found):
    rows = ROWS.with_columns(pl.Series(name, values))
    with pytest.raises(ValueError, match=f"table 'out/windows': the rows .* have the column '{name}' as {found}"):
        write_file(tmp_path, SPEC, rows, VALUES)
    assert not list(tmp_path.rglob("*.parquet"))


def noting_syncs(monkeypatch, fails: str = "") -> list[Path]:
    """What was synced, in this order; a path that contains ``fails`` cannot be."""
    synced = list[Path]()

    def noted(descriptor, fsync=os.fsync):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if fails and fails in path.name:
            raise OSError(errno.EIO, "no such luck")
        fsync(descriptor)
        synced.append(path)

    monkeypatch.setattr(os, "fsync", noted)
    return synced


def test_files_that_are_synced_together_are_on_disk_with_their_folder_once_waited_for(tmp_path, monkeypatch):
    paths = [tmp_path / SPEC.name / write_file(tmp_path, SPEC, ROWS, VALUES).path]
    synced, syncs = noting_syncs(monkeypatch), Syncs()
    paths += [tmp_path / SPEC.name / write_file(tmp_path, SPEC, ROWS, VALUES, syncs=syncs).path for _ in range(5)]
    (folder,) = {path.parent for path in paths}
    assert folder not in synced
    syncs.wait()
    assert sorted(synced) == sorted([*paths[1:], folder])
    syncs.wait()
    assert len(synced) == 6, "there is nothing left to sync"


def test_files_and_their_folders_are_synced_at_the_same_time(tmp_path, monkeypatch):
    """What an epoch waits for is one round of the disk, not two."""
    write_file(tmp_path, SPEC, ROWS, VALUES)  # makes the folder
    all_at_once, sync, syncs = Barrier(3), os.fsync, Syncs()

    def waiting(descriptor):
        all_at_once.wait(timeout=10)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", waiting)
    for _ in range(2):
        write_file(tmp_path, SPEC, ROWS, VALUES, syncs=syncs)
    syncs.wait()


@pytest.mark.parametrize("fails", [".parquet", "segment"])
def test_a_file_or_a_folder_that_cannot_be_synced_is_an_error_once_waited_for(tmp_path, monkeypatch, fails):
    write_file(tmp_path, SPEC, ROWS, VALUES)  # makes the folder
    noting_syncs(monkeypatch, fails)
    syncs = Syncs()
    write_file(tmp_path, SPEC, ROWS, VALUES, syncs=syncs)
    with pytest.raises(OSError, match="no such luck"):
        syncs.wait()


@pytest.mark.parametrize(
    ("rows", "values", "reason"),
    [
        (ROWS, {"task": "0_0"}, "partitioned"),
        (ROWS.drop("k"), {"task": "0_0", "segment": "0"}, r"lack the columns \['k'\]"),
    ],
)
def test_missing_columns_and_values_are_named(tmp_path, rows, values, reason):
    with pytest.raises(ValueError, match=reason):
        write_file(tmp_path, SPEC, rows, values)
