"""Delta checkpoints: written, and on disk before entries go; a torn one gives way to the one before.

Delta's libraries write checkpoints without syncing them. A loss of power could then leave half of one, and of the
entries that it stands for none. So the entries since a checkpoint stay until the next one is on disk, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import polars as pl
from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.exceptions import DeltaError

from weir.state.commit.files import scan_as_written
from weir.state.storage.contract import Folder
from weir.state.storage.object_store import away, is_away
from weir.state.storage.places import Place, folder_at, table_at

LOG = "_delta_log"
"""The folder of a table's log, below the table's."""
_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*(?:parquet|json)")
_CLASSIC = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet")
_POINTER = "_last_checkpoint"
"""The file that tells readers of the newest checkpoint; without it they list the folder."""
RETENTION = "delta.logRetentionDuration"
"""The table property that says how long entries stay that are no longer needed."""
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""For changes by delta-rs, which would write a checkpoint and drop entries at every hundredth version, all unsynced."""


def write_checkpoint(place: Place) -> int:
    """Write a checkpoint of the newest version of a table, then drop entries and checkpoints that have expired and are
    older than the checkpoint before; its version."""
    # 6. Logs kept short
    table, log = opened(place), folder_at(place) / LOG
    table.create_checkpoint()
    log.sync([*_files_of(log, table.version()), _POINTER])
    if (before := _whole_before(log, table.version())) is not None:
        earlier = table_at(place, before)
        if _retention(earlier) == _retention(table):
            earlier.cleanup_metadata()  # by the property as it was at that version; nothing from there on goes
    return table.version()


def opened(place: Place) -> DeltaTable:
    """The table, without a newest checkpoint that is torn, as long as the entries and checkpoints before give its
    rows."""
    try:
        return table_at(place)
    except DeltaError:
        if not _drop_torn(folder_at(place) / LOG):
            raise
        return opened(place)


def last_checkpoint(place: Place) -> int:
    """The version of a table's newest Delta checkpoint, 0 before the first."""
    log = folder_at(place) / LOG
    try:
        return int(json.loads(log.get(_POINTER))["version"])
    except FileNotFoundError:
        return 0
    except (ValueError, KeyError, TypeError):  # torn
        return max(_versions(log), default=0)


def entry_name(version: int) -> str:
    """The file of a version's entry in a table's log."""
    return f"{version:020}.json"


def entry_version(name: str) -> int | None:
    """The version whose log entry a file is; None for any other file."""
    found = _ENTRY.fullmatch(name)
    return int(found[1]) if found else None


def checkpoint_version(name: str) -> int | None:
    """The version of the checkpoint that a file is, or is a part of; None for any other file."""
    found = _CHECKPOINT.fullmatch(name)
    return int(found[1]) if found else None


def covered_version(names: Iterable[str]) -> int:
    """The newest version that a checkpoint covers, in whatever format; -1 without one. One that lacks parts does not
    count."""
    names = list(names)
    others = {name: version for name in names if (version := checkpoint_version(name)) is not None}
    whole = complete_checkpoints(names)
    return max((at for name, at in others.items() if at in whole or not _CLASSIC.fullmatch(name)), default=-1)


def complete_checkpoints(names: Iterable[str]) -> dict[int, list[str]]:
    """The names of a checkpoint's file, or of all its parts if none is missing, by version; those in Delta's V2 format
    do not count."""
    found: dict[tuple[int, str], list[str]] = {}
    for name in sorted(names):
        if of := _CLASSIC.fullmatch(name):
            found.setdefault((int(of[1]), of[2] or ""), []).append(name)
    complete = {key: parts for key, parts in found.items() if len(parts) == int(key[1] or 1)}
    return {version: complete[version, count] for version, count in sorted(complete, reverse=True)}


def _drop_torn(log: Folder) -> bool:
    """Remove the newest checkpoint if it is torn and nothing is lost with it; whether it is gone."""
    versions = sorted(_versions(log))
    if not versions or all(is_whole(log, name) for name in _files_of(log, versions[-1])):
        return False
    first = versions[-2] + 1 if len(versions) > 1 else 0
    if any(log.find(entry_name(number)) is None for number in range(first, versions[-1] + 1)):
        return False
    log.delete([_POINTER, *_files_of(log, versions[-1])])
    log.sync()
    return True


def _whole_before(log: Folder, version: int) -> int | None:
    """The newest version before one that has a whole checkpoint; those in parts, which others write, do not count."""
    earlier = sorted((number for number in _versions(log) if number < version), reverse=True)
    return next((number for number in earlier if is_whole(log, f"{number:020}.checkpoint.parquet")), None)


def _retention(table: DeltaTable) -> str | None:
    return table.metadata().configuration.get(RETENTION)


def _versions(log: Folder) -> set[int]:
    return {version for file in log.list() if (version := checkpoint_version(file.name)) is not None}


def _files_of(log: Folder, version: int) -> list[str]:
    return sorted(file.name for file in log.list(f"{version:020}.checkpoint") if file.name.endswith(".parquet"))


def is_whole(folder: Folder, name: str) -> bool:
    """Whether a Parquet file has its footer."""
    try:
        scan_as_written(folder, [name]).collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        if is_away(error):
            raise away(folder.uri, error) from error
        return False
    return True
