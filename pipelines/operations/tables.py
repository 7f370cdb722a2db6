"""Reads an application's output tables and its dead letters."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from weir.infra.settings import Settings
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.registry import require
from weir.pipelines.operations.rows import without_bookkeeping
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS
from weir.state.commit.tables import read_table
from weir.state.storage.places import is_table


def output_tables(folder: Path) -> list[str]:
    """Names of the output tables below an application's warehouse folder, sorted; links may lead elsewhere and are none
    of them."""
    tables = (path.parent for path in folder.glob("*/_delta_log"))
    return sorted(table.name for table in tables if not (table.name.startswith("_") or table.is_symlink()))


def readable_tables(folder: Path) -> list[str]:
    """The output tables, and the one of dead letters if there are any."""
    has_dead_letters = is_table(folder / DEAD_LETTERS.name)
    return [*output_tables(folder), *[DEAD_LETTERS.name] * has_dead_letters]


def newest_rows(settings: Settings, application: str, table: str) -> pl.DataFrame:
    """The current rows of an output, or of ``_dead_letters``, newest first, without Weir's own columns.

    Raises:
        OperationError: The folder does not know the application, or the application has no such table.
    """
    folder = settings.warehouse / require(settings, application)
    tables = readable_tables(folder)
    if table not in tables:
        known = ", ".join(tables) or "none yet: run the application first"
        raise OperationError(f"{application} has no table {table!r}; it has {known}")
    rows = read_table(folder / table)
    declared = without_bookkeeping(rows).columns
    newest = "_ts" if "_ts" in rows.columns else "_epoch"  # dead letters have no event time
    return rows.sort(newest, *declared, descending=[True, *[False] * len(declared)]).select(declared)
