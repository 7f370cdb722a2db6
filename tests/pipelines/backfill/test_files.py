"""Backfills over Delta tables and Parquet files: every window closes at the end, and no record is late."""

from __future__ import annotations

from datetime import date

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tests.pipelines.backfill.inline import made_from_files, output
from tests.pipelines.backfill.program import DAYS, OUTPUTS, app, archive, readings, sensors
from weir.pipelines.backfill.begin import begin_from_files
from weir.pipelines.backfill.errors import OpenWindowsError, SourceFilesError
from weir.pipelines.backfill.files import SliceReader
from weir.pipelines.backfill.shadow import Days
from weir.pipelines.backfill.swap import prepare, swap_at_rest
from weir.pipelines.serdes.source import RAW_SCHEMA
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_rows

pytestmark = pytest.mark.slow
HALF_HOUR_MS = 1_800_000


@pytest.fixture
def in_order():
    return sorted(readings(), key=lambda row: row[2])


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_files_that_end_with_the_last_window_of_the_days_give_what_the_live_run_gave(tmp_path, in_order, form):
    place, path = sensors(tmp_path, rows=in_order), tmp_path / "archive"
    place.run()
    before = {table: output(place, table) for table in OUTPUTS}
    rows = archive([row for row in in_order if row[2] < DAYS.end_ms + HALF_HOUR_MS])
    if form == "delta":
        rows.write_delta(path)
    else:
        path.mkdir()
        numbers = rows.with_columns(seen_at=pl.col("_ts").dt.timestamp("ms")).drop("_ts")
        numbers.write_parquet(path / "1.parquet")
    options = {} if form == "delta" else {"time_column": "seen_at"}
    shadow = made_from_files(place, DAYS, path, **options)
    assert not shadow.slices.exists()
    prepare(shadow)
    swap_at_rest(place.warehouse, place.application, shadow.id)
    for table, wanted in before.items():
        assert_frame_equal(output(place, table), wanted)
        assert (read_rows(place.warehouse / "sensors" / table)["_epoch"] == shadow_cut(place)).any()


def shadow_cut(place) -> int:
    return newest_commit(place.warehouse, "sensors").swapped[-1].cut_epoch


def test_no_record_from_files_is_late(tmp_path):
    """The live run dropped some; sorted by time, all records of the days count."""
    place = sensors(tmp_path)
    assert place.run().totals["late_records"] > 0
    archive(readings()).write_parquet(tmp_path / "all.parquet")
    shadow = made_from_files(place, DAYS, tmp_path / "all.parquet")
    prepare(shadow)
    swap_at_rest(place.warehouse, place.application, shadow.id)
    hours = output(place, "hours").filter(
        pl.col("window_start").dt.timestamp("ms").is_between(DAYS.start_ms, DAYS.end_ms, closed="left")
    )
    assert hours["readings"].sum() == sum(DAYS.start_ms <= row[2] < DAYS.end_ms for row in readings())


def test_days_that_the_live_run_has_not_finished_are_refused(tmp_path, in_order):
    place = sensors(tmp_path, rows=in_order)
    place.run()
    archive(in_order).write_parquet(tmp_path / "all.parquet")
    with pytest.raises(OpenWindowsError, match=r"may have windows of 2024-05-06 open .* or backfill from Kafka"):
        made_from_files(place, Days(first=date(2024, 5, 6), end=date(2024, 5, 7)), tmp_path / "all.parquet")


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (["sensor", "value", "_ts"], "has no column 'kind'; it has sensor, value, _ts"),
        (["sensor", "value", "kind"], "has no column '_ts'"),
        ([], "cannot be read"),
    ],
)
def test_unsuitable_files_are_named_with_the_reason(tmp_path, in_order, columns, reason):
    place = sensors(tmp_path, rows=in_order)
    place.run()
    if columns:
        archive(in_order).select(columns).write_parquet(tmp_path / "some.parquet")
    with pytest.raises(SourceFilesError, match=reason):
        begin_from_files(app, place.warehouse, tmp_path, None, {"readings": str(tmp_path / "some.parquet")}, DAYS)
    with pytest.raises(SourceFilesError, match=r"for topic 'readings'.*--time-column"):
        begin_from_files(app, place.warehouse, tmp_path, None, {}, DAYS)


def test_rows_without_a_time_are_refused_rather_than_left_out(tmp_path, in_order):
    place = sensors(tmp_path, rows=in_order)
    place.run()
    rows = archive(in_order).with_row_index("row")
    rows.with_columns(_ts=pl.when(pl.col("row") != 3).then("_ts")).write_parquet(tmp_path / "some.parquet")
    with pytest.raises(SourceFilesError, match="no time in '_ts' for 1 of its rows"):
        begin_from_files(app, place.warehouse, tmp_path, None, {"readings": str(tmp_path / "some.parquet")}, DAYS)


def test_a_slice_is_read_like_a_topic(tmp_path):
    records = pl.DataFrame({"key": [b"k"] * 4, "value": [b"12345", None, b"1", b"2"], "timestamp_ms": [10, 20, 30, 40]})
    records.write_ipc(tmp_path / "t-0.arrow")
    reader = SliceReader(tmp_path, "t", 0)

    def offsets(start, end, *, until_time_ms=None, max_bytes=1 << 20):
        found = reader.read(start, end, until_time_ms=until_time_ms, max_bytes=max_bytes)
        assert found.frame.schema == RAW_SCHEMA
        assert found.next_offset == found.frame["offset"][-1] + 1
        return found.frame["offset"].to_list()

    assert offsets(0, 4) == [0, 1, 2, 3]
    assert offsets(1, 3) == [1, 2]
    assert offsets(0, 4, until_time_ms=20) == [0, 1]
    assert offsets(2, 4, until_time_ms=5) == [2], "at least one"
    assert offsets(0, 4, max_bytes=6) == [0]
    assert offsets(0, 4, max_bytes=7) == [0, 1]
