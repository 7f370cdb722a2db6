"""Changelogs by column: the order of rows is that of their key bytes, and the newest row of a key wins."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from weir.state.changelog.as_of import state_as_of
from weir.state.changelog.reading import TaskChangelog, encoded
from weir.state.changelog.rows import changelog_spec
from weir.state.commit.files import write_file
from weir.state.commit.live_files import live_files
from weir.state.commit.tables import AppendTable
from weir.state.errors import HistoryGoneError
from weir.state.types import StoreKind, StoreSpec

TIME = pl.Datetime("ms", "UTC")
VALUE = pl.Schema({"value": pl.Int64()})
TEXTS = ["", "a", "a\x00", "a\x00b", "a\x01", "ab", "é", "ﬀ", "𐀀", "x" * 700, "x" * 700 + "y", None]
NUMBERS = [0, 1, -1, 1 << 40, -(1 << 40), None]
FLOATS = [0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf"), float("nan"), None]
SPECS = [
    StoreSpec(name="text", key=pl.Schema({"k": pl.String()}), value=VALUE),
    StoreSpec(
        name="mixed",
        key=pl.Schema({"k": pl.String(), "n": pl.Int64(), "f": pl.Float64(), "b": pl.Boolean()}),
        value=VALUE,
    ),
    StoreSpec(name="bytes", key=pl.Schema({"n": pl.Int32(), "raw": pl.Binary()}), value=VALUE),
    StoreSpec(
        name="windows",
        key=pl.Schema({"k": pl.String(), "window_start": TIME, "window_end": TIME}),
        value=VALUE,
        kind=StoreKind.WINDOW,
    ),
    StoreSpec(
        name="sessions",
        key=pl.Schema({"k": pl.String(), "window_start": TIME, "window_end": TIME}),
        value=VALUE,
        kind=StoreKind.SESSION,
    ),
    StoreSpec(
        name="versions", key=pl.Schema({"k": pl.String(), "valid_from": TIME}), value=VALUE, kind=StoreKind.VERSIONED
    ),
]


def some(rng: random.Random, dtype: pl.DataType):
    if dtype == pl.String:
        return rng.choice(TEXTS)
    if dtype == pl.Binary:
        return rng.choice([None, b"", b"\x00", b"\x00\xff", b"\xff", b"\x00\x00"])
    if dtype == pl.Boolean:
        return rng.choice([True, False, None])
    if dtype.is_float():
        return rng.choice(FLOATS)
    if dtype == TIME:
        return datetime.fromtimestamp(rng.randrange(-5, 5), UTC)
    return rng.choice([0, 1, -1, None] if dtype == pl.Int32 else NUMBERS)


def written(app: Path, spec: StoreSpec, rng: random.Random) -> None:
    """Forty epochs of the task's changes, one file per epoch, some of them deletions; and a file of another task."""
    table = AppendTable.create(app, changelog_spec(spec), "app")
    for epoch in range(1, 41):
        rows = pl.DataFrame(
            [{name: some(rng, dtype) for name, dtype in spec.key.items()} for _ in range(12)], schema=spec.key
        ).unique(maintain_order=True)
        rows = rows.with_columns(
            value=pl.lit(epoch),
            _ts=pl.lit(epoch).cast(TIME),
            _epoch=pl.lit(epoch),
            _deleted=pl.Series([rng.random() < 0.2 for _ in range(rows.height)]),
        )
        task = "t_9" if epoch == 20 else "t_0"
        table.append(epoch, [write_file(app, changelog_spec(spec), rows, {"task": task, "segment": "0"})])


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_rows_come_in_the_order_of_their_key_bytes_and_each_key_once(tmp_path, spec):
    written(tmp_path, spec, random.Random(spec.name))
    rows = TaskChangelog.of(tmp_path, spec, "t_0", through=35).newest_rows()
    keys = [key for part in encoded(spec, rows) for key in part.keys]
    assert keys == sorted(set(keys))
    assert len(keys) == rows.height > 10
    assert set(rows["_epoch"]) <= {*range(1, 36)} - {20}


def test_the_newest_row_of_each_key_within_the_epochs_wins(tmp_path):
    spec = SPECS[0]
    written(tmp_path, spec, random.Random(4))
    stored = pl.read_parquet(tmp_path / changelog_spec(spec).name / "task=t_0/**/*.parquet", hive_partitioning=False)
    within = stored.filter(pl.col("_epoch").is_between(11, 30)).sort("_epoch")
    wanted = {key: (epoch, deleted) for key, epoch, deleted in within.select("k", "_epoch", "_deleted").rows()}
    changelog = TaskChangelog.of(tmp_path, spec, "t_0", above=10, through=30)
    rows = changelog.newest_rows()
    assert {key: (epoch, deleted) for key, epoch, deleted in rows.select("k", "_epoch", "_deleted").rows()} == wanted
    assert len(changelog.paths) == 19, "files of other epochs and of other tasks are not read"
    values = [value for part in encoded(spec, rows) for value in part.values]
    assert sorted(value is None for value in values) == sorted(deleted for _, deleted in wanted.values())


def test_rows_of_several_epochs_in_one_file_are_told_apart(tmp_path):
    """A compacted file holds rows of many epochs in the order of keys."""
    spec = SPECS[0]
    table = AppendTable.create(tmp_path, changelog_spec(spec), "app")
    rows = pl.DataFrame(
        {"k": ["b", "a", "a", "b"], "value": [4, 9, 1, 3], "_epoch": [4, 9, 1, 3], "_deleted": [False] * 4}
    ).with_columns(_ts=pl.lit(0).cast(TIME))
    table.append(1, [write_file(tmp_path, changelog_spec(spec), rows, {"task": "t_0", "segment": "0"})])
    found = TaskChangelog.of(tmp_path, spec, "t_0", through=8).newest_rows()
    assert found.select("k", "value").rows() == [("a", 1), ("b", 4)]


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_files_of_a_writer_who_has_left_out_their_epochs_are_read(tmp_path, has_checkpoint):
    """Spark tells least and greatest values of the first 32 columns, so an OPTIMIZE of a wide store's changelog tells
    no epochs."""
    spec = SPECS[0]
    written(tmp_path, spec, random.Random(4))
    wanted = TaskChangelog.of(tmp_path, spec, "t_0", above=10, through=30).newest_rows()
    as_of = state_as_of(tmp_path, spec, 40)
    table = DeltaTable(tmp_path / changelog_spec(spec).name)
    table.alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "0"})
    table.optimize.compact()
    if has_checkpoint:
        table.create_checkpoint()
    files, _ = live_files(tmp_path / changelog_spec(spec).name, ranges=["_epoch"])
    assert None in set(files["max._epoch"])
    assert TaskChangelog.of(tmp_path, spec, "t_0", above=10, through=30).newest_rows().equals(wanted)
    assert state_as_of(tmp_path, spec, 40).equals(as_of)
    with pytest.raises(HistoryGoneError, match="ask for epoch 40"):
        state_as_of(tmp_path, spec, 30)
