"""Lists an application's dead letters and deletes those that are dealt with, beside its driver."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from weir.infra.settings import Settings
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.registry import require
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS
from weir.state.commit.delta_log import replace_files
from weir.state.commit.files import read_files, write_file
from weir.state.commit.tables import file_actions, read_rows
from weir.state.types import TableSpec


def dead_letters_of(settings: Settings, application: str) -> pl.DataFrame:
    """All dead letters, newest epoch first, with the columns of ``DEAD_LETTERS``; none before the first commit.

    Raises:
        OperationError: The folder does not know the application.
    """
    empty = pl.DataFrame(schema=DEAD_LETTERS.schema)
    folder = _folder(settings, application)
    if not (folder / "_delta_log").is_dir():
        return empty
    rows = pl.concat([empty, read_rows(folder)], how="diagonal_relaxed")
    return rows.select(empty.columns).sort("_epoch", "topic", "partition", "offset", descending=[True, *[False] * 3])


def counts_by_reason(letters: pl.DataFrame) -> pl.DataFrame:
    """How many there are of each stage, operator and reason, most first; numbers in reasons make no difference."""
    reason = pl.col("reason").str.replace_all(r"\d+", "#")
    return letters.group_by("stage", "operator", reason).agg(pl.len().alias("letters")).sort("letters", descending=True)


def dead_letter(settings: Settings, application: str, id: str) -> pl.DataFrame:
    """The one with this id.

    Raises:
        OperationError: There is none, or the folder does not know the application.
    """
    found = dead_letters_of(settings, application).filter(pl.col("id") == id)
    if found.is_empty():
        raise OperationError(
            f"{application} has no dead letter {id!r}; `weir dead-letters list {application}` shows their ids"
        )
    return found


def discard(settings: Settings, application: str, ids: Collection[str] | None = None) -> int:
    """Delete the dead letters with these ids, or all that are there; returns how many were deleted.

    Files are replaced in one Delta commit, as a compaction does it, so the driver goes on meanwhile.

    Raises:
        OperationError: There is none with one of ``ids``, or the folder does not know the application.
    """
    folder = _folder(settings, application)
    for id in ids or ():
        dead_letter(settings, application, id)
    if not (folder / "_delta_log").is_dir():
        return 0
    while True:
        table = DeltaTable(folder)
        files, schema = file_actions(table), pl.Schema(pl.scan_delta(table).collect_schema())
        if files.is_empty():
            return 0
        rows = read_files([folder / path for path in files["path"]], schema)
        kept = rows.clear() if ids is None else rows.filter(~pl.col("id").is_in(list(ids)).fill_null(False))
        if kept.height == rows.height:
            return 0
        spec = TableSpec(name=DEAD_LETTERS.name, schema=schema)
        added = [write_file(folder.parent, spec, kept, is_merged=True)] if kept.height else []
        if replace_files(folder, files, added, is_data_changed=True):
            return rows.height - kept.height


def _folder(settings: Settings, application: str) -> Path:
    return settings.warehouse / require(settings, application) / DEAD_LETTERS.name
