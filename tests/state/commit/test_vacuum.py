"""Which files a vacuum deletes: those that nobody can name any more, and no others."""

from __future__ import annotations

import os
import time

import polars as pl
import pytest
from deltalake import DeltaTable

from weir.state.commit.delta_log import replace_files
from weir.state.commit.files import write_file
from weir.state.commit.tables import AppendTable, file_actions
from weir.state.commit.vacuum import RETENTION_HOURS, vacuum
from weir.state.types import FileEntry, TableSpec

FACTS = TableSpec(name="facts", schema=pl.Schema({"n": pl.Int64(), "_epoch": pl.Int64()}))
HOUR_S = 3600.0


def written(app, n: int) -> FileEntry:
    return write_file(app, FACTS, pl.DataFrame({"n": [n], "_epoch": [n]}))


@pytest.mark.parametrize(("claimed_hours_ago", "deleted"), [(1, 1), (3 * RETENTION_HOURS, 0)])
def test_an_old_file_that_no_table_knows_stays_while_its_driver_may_still_name_it(tmp_path, claimed_hours_ago, deleted):
    """PROTOCOL 15: a commit interval may be longer than the retention."""
    AppendTable.create(tmp_path, FACTS, "app").append(1, [written(tmp_path, 1)])
    waiting = tmp_path / "facts" / written(tmp_path, 2).path
    long_ago = time.time() - 2 * RETENTION_HOURS * HOUR_S
    os.utime(waiting, (long_ago, long_ago))
    assert vacuum(tmp_path / "facts", round((time.time() - claimed_hours_ago * HOUR_S) * 1000)) == deleted
    assert waiting.exists() == (not deleted)


def test_a_file_that_has_just_left_its_table_stays_for_its_readers(tmp_path):
    AppendTable.create(tmp_path, FACTS, "app").append(1, [written(tmp_path, 1)])
    files = file_actions(DeltaTable(tmp_path / "facts"))
    assert replace_files(tmp_path / "facts", files, [written(tmp_path, 1)], is_data_changed=False)
    assert vacuum(tmp_path / "facts", time.time_ns() // 1_000_000 + 1000) == 0
    assert len(list((tmp_path / "facts").glob("*.parquet"))) == 2
