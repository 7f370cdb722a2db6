"""Whether a table still has the files that its newest state names: with their sizes and, if asked for, with rows that
can be read as the table's.

Delta's libraries open a table whose files are gone, and find out when somebody reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from weir.state.commit.damage import naming_damage, unreadable
from weir.state.commit.tables import file_actions, scan_table
from weir.state.errors import TableFileError
from weir.state.storage.contract import Folder
from weir.state.storage.places import Place, folder_at, table_at


@dataclass(frozen=True, kw_only=True)
class TableFiles:
    """A table whose files are all there."""

    table: str
    files: int
    size_bytes: int


def check_table(app_folder: Place, application: str, table: str, *, reads: bool) -> TableFiles:
    """Look at every file that the newest state of ``table`` names; ``reads`` also reads all of their rows.

    The table may change meanwhile: a file counts as missing only if the table still names it then.

    Raises:
        TableFileError: The first file that is gone, of another size, not readable, or of other types.
        DamagedFileError: The table's Delta log cannot be read.
    """
    folder = folder_at(app_folder) / table
    files = _named(folder)
    schema = _schema(folder) if reads else None
    for path, size_bytes, rows in files.iter_rows():
        reason = _fault(folder, path, size_bytes, rows, schema)
        if reason and path in _named(folder)["path"]:
            raise TableFileError(application, table, f"{folder.uri}/{path}", reason)
    return TableFiles(table=table, files=files.height, size_bytes=int(files["size_bytes"].sum()))


def _named(folder: Folder) -> pl.DataFrame:
    with naming_damage(folder):
        return file_actions(table_at(folder)).select("path", "size_bytes", "num_records")


def _schema(folder: Folder) -> pl.Schema:
    with naming_damage(folder):
        return scan_table(table_at(folder)).collect_schema()


def _fault(folder: Folder, name: str, size_bytes: int, rows: int | None, schema: pl.Schema | None) -> str:
    """What is wrong with a file; "" for nothing. With the table's ``schema``, its rows are read, and must be as many
    and of these types."""
    found = folder.find(name)
    if found is None:
        return "it is gone"
    if found.size_bytes != size_bytes:
        return f"it has {found.size_bytes} bytes, and had {size_bytes}"
    return "" if schema is None else unreadable(folder, name, rows, schema)
