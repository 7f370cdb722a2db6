"""Tables that a commit gives up, deleted from disk.

A table of that name may be there again when a process that slept gets to it, so what is deleted is a table of an id
that a commit names: no other table ever has it.
"""

from __future__ import annotations

from collections.abc import Mapping

from weir.state.storage.places import Place, folder_at, is_table, table_at


def table_id(place: Place) -> str | None:
    """The id of the table at a place; None if there is none."""
    return str(table_at(place).metadata().id) if is_table(place) else None


def remove_tables(app_folder: Place, ids: Mapping[str, str]) -> None:
    """Delete tables, given by name and id, that are still there; a kill leaves the rest to the next call."""
    for name, wanted in ids.items():
        folder = folder_at(app_folder) / name
        if table_id(folder) == wanted:
            folder.parent.delete_folder(folder.name)
        else:
            folder.parent.remove_leftovers()
