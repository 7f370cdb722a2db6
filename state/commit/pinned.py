"""An application's tables as of one commit: for each the newest Delta version with that commit and none after it.

Any process may look, also beside a driver. A driver appends a commit to one table after the other, so their newest
versions may belong to different commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import polars as pl
from deltalake import DeltaTable

from weir.state.commit.damage import naming_damage
from weir.state.commit.log import COMMITS, commits_above, newest_of
from weir.state.commit.tables import file_actions
from weir.state.storage.places import Place, is_table, table_at


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """Tables as of a commit."""

    epoch: int
    """That of the commit."""
    tables: Mapping[str, DeltaTable]
    """By the path below the application's folder, at the version that belongs to the commit."""


def pinned(warehouse: Place, application: str, names: Iterable[str]) -> Pinned | None:
    """The tables ``names`` as of the newest commit that all of them have; None before the first commit.

    That is the newest of all, unless a driver has yet to append it to one of them, or has died before. A table of
    upserts shows a commit only once it has been refreshed, so it may be at an older one.
    """
    app_folder = warehouse / application
    log = app_folder / COMMITS.name
    if not is_table(log):
        return None
    with naming_damage(log):
        log_files = file_actions(table_at(log))
        newest = newest_of(log, log_files)
    if newest is None:
        return None
    tables, epoch, through = dict[str, DeltaTable](), newest.epoch, newest.state_id.version
    for name in names:
        with naming_damage(app_folder / name):
            tables[name] = table_at(app_folder / name)
        held = _transaction(tables[name], application)
        if held < newest.table_versions.get(name, 0):
            epoch, through = min((epoch, through), _before_missing(log, log_files, name, held))
    return Pinned(
        epoch=epoch,
        tables={name: as_of(app_folder / name, table, application, through) for name, table in tables.items()},
    )


def _before_missing(log: Place, log_files: pl.DataFrame, name: str, held: int) -> tuple[int, int]:
    """Epoch and transaction version of the newest commit of which a table that has ``held`` lacks nothing."""
    epoch, version = held & 0xFFFF_FFFF, held
    for record in commits_above(log, log_files, held):
        if record.table_versions.get(name, 0) > held:
            break
        epoch, version = record.epoch, record.state_id.version
    return epoch, version


def as_of(folder: Place, table: DeltaTable, application: str, version: int) -> DeltaTable:
    """The table before the first commit after the transaction ``version``."""
    step, too_new = 1, table.version() + 1
    while _transaction(table, application) > version:
        too_new = table.version()
        table = table_at(folder, max(too_new - step, 0))
        step *= 2
    while (between := (table.version() + too_new) // 2) > table.version():
        found = table_at(folder, between)
        if _transaction(found, application) > version:
            too_new = between
        else:
            table = found
    return table


def _transaction(table: DeltaTable, application: str) -> int:
    return table.transaction_version(application) or 0
