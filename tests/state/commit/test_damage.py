"""A damaged file in the warehouse stops a start with its name, and once it is put back the run goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import application, expected, sales, totals
from weir.state.errors import DamagedFileError, TableAheadError


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


DAMAGE: dict[str, tuple[Callable[[Place], Path], Callable[[Path], None], str]] = {
    "the newest entry of the commit log cut": (lambda place: entries(place, "_commits")[-1], cut, "it is cut"),
    "an entry of the commit log cut": (lambda place: entries(place, "_commits")[2], cut, "it is cut"),
    "the newest entry of the commit log empty": (lambda place: entries(place, "_commits")[-1], empty, "it is empty"),
    "an entry of the commit log empty": (lambda place: entries(place, "_commits")[2], empty, "it is empty"),
    "an entry of the commit log gone": (lambda place: entries(place, "_commits")[2], Path.unlink, "it is gone"),
    "the newest row of the commit log cut": (row_file, cut, "it is cut"),
    "the newest row of the commit log empty": (row_file, empty, "it is empty"),
    "an entry of an output cut": (lambda place: entries(place, "totals")[1], cut, "it is cut"),
    "an entry of an output empty": (lambda place: entries(place, "totals")[1], empty, "it is empty"),
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


def test_a_restore_names_the_file_of_the_changelog(place, tmp_path):
    shutil.rmtree(place.state_folder)
    file = sorted((place.warehouse / "sales" / "_changelog" / "sums").rglob("*.parquet"))[0]
    shutil.copy2(file, tmp_path / "backup")
    cut(file)
    with pytest.raises(DamagedFileError, match=f"{file} cannot be read: it is cut; put it back from a backup"):
        place.run()
    shutil.copy2(tmp_path / "backup", file)
    place.run()
    assert totals(place) == expected(place)
