"""Logs are opened by our own code as delta-rs reads them, and left to it where a checkpoint or a gap is in the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from weir.state.commit import delta_log
from weir.state.commit.checkpoints import LOG, entry_name, write_checkpoint
from weir.state.commit.delta_log import DeltaLog
from weir.state.commit.evolution import delta_schema
from weir.state.commit.files import stored_schema, write_file
from weir.state.commit.layout import Layout
from weir.state.commit.tables import AppendTable, read_rows
from weir.state.errors import DamagedFileError
from weir.state.types import FileEntry, TableSpec

SPEC = TableSpec(
    name="t", schema=pl.Schema({"n": pl.Int64(), "_epoch": pl.Int64(), "task": pl.String()}), partition_by=("task",)
)
NESTED = replace(SPEC, schema=pl.Schema({**SPEC.schema, "x": pl.Struct({"at": pl.List(pl.Datetime("us"))})}))
WIDER = replace(SPEC, schema=pl.Schema({**SPEC.schema, "more": pl.String()}))


def entry(app: Path, n: int) -> FileEntry:
    return write_file(app, SPEC, pl.DataFrame({"n": [n], "_epoch": [n]}), {"task": "0_0"})


def created(app: Path) -> None:
    AppendTable.create(app, SPEC, "app", {"weir.x": "1"})


def appended(app: Path) -> None:
    table = AppendTable.create(app, SPEC, "app")
    for version in (3, 7):
        table.append(version, [entry(app, version)])
    AppendTable(app / "t", "t", "another").append(9, [entry(app, 9)])


def evolved(app: Path) -> None:
    appended(app)
    AppendTable.create(app, WIDER, "app").append(8, [])


def checkpointed(app: Path) -> None:
    evolved(app)
    write_checkpoint(app / "t")
    AppendTable(app / "t", "t", "app").append(10, [entry(app, 10)])


def changed_by_others(app: Path) -> None:
    appended(app)
    DeltaTable(app / "t").alter.set_table_properties({"delta.appendOnly": "true"}, raise_if_not_exists=False)


@pytest.mark.parametrize("make", [created, appended, evolved, checkpointed, changed_by_others])
def test_a_log_is_read_as_delta_rs_reads_it(tmp_path, make):
    make(tmp_path)
    log, table = DeltaLog(tmp_path / "t", "app"), DeltaTable(tmp_path / "t")
    assert (log.version, log.transaction) == (table.version(), table.transaction_version("app") or 0)
    assert log.layout == Layout.of(table)
    assert log.layout.columns == pl.scan_delta(table).collect_schema()


@pytest.mark.parametrize("make", [created, appended, evolved])
def test_a_log_without_checkpoints_is_opened_without_reading_the_files_it_names(tmp_path, make, monkeypatch):
    make(tmp_path)
    monkeypatch.setattr(delta_log, "opened", lambda place: pytest.fail("delta-rs reads every entry of every file"))
    DeltaLog(tmp_path / "t", "app")


def test_a_log_with_a_gap_is_not_one_that_ends_before_it(tmp_path):
    appended(tmp_path)
    (tmp_path / "t" / LOG / entry_name(2)).unlink()
    with pytest.raises(DamagedFileError, match="gap"):
        DeltaLog(tmp_path / "t", "app")


def test_an_entry_that_is_cut_is_named(tmp_path):
    appended(tmp_path)
    path = tmp_path / "t" / LOG / entry_name(2)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DamagedFileError, match=entry_name(2)):
        DeltaLog(tmp_path / "t", "app")


@pytest.mark.parametrize("spec", [SPEC, NESTED, TableSpec(name="t", schema=SPEC.schema, keys=("task",))])
def test_a_table_is_made_as_delta_rs_makes_it(tmp_path, spec):
    AppendTable.create(tmp_path, spec, "app")
    found = DeltaTable(tmp_path / "t")
    other = DeltaTable.create(
        tmp_path / "other", delta_schema(stored_schema(spec)), partition_by=list(spec.partition_by)
    )
    assert found.schema() == other.schema()
    for name in ("min_reader_version", "min_writer_version", "reader_features", "writer_features"):
        assert getattr(found.protocol(), name) == getattr(other.protocol(), name)
    assert found.metadata().partition_columns == other.metadata().partition_columns
    assert read_rows(tmp_path / "t").is_empty()
