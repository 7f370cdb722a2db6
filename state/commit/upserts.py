"""What a table of upserts is made of: commits write its updates, and people read a table of their standing rows.

Bringing it up to date belongs to ``weir.state.changelog.upserts``.
"""

from __future__ import annotations

import polars as pl

from weir.state.types import TableSpec

UPDATES_FOLDER = "_updates"
"""Below an application's folder: the updates of tables of upserts."""
_OF_COMMITS = ("_epoch", "_seq", "_deleted")


def updates_name(table: str) -> str:
    """Where the updates of the table of upserts ``table`` are, below the application's folder."""
    return f"{UPDATES_FOLDER}/{table}"


def shown_name(name: str) -> str:
    """The name that people know an output by, given that of the table that commits write."""
    return name.removeprefix(f"{UPDATES_FOLDER}/")


def upserts_of(updates: TableSpec) -> TableSpec | None:
    """The table that shows the standing rows of ``updates``: its columns without those that commits add. None for a
    table that people read themselves."""
    name = shown_name(updates.name)
    if name == updates.name:
        return None
    return TableSpec(
        name=name,
        schema=pl.Schema({column: dtype for column, dtype in updates.schema.items() if column not in _OF_COMMITS}),
    )
