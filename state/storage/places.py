"""From a path to a folder, and from a folder to a Delta table.

Functions that take a ``Place`` may be given a path of the local file system; what they do, they do by ``Folder``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from deltalake import DeltaTable

from weir.state.storage.contract import Folder
from weir.state.storage.local import Local

Place: TypeAlias = Folder | Path


def folder_at(place: Place) -> Folder:
    """The folder that a place is."""
    return Local(place) if isinstance(place, Path) else place


def is_table(place: Place) -> bool:
    """Whether there is a Delta table."""
    folder = folder_at(place)
    return DeltaTable.is_deltatable(folder.uri, storage_options(folder))


def table_at(place: Place, version: int | None = None) -> DeltaTable:
    """The Delta table there, at a version or the newest one; delta-rs reads its log.

    Raises:
        TableNotFoundError: There is none.
    """
    folder = folder_at(place)
    return DeltaTable(folder.uri, version=version, storage_options=storage_options(folder))


def tables_in(place: Place) -> list[str]:
    """The names of the Delta tables directly below a place, sorted."""
    folder = folder_at(place)
    return sorted(name for name in folder.folders() if is_table(folder / name))


def storage_options(place: Place) -> dict[str, str] | None:
    """What delta-rs and polars need to know of a place beside its URI."""
    options = folder_at(place).options
    return None if options is None else dict(options)
