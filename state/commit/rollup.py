"""Old rows of the commit log, gathered into a few files without their file lists (PROTOCOL 16).

A start finds the log's newest row by file statistics: one file per row would make that slow within days. A roll-up
carries no transaction of the application, so it neither fences nor is fenced, and it replaces exactly the files that it
read: if two run at the same time, one does nothing. The caller knows which rows the tables already have.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import polars as pl

from weir.state.commit.delta_log import is_append_only, replace_files
from weir.state.commit.files import scan_as_written, write_file
from weir.state.commit.log import COMMITS, file_version
from weir.state.commit.record import RECORDS
from weir.state.commit.tables import file_actions
from weir.state.storage.places import Place, table_at
from weir.state.types import FileEntry

ROLL_UP_EVERY_ROWS = 500
ROWS_A_FILE = 10_000
"""A file with this many rows is full: later roll-ups leave it alone."""
BYTES_A_FILE = 128 << 20
"""So is one whose records have about this many bytes, as many as are in memory at a time; a row of 10,000 tasks has
millions of them."""


def rows_to_roll_up(files: pl.DataFrame) -> int:
    """How many rows still have a file to themselves, given the log's files."""
    return int((files["num_records"] == 1).sum()) if files.height else 0


def roll_up(app_folder: Place, through: int) -> int:
    """Gather the rows up to the transaction version ``through``, which all tables must have reached.

    The newest commit keeps its own file. Returns how many rows were gathered: 0 when there was nothing to gather or
    another roll-up was quicker. Killed at any point, it leaves the log either as it was or rolled up.
    """
    folder = app_folder / COMMITS.name
    log = table_at(folder)
    files = file_actions(log)
    if files.is_empty() or is_append_only(log):
        return 0
    files = files.with_columns(version=file_version())
    newest_commit = files.filter(pl.col("max.kind") == "commit")["version"].max()
    old = files.filter((pl.col("version") <= through) & (pl.col("version") != newest_commit)).sort("version")
    singles = old.filter(pl.col("num_records") == 1)
    if singles.is_empty():
        return 0
    rows_a_file = max(2, BYTES_A_FILE // _longest(folder, files.filter(pl.col("version") == newest_commit)))
    started = old.filter(pl.col("num_records").is_between(2, min(ROWS_A_FILE, rows_a_file) - 1)).tail(1)
    if singles.height + started.height < 2:
        return 0
    entries, first = list[FileEntry](), max(1, rows_a_file - sum(started["num_records"]))
    for begin, count in ((0, first), *((at, rows_a_file) for at in range(first, singles.height, rows_a_file))):
        rows = [_without_files(_read(folder, singles.slice(begin, count)))]
        if not entries and started.height:
            rows.append(_read(folder, started))
        entries.append(write_file(app_folder, COMMITS, pl.concat(rows).sort("generation", "epoch")))
    is_done = replace_files(folder, pl.concat([started, singles]), entries, is_data_changed=True)
    return singles.height if is_done else 0


def _longest(folder: Place, files: pl.DataFrame) -> int:
    """The bytes of the longest record; 1 if there are no files."""
    return max(_read(folder, files)["record"].str.len_bytes(), default=1) if files.height else 1


def _read(folder: Place, files: pl.DataFrame) -> pl.DataFrame:
    return scan_as_written(folder, files["path"]).collect()


def _without_files(rows: pl.DataFrame) -> pl.DataFrame:
    records = (replace(RECORDS.decode(text), files=(), swaps=(), is_rolled_up=True) for text in rows["record"])
    return rows.with_columns(
        record=pl.Series([msgspec.json.encode(record).decode() for record in records], dtype=pl.String)
    )
