"""A damaged file in the warehouse stops a start with its name, and once it is put back the run goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event

import polars as pl
import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, expected, sales, totals
from weir.state.changelog.compaction import Compaction
from weir.state.commit.checkpoints import write_checkpoint
from weir.state.commit.tables import count_rows, read_table
from weir.state.errors import DamagedFileError, DeltaLogGoneError, TableAheadError


@pytest.fixture
def place(tmp_path) -> Place:
    """It has run, and there is more to read."""
    here = Place(
        application(), Topics({("sales", part): sales(200, part) for part in (0, 1)}), tmp_path, max_records=50
    )
    here.run()
    here.topics.rows = {
        part: [*rows, *((key, value, time_ms + 10_000) for key, value, time_ms in rows)]
        for part, rows in here.topics.rows.items()
    }
    return here


def entries(place: Place, table: str) -> list[Path]:
    return sorted((place.warehouse / "sales" / table / "_delta_log").glob("*.json"))


def row_file(place: Place) -> Path:
    return max((place.warehouse / "sales" / "_commits").glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def spoil(path: Path) -> None:
    """The footer stays."""
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 3] = bytes(255 - each for each in content[4 : len(content) // 3])
    path.write_bytes(content)


def spoil_record(path: Path) -> None:
    """A file that can be read, with a record that cannot."""
    rows = pl.read_parquet(path, hive_partitioning=False)
    rows.with_columns(pl.col("record").str.head(40)).write_parquet(path)


DAMAGE: dict[str, tuple[Callable[[Place], Path], Callable[[Path], None], str]] = {
    "the newest entry of the commit log cut": (lambda place: entries(place, "_commits")[-1], cut, "it is cut"),
    "an entry of the commit log cut": (lambda place: entries(place, "_commits")[2], cut, "it is cut"),
    "the newest entry of the commit log empty": (lambda place: entries(place, "_commits")[-1], empty, "it is empty"),
    "an entry of the commit log empty": (lambda place: entries(place, "_commits")[2], empty, "it is empty"),
    "an entry of the commit log gone": (lambda place: entries(place, "_commits")[2], Path.unlink, "it is gone"),
    "the newest row of the commit log cut": (row_file, cut, "it is cut"),
    "the newest row of the commit log empty": (row_file, empty, "it is empty"),
    "the newest row of the commit log spoilt": (row_file, spoil, "its rows cannot be read"),
    "the record in the newest row of the commit log spoilt": (row_file, spoil_record, r"its row of commit 1\.\d"),
    "the newest row of the commit log gone": (row_file, Path.unlink, "it is gone"),
    "an entry of an output empty": (lambda place: entries(place, "totals")[1], empty, "it is empty"),
    "an entry of a changelog empty": (lambda place: entries(place, "_changelog/sums")[2], empty, "it is empty"),
    "an entry of an output cut": (lambda place: entries(place, "totals")[1], cut, "it is cut"),
    "an entry of a changelog gone": (lambda place: entries(place, "_changelog/sums")[1], Path.unlink, "it is gone"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_file_is_named_and_put_back_the_run_goes_on(place, tmp_path, damage):
    chosen, harm, reason = DAMAGE[damage]
    file = chosen(place)
    shutil.copy2(file, tmp_path / "backup")
    harm(file)
    with pytest.raises(DamagedFileError, match=reason) as error:
        place.run()
    assert error.value.path == str(file)
    shutil.copy2(tmp_path / "backup", file)
    place.run()
    assert totals(place) == expected(place)


def test_a_commit_log_without_its_newest_entry_does_not_count_anything_twice(place):
    entries(place, "_commits")[-1].unlink()
    with pytest.raises(TableAheadError, match=r"has commit 1\.\d, but the newest one in the commit log is 1\.\d"):
        place.run()


@pytest.mark.parametrize(
    ("harm", "reason"),
    [(cut, "it is cut"), (empty, "it is empty"), (Path.unlink, "it is gone"), (spoil, "its rows cannot be read")],
)
def test_a_restore_names_the_file_of_the_changelog(place, tmp_path, harm, reason):
    shutil.rmtree(place.state_folder)
    file = sorted((place.warehouse / "sales" / "_changelog" / "sums").rglob("*.parquet"))[0]
    shutil.copy2(file, tmp_path / "backup")
    harm(file)
    with pytest.raises(DamagedFileError, match=f"{file} cannot be read: {reason}.*; put it back from a backup"):
        place.run()
    shutil.copy2(tmp_path / "backup", file)
    place.run()
    assert totals(place) == expected(place)


def test_an_empty_entry_that_a_checkpoint_covers_harms_nothing(place):
    write_checkpoint(place.warehouse / "sales" / "totals")
    empty(entries(place, "totals")[1])
    place.run()
    assert totals(place) == expected(place)


@pytest.mark.parametrize("table", ["totals", "_commits"])
def test_an_empty_entry_is_no_reason_to_delete_the_files_that_it_named(place, table):
    entry = entries(place, table)[2]
    empty(entry)
    with pytest.raises(DamagedFileError) as error:
        list(Compaction(place.warehouse, "sales", is_whole=True).run(["totals"]))
    assert error.value.path == str(entry)


@pytest.mark.parametrize("reading", [read_table, partial(count_rows, read_at_most=1_000)])
def test_a_reader_names_an_empty_entry_and_does_not_leave_its_rows_out(place, reading):
    entry = entries(place, "totals")[2]
    empty(entry)
    with pytest.raises(DamagedFileError, match=f"{entry} cannot be read: it is empty"):
        reading(place.warehouse / "sales" / "totals")


def take_away(place: Place, tmp_path: Path) -> None:
    shutil.move(place.warehouse / "sales" / "_commits", tmp_path / "taken")


def put_an_older_copy_there(place: Place, tmp_path: Path) -> None:
    take_away(place, tmp_path)
    shutil.copytree(tmp_path / "older", place.warehouse / "sales" / "_commits")


@pytest.mark.parametrize("harm", [take_away, put_an_older_copy_there])
@pytest.mark.parametrize("asked", ["run", "check_claim"])
def test_a_commit_log_that_is_gone_or_older_under_a_run_is_no_newer_driver(place, tmp_path, harm, asked):
    log = place.warehouse / "sales" / "_commits"
    shutil.copytree(log, tmp_path / "older")
    driver = place.driver()
    harm(place, tmp_path)
    with pytest.raises(
        DeltaLogGoneError,
        match=f"{log}/_delta_log .*put the application's whole warehouse folder back .* with `weir reset sales`",
    ):
        driver.run(Event(), until_caught_up=True) if asked == "run" else driver._coordinator.check_claim()
    shutil.rmtree(log, ignore_errors=True)
    shutil.move(tmp_path / "taken", log)
    place.run()
    assert totals(place) == expected(place)


def test_a_table_that_is_gone_under_a_run_is_named(place):
    driver = place.driver()
    shutil.rmtree(place.warehouse / "sales" / "totals")
    with pytest.raises(DeltaLogGoneError, match="sales/totals/_delta_log"):
        driver.run(Event(), until_caught_up=True)
