"""A changelog takes on the state of another application folder's changelog, and keeps its history."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from weir.state.changelog.as_of import state_as_of
from weir.state.changelog.replacing import replaced_rows
from weir.state.changelog.rows import changelog_spec
from weir.state.commit.files import write_file
from weir.state.commit.tables import AppendTable, read_rows, read_table
from weir.state.stores.specs import key_value_spec

SPEC = key_value_spec("sums", pl.Schema({"user": pl.String(), "day": pl.Int64()}), pl.Schema({"total": pl.Int64()}))
TASK = "sums-1_0"


@pytest.fixture
def folders(tmp_path) -> tuple[Path, Path]:
    """The application's folder and the other one."""
    return tmp_path / "app", tmp_path / "other"


def put(folder: Path, epoch: int, rows: dict[tuple[str | None, int], int | None], task: str = TASK) -> None:
    """Append an epoch's changes, None for a deletion."""
    frame = pl.DataFrame(
        {
            "user": [user for user, _ in rows],
            "day": [day for _, day in rows],
            "total": list(rows.values()),
            "_ts": [None if total is None else 7 * epoch for total in rows.values()],
            "_deleted": [total is None for total in rows.values()],
            "_epoch": epoch,
        },
        schema_overrides={"user": pl.String(), "total": pl.Int64(), "_ts": pl.Int64()},
    )
    append(folder, epoch, write_file(folder, changelog_spec(SPEC), frame, {"task": task, "segment": "0"}))


def append(folder: Path, epoch: int, *files) -> None:
    AppendTable.create(folder, changelog_spec(SPEC), "app").append(epoch, files)


def standing(folder: Path, epoch: int, task: str = TASK) -> dict:
    rows = state_as_of(folder, SPEC, epoch).filter(task=task)
    return {(user, day): total for user, day, total in rows.select("user", "day", "total").iter_rows()}


def test_the_rows_of_the_other_folder_become_current_and_keys_found_only_here_are_deleted(folders):
    here, there = folders
    put(here, 1, {("ann", 1): 1, ("bob", 1): 2, (None, 1): 3, ("gone", 1): 4})
    put(here, 2, {("bob", 1): 5, ("gone", 1): None})
    put(here, 2 + 1, {("cid", 1): 6}, task="sums-1_1")
    put(there, 1, {("ann", 1): 10, ("dan", 2): 11})
    put(there, 2, {("dan", 2): None, (None, 2): 12})
    put(there, 3, {("late", 1): 13})
    gone, rows = replaced_rows(here, there, SPEC, TASK, through=3, source_through=2, epoch=1000)
    append(here, 1000, gone, rows)
    assert (gone.rows, gone.partition_values) == (2, {"task": TASK, "segment": "0"})
    assert (rows.rows, rows.partition_values) == (2, {"task": TASK, "segment": "1"})
    assert standing(here, 1000) == {("ann", 1): 10, (None, 2): 12}
    assert standing(here, 3) == {("ann", 1): 1, ("bob", 1): 5, (None, 1): 3}, "history stays"
    assert standing(here, 1000, "sums-1_1") == {("cid", 1): 6}, "rows of other tasks are left alone"
    assert read_table(here / changelog_spec(SPEC).name).filter(user="ann")["_ts"].dt.timestamp("ms").to_list() == [7]


def test_nothing_is_written_if_neither_folder_has_rows(folders):
    for folder in folders:
        put(folder, 1, {("ann", 1): 1})
        put(folder, 2, {("ann", 1): None})
    assert list(replaced_rows(*folders, SPEC, TASK, through=2, source_through=2, epoch=4)) == []


def test_a_key_that_moves_to_another_task_has_its_newest_row_there(folders):
    here, there = folders
    for folder, task in ((here, "old_1"), (there, TASK)):
        put(folder, 1, {("ann", 1): 1}, task)
    files = [
        file
        for task in (TASK, "old_1")
        for file in replaced_rows(here, there, SPEC, task, through=1, source_through=1, epoch=4)
    ]
    append(here, 4, *files)
    assert read_table(here / changelog_spec(SPEC).name)["task"].to_list() == [TASK]
    written = read_rows(here / changelog_spec(SPEC).name).filter(pl.col("_epoch") > 1)
    assert sorted(written.select("_epoch", "_deleted").rows()) == [(3, True), (4, False)], (
        "the deletion is the older row"
    )


def test_a_key_that_stays_in_its_partition_under_another_name_of_the_task_is_one_row(folders):
    here, there = folders
    for folder, task in ((here, "old_0"), (there, TASK)):
        put(folder, 1, {("ann", 1): 1}, task)
    append(here, 4, *replaced_rows(here, there, SPEC, TASK, through=1, source_through=1, epoch=4))
    written = read_rows(here / changelog_spec(SPEC).name).filter(pl.col("_epoch") > 1)
    assert written.select("_epoch", "_deleted").rows() == [(4, False)]
    assert standing(here, 4) == {("ann", 1): 1}
