"""What swaps remove from a table, by days and as a whole, whatever statistics the files have."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import polars as pl
import pytest
from deltalake import DeltaTable

from weir.state.commit import log
from weir.state.commit.files import write_file
from weir.state.commit.log import COMMITS, commits_above, newest_commit
from weir.state.commit.protocol import Committer
from weir.state.commit.record import FORMAT_VERSION, SWAP_FORMAT_VERSION, CommitRecord, TableSwap
from weir.state.commit.tables import AppendTable, file_actions, read_rows
from weir.state.errors import FormatVersionError
from weir.state.types import TableSpec

FACTS = TableSpec(
    name="facts", schema=pl.Schema({"name": pl.String(), "_ts": pl.Datetime("ms", "UTC"), "_epoch": pl.Int64()})
)
DAY = datetime(2024, 5, 3, tzinfo=UTC)
DAY_MS = 24 * 3600 * 1000
START_MS = int(DAY.timestamp() * 1000)
ROWS = {"inside": START_MS, "before": START_MS - 1, "timeless": None, "far": START_MS + 7_900 * 365 * DAY_MS}


@pytest.mark.parametrize(
    ("column", "left"),
    [
        ("_ts", {"before", "timeless", "far", "later", "new"}),
        (None, {"later", "new"}),
    ],
    ids=["a day", "everything"],
)
@pytest.mark.parametrize("has_statistics", [True, False])
@pytest.mark.parametrize("are_together", [True, False])
def test_a_swap_removes_the_rows_up_to_its_cut_for_some_days_or_all(
    tmp_path, column, left, has_statistics, are_together
):
    def file(rows: dict[str, int | None], epoch: int):
        frame = pl.DataFrame(
            {"name": list(rows), "_ts": list(rows.values()), "_epoch": epoch}, schema_overrides={"_ts": pl.Int64()}
        )
        entry = write_file(tmp_path, FACTS, frame)
        return entry if has_statistics else replace(entry, stats=json.dumps({"numRecords": frame.height}))

    table = AppendTable.create(tmp_path, FACTS, "app")
    parts = [ROWS] if are_together else [{name: time_ms} for name, time_ms in ROWS.items()]
    table.append(1, [file(rows, 1) for rows in parts])
    table.append(2, [file({"later": START_MS}, 2)])
    swap = TableSwap(
        backfill="b",
        table="facts",
        column=column,
        start_ms=START_MS,
        end_ms=START_MS + DAY_MS,
        cut_epoch=1,
        files=(file({"new": START_MS}, 1),),
    )
    for _ in range(2):
        table.append(3, [], [swap])
        assert set(read_rows(tmp_path / "facts")["name"]) == left
        assert read_rows(tmp_path / "facts").height == len(left)


def test_a_row_with_a_swap_has_a_format_that_a_weir_without_swaps_refuses(tmp_path, monkeypatch):
    """It would append the files and leave the old rows beside them."""
    driver = Committer(tmp_path, "app", [FACTS], fingerprint="f")
    driver.claim()
    swap = TableSwap(backfill="b", table="facts", column=None, start_ms=0, end_ms=1, cut_epoch=0, files=())
    formats = []
    for epoch, swaps in enumerate([(), (swap,), ()], 1):
        driver.commit(CommitRecord(kind="commit", generation=1, epoch=epoch, at_ms=0, fingerprint="f", swaps=swaps))
        formats.append(newest_commit(tmp_path, "app").format_version)
    driver.close()
    assert formats == [FORMAT_VERSION, SWAP_FORMAT_VERSION, FORMAT_VERSION] == [1, 2, 1]
    folder = tmp_path / "app" / COMMITS.name
    monkeypatch.setattr(log, "FORMATS", (FORMAT_VERSION,))
    with pytest.raises(FormatVersionError, match="format version 2"):
        list(commits_above(folder, file_actions(DeltaTable(folder)), 0))
