"""From a path to a folder, and from a folder to a Delta table.

Functions that take a ``Place`` may be given a path of the local file system; what they do, they do by ``Folder``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from deltalake import DeltaTable

from weir.state.storage.contract import Folder
from weir.state.storage.local import Local
from weir.state.storage.object_store import ObjectFolder, object_folder, require_conditional_puts

Place: TypeAlias = Folder | Path


def folder_at(place: Place | str) -> Folder:
    """The folder that a place is; a text is a path, or a URI of an object store: ``s3://bucket/path``."""
    if isinstance(place, str):
        return object_folder(place) if "://" in place else Local(Path(place))
    return Local(place) if isinstance(place, Path) else place


def require_one_winner(place: Place) -> None:
    """Make sure that of two writers of a name the storage lets one win, as every local disk does.

    Raises:
        ConditionalPutError: It does not.
        ObjectStoreError: It cannot be asked.
    """
    folder = folder_at(place)
    if isinstance(folder, ObjectFolder):
        require_conditional_puts(folder)


def disks(*places: Place) -> list[Path]:
    """The paths of those places that are on a local disk, which may be full."""
    return [path for place in places if (path := folder_at(place).path) is not None]


def is_table(place: Place) -> bool:
    """Whether there is a Delta table."""
    log = folder_at(place) / "_delta_log"
    return any(file.name.endswith((".json", ".parquet")) for file in log.list())


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


def content_on_disk(place: Place, name: str) -> bytes | None:
    """What a file of a folder on a local disk holds; None in an object store, where polars reads what it needs of it.

    Raises:
        FileNotFoundError: There is none.
    """
    path = folder_at(place).path
    return None if path is None else (path / name).read_bytes()


def storage_options(place: Place) -> dict[str, str] | None:
    """What delta-rs and polars need to know of a place beside its URI."""
    options = folder_at(place).options
    return None if options is None else dict(options)
