"""Reads an application's output tables and its dead letters."""

from __future__ import annotations

import polars as pl

from weir.infra.settings import Settings
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.registry import require
from weir.pipelines.operations.rows import without_bookkeeping
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS
from weir.state.commit.tables import read_table
from weir.state.storage.contract import Folder
from weir.state.storage.places import Place, folder_at, is_table, tables_in


def output_tables(place: Place) -> list[str]:
    """Names of the output tables below an application's warehouse folder, sorted; links may lead elsewhere and are none
    of them."""
    folder = folder_at(place)
    return [name for name in tables_in(folder) if not (name.startswith("_") or _is_link(folder / name))]


def readable_tables(folder: Place) -> list[str]:
    """The output tables, and the one of dead letters if there are any."""
    has_dead_letters = is_table(folder / DEAD_LETTERS.name)
    return [*output_tables(folder), *[DEAD_LETTERS.name] * has_dead_letters]


def _is_link(folder: Folder) -> bool:
    return folder.path is not None and folder.path.is_symlink()


def newest_rows(settings: Settings, application: str, table: str) -> pl.DataFrame:
    """The current rows of an output, or of ``_dead_letters``, newest first, without Weir's own columns.

    Raises:
        OperationError: The folder does not know the application, or the application has no such table.
    """
    folder = folder_at(settings.warehouse) / require(settings, application)
    tables = readable_tables(folder)
    if table not in tables:
        known = ", ".join(tables) or "none yet: run the application first"
        raise OperationError(f"{application} has no table {table!r}; it has {known}")
    rows = read_table(folder / table)
    declared = without_bookkeeping(rows).columns
    newest = "_ts" if "_ts" in rows.columns else "_epoch"  # dead letters have no event time
    return rows.sort(newest, *declared, descending=[True, *[False] * len(declared)]).select(declared)
