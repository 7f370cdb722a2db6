"""Logs are opened by our own code as delta-rs reads them, and left to it where features are not known or damage is in
the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable, TableFeatures
from polars.testing import assert_frame_equal

from weir.state.commit import delta_log
from weir.state.commit import live_files as module
from weir.state.commit.checkpoints import LOG, entry_name, opened, write_checkpoint
from weir.state.commit.delta_log import DeltaLog, replace_files
from weir.state.commit.evolution import delta_schema
from weir.state.commit.files import stored_schema, write_file
from weir.state.commit.layout import Layout
from weir.state.commit.live_files import live_files
from weir.state.commit.tables import AppendTable, file_actions, read_rows
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


@pytest.mark.parametrize("make", [created, appended, evolved, checkpointed])
def test_a_log_is_opened_without_delta_rs(tmp_path, make, monkeypatch):
    make(tmp_path)
    monkeypatch.setattr(delta_log, "opened", lambda place: pytest.fail("delta-rs reads every entry of every file"))
    DeltaLog(tmp_path / "t", "app")


def test_a_log_with_a_gap_is_not_one_that_ends_before_it(tmp_path):
    appended(tmp_path)
    (tmp_path / "t" / LOG / entry_name(2)).unlink()
    with pytest.raises(DamagedFileError, match=f"{entry_name(2)} cannot be read: it is gone"):
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


def merged(app: Path) -> None:
    appended(app)
    old = file_actions(DeltaTable(app / "t"))
    assert replace_files(app / "t", old[:2], [entry(app, 12)], is_data_changed=False)


def without_statistics(app: Path) -> None:
    appended(app)
    AppendTable(app / "t", "t", "app").append(11, [replace(entry(app, 11), stats="")])


@pytest.mark.parametrize(
    "make", [created, appended, evolved, checkpointed, changed_by_others, merged, without_statistics]
)
def test_the_files_that_a_log_names_are_those_that_delta_rs_finds(tmp_path, make):
    make(tmp_path)
    table = DeltaTable(tmp_path / "t")
    found, properties = live_files(tmp_path / "t", ranges=["_epoch"], partitions=["task"])
    assert properties == table.metadata().configuration
    wanted = file_actions(table)
    assert found.height == wanted.height == len(table.file_uris())
    if found.height:
        columns = ["path", "size_bytes", "num_records", "min._epoch", "max._epoch", "partition.task"]
        assert_frame_equal(found.select(columns), wanted.select(columns), check_row_order=False)


@pytest.mark.parametrize("make", [merged, checkpointed])
def test_files_of_a_log_are_found_without_delta_rs(tmp_path, make, monkeypatch):
    make(tmp_path)
    monkeypatch.setattr(module, "opened", lambda place: pytest.fail("delta-rs reads more than is needed"))
    assert live_files(tmp_path / "t", ranges=["_epoch"])[0]["max._epoch"].to_list()


def test_a_table_with_features_that_are_not_known_is_left_to_delta_rs(tmp_path, monkeypatch):
    appended(tmp_path)
    feature = TableFeatures.DeletionVectors
    DeltaTable(tmp_path / "t").alter.add_feature(feature, allow_protocol_versions_increase=True)
    asked: list[Path] = []
    monkeypatch.setattr(module, "opened", lambda place: asked.append(place.path) or opened(place))
    assert live_files(tmp_path / "t", ranges=["_epoch"])[0].height
    assert asked == [tmp_path / "t"]
