"""Tables that a commit gives up, deleted from disk.

A table of that name may be there again when a process that slept gets to it, so what is deleted is a table of an id
that a commit names: no other table ever has it.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

from deltalake import DeltaTable


def table_id(folder: Path) -> str | None:
    """The id of the table in a folder; None if there is none."""
    return str(DeltaTable(folder).metadata().id) if DeltaTable.is_deltatable(str(folder)) else None


def remove_tables(app_folder: Path, ids: Mapping[str, str]) -> None:
    """Delete tables, given by name and id, that are still there; a kill leaves the rest to the next call."""
    for name, wanted in ids.items():
        folder = app_folder / name
        aside = folder.parent / ".removed"
        if table_id(folder) == wanted:
            aside.mkdir(exist_ok=True)
            folder.rename(aside / uuid.uuid4().hex)  # in one step, so that no half of a table is left
        shutil.rmtree(aside, ignore_errors=True)
