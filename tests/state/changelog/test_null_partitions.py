"""Files of a changelog whose partition has no value, as another writer may leave them: null for every reader, and never
a text that says so."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace

import polars as pl
import pytest
from deltalake import DeltaTable

from tests.state.changelog.twins import CHANGES
from weir.state.changelog.compaction import Compaction
from weir.state.commit.evolution import evolve
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import file_actions

PLACES = [("0_0", "0"), ("0_0", None), (None, "0"), (None, None), ("None", "0")]
"""Tasks and segments; the last task has a name like that of a value of Python."""
KEYS = ("a", "b")


@pytest.fixture
def folder(tmp_path):
    """A changelog with three commits of rows of all the places, and the facts of a plain list."""
    with closing(Committer(tmp_path, "app", [CHANGES], fingerprint="f")) as driver:
        driver.claim()
        for epoch in range(1, 4):
            files = [
                write_file(
                    tmp_path / "app",
                    CHANGES,
                    pl.DataFrame({"k": KEYS, "n": epoch, "_ts": epoch, "_epoch": epoch, "_deleted": False}),
                    {"task": task, "segment": segment},
                )
                for task, segment in PLACES
            ]
            driver.commit(
                CommitRecord(kind="commit", generation=1, epoch=epoch, at_ms=0, fingerprint="f", files=tuple(files))
            )
    return tmp_path / "app" / CHANGES.name


def check(folder, rows: list[tuple]) -> None:
    """Check by polars, by delta-rs, and in the log itself, whose values readers take."""
    columns = ("task", "segment", "k", "n")
    wanted = sorted(rows, key=str)
    assert sorted(pl.read_delta(str(folder)).select(columns).rows(), key=str) == wanted
    by_delta = DeltaTable(folder).to_pyarrow_table(columns=list(columns)).to_pylist()
    assert sorted((tuple(row[name] for name in columns) for row in by_delta), key=str) == wanted
    values = {task for task, _ in PLACES} | {segment for _, segment in PLACES}
    for entry in (folder / "_delta_log").glob("*.json"):
        for action in map(json.loads, entry.read_text().splitlines()):
            for kind in action.keys() & {"add", "remove"}:
                assert set(action[kind]["partitionValues"].values()) <= values
                assert action[kind]["partitionValues"]["segment"] != "None"
    folders = {path.name for path in folder.glob("task=*/segment=*")} | {path.name for path in folder.glob("task=*")}
    assert "task=__HIVE_DEFAULT_PARTITION__" in folders
    assert "segment=None" not in folders


def rows_of(places, epochs) -> list[tuple]:
    return [
        (task, None if segment is None else int(segment), key, epoch)
        for task, segment in places
        for key in KEYS
        for epoch in epochs
    ]


def test_the_rows_are_read_with_null(folder):
    check(folder, rows_of(PLACES, (1, 2, 3)))


def test_a_compaction_merges_the_rows_of_no_task_and_they_stay_null(folder):
    """One that runs beside a driver leaves those of no segment alone: nothing says that it is closed."""
    beside = Compaction(folder.parents[2], "app", is_whole=False)
    list(beside.run([CHANGES.name]))
    check(folder, rows_of(PLACES, (1, 2, 3)))
    whole = Compaction(folder.parents[2], "app", is_whole=True)
    (report, _) = whole.run([CHANGES.name])
    assert (report.files_before, report.files_after) == (15, 3)
    check(folder, rows_of([("0_0", "0"), (None, "0"), ("None", "0")], (3,)))
    assert set(file_actions(DeltaTable(folder))["partition.task"]) == {"0_0", None, "None"}


def test_rows_of_no_segment_alone_stay_null_when_merged(folder):
    """The task has no other files, so no segment is the newest."""
    table = DeltaTable(folder)
    table.delete("segment = 0")
    (report, _) = Compaction(folder.parents[2], "app", is_whole=True).run([CHANGES.name])
    assert (report.files_before, report.files_after) == (6, 2)
    check(folder, rows_of([("0_0", None), (None, None)], (3,)))


def test_rows_written_anew_with_a_wider_type_stay_null(folder):
    narrow = replace(CHANGES, schema=pl.Schema({**CHANGES.schema, "more": pl.Int32()}))
    for spec in (narrow, replace(narrow, schema=pl.Schema({**narrow.schema, "more": pl.Int64()}))):
        evolve(folder.parents[1], spec)
    assert pl.read_delta(str(folder)).schema["more"] == pl.Int64
    check(folder, rows_of(PLACES, (1, 2, 3)))


@pytest.mark.spark
def test_spark_reads_null_before_and_after_its_job_has_merged_the_rows(folder, session):
    from weir.pipelines.spark.merging import merged_by_spark

    def read() -> list[tuple]:
        table = session.read.format("delta").load(str(folder))
        return sorted(map(tuple, table.select("task", "segment", "k", "n").collect()), key=str)

    assert read() == sorted(rows_of(PLACES, (1, 2, 3)), key=str)
    compaction = Compaction(
        folder.parents[2], "app", is_whole=True, merge=lambda merge: merged_by_spark(session, merge, 2)
    )
    list(compaction.run([CHANGES.name]))
    left = rows_of([("0_0", "0"), (None, "0"), ("None", "0")], (3,))
    assert read() == sorted(left, key=str)
    check(folder, left)
