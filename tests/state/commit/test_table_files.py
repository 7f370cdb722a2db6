"""Files that a table names and that are gone, cut, spoilt or of others: found by their sizes, or by reading them."""

from __future__ import annotations

import pickle
from dataclasses import replace

import polars as pl
import pytest
from deltalake import DeltaTable

from weir.state.commit import table_files
from weir.state.commit.files import write_file
from weir.state.commit.table_files import TableFiles, check_table
from weir.state.commit.tables import AppendTable, read_rows
from weir.state.errors import TableFileError
from weir.state.types import TableSpec

SPEC = TableSpec(
    name="t", schema=pl.Schema({"n": pl.Int64(), "_epoch": pl.Int64(), "task": pl.String()}), partition_by=("task",)
)


@pytest.fixture
def files(tmp_path):
    """The three files of a table of 3,000 rows."""
    table = AppendTable.create(tmp_path, SPEC, "app")
    entries = [
        write_file(tmp_path, SPEC, pl.DataFrame({"n": range(1_000), "_epoch": [epoch] * 1_000}), {"task": "0_0 100%/ü"})
        for epoch in (1, 2, 3)
    ]
    table.append(7, entries)
    return [tmp_path / "t" / entry.path for entry in entries]


def spoil(path):
    """The size and the footer stay."""
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 3] = bytes(255 - each for each in content[4 : len(content) // 3])
    path.write_bytes(content)


def put_others_rows_there(path):
    """A file of the same size whose rows can be read, too."""
    size = path.stat().st_size
    pl.DataFrame({"n": [1], "_epoch": [1]}).write_parquet(path)
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes(size - len(content)) + content[4:])


@pytest.mark.parametrize("reads", [False, True])
def test_a_table_whose_files_are_there_is_counted(tmp_path, files, reads):
    assert check_table(tmp_path, "app", "t", reads=reads) == TableFiles(
        table="t", files=3, size_bytes=sum(path.stat().st_size for path in files)
    )


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda path: path.unlink(), "it is gone"),
        (lambda path: path.write_bytes(path.read_bytes()[:-40]), r"it has \d+ bytes, and had \d+"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), r"it has \d+ bytes, and had \d+"),
    ],
)
def test_a_file_that_is_gone_or_of_another_size_is_named(tmp_path, files, harm, reason, reads):
    harm(files[1])
    with pytest.raises(
        TableFileError, match=f"table 't' of application 'app' names the file .*: {reason}; put it back"
    ) as found:
        check_table(tmp_path, "app", "t", reads=reads)
    assert found.value.path == str(files[1])


def test_rows_that_cannot_be_read_are_found_by_reading_them(tmp_path, files):
    spoil(files[2])
    assert check_table(tmp_path, "app", "t", reads=False).files == 3
    with pytest.raises(TableFileError, match="its rows cannot be read") as found:
        check_table(tmp_path, "app", "t", reads=True)
    assert found.value.path == str(files[2])


def test_a_file_with_another_number_of_rows_is_found_by_reading_it(tmp_path, files):
    put_others_rows_there(files[0])
    assert check_table(tmp_path, "app", "t", reads=False).files == 3
    with pytest.raises(TableFileError, match=r"it has 1 rows, and had 1000|its rows cannot be read"):
        check_table(tmp_path, "app", "t", reads=True)


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (
            [{"id": 1, "cents": 2}],
            r"the column 'n' as Struct\({'id': Int64, 'cents': Int64}\), and the table has .* Int64",
        ),
        ([[1]], r"the column 'n' as List\(Int64\), and the table has it as Int64"),
        (["1"], r"the column 'n' as String, and the table has it as Int64"),
        ([1.5], r"the column 'n' as Float64, and the table has it as Int64"),
    ],
)
def test_a_file_with_other_types_than_the_table_is_found_by_reading_it(tmp_path, column, reason):
    table = AppendTable.create(tmp_path, SPEC, "app")
    entry = write_file(tmp_path, SPEC, pl.DataFrame({"n": [1], "_epoch": [1]}), {"task": "0_0"})
    path = tmp_path / "t" / entry.path
    pl.DataFrame({"n": column, "_epoch": [1]}).write_parquet(path)
    table.append(7, [replace(entry, size_bytes=path.stat().st_size)])
    with pytest.raises(TableFileError, match=reason):
        check_table(tmp_path, "app", "t", reads=True)


@pytest.mark.parametrize(
    ("written", "now"),
    [
        (pl.Int32(), pl.Int64()),
        (pl.Float32(), pl.Float64()),
        (pl.UInt32(), pl.Int64()),
        (pl.Datetime("ms", "UTC"), pl.Datetime("us", "UTC")),
        (pl.Enum(["a"]), pl.String()),
        (pl.List(pl.Int32()), pl.List(pl.Int64())),
        (pl.Struct({"a": pl.Int32(), "gone": pl.String()}), pl.Struct({"a": pl.Int64(), "new": pl.String()})),
    ],
)
def test_types_that_a_table_has_come_by_are_no_fault_of_its_older_files(tmp_path, written, now):
    spec = TableSpec(name="t", schema=pl.Schema({"n": now}), partition_by=())
    table = AppendTable.create(tmp_path, spec, "app")
    entry = write_file(tmp_path, spec, pl.DataFrame(schema={"n": now}).clear(1))
    path = tmp_path / "t" / entry.path
    pl.DataFrame(schema={"n": written}).clear(1).write_parquet(path)
    table.append(7, [replace(entry, size_bytes=path.stat().st_size)])
    assert check_table(tmp_path, "app", "t", reads=True).files == 1


def test_a_file_that_leaves_the_table_meanwhile_is_not_missed(tmp_path, files, monkeypatch):
    """As when a compaction replaces it, and it is deleted before it is looked at."""
    look, looked = table_files._fault, []

    def slow(path, *others, **options):
        if not looked:
            looked.append(path)
            DeltaTable(tmp_path / "t").delete()
            for each in files:
                each.unlink()
        return look(path, *others, **options)

    monkeypatch.setattr(table_files, "_fault", slow)
    check_table(tmp_path, "app", "t", reads=True)
    assert read_rows(tmp_path / "t").is_empty()


def test_the_error_is_the_same_in_another_process():
    error = TableFileError("app", "t", "/w/app/t/a.parquet", "it is gone")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
