"""Delta checkpoints: written, and on disk before entries that they cover go; a torn one gives way to the one before.

Delta's libraries write checkpoints without syncing them. A loss of power could then leave half of one, and of the
entries that it stands for none.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from weir.state.engine.environment import sync_file, sync_folder

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint.*\.parquet")
_POINTER = "_last_checkpoint"
"""The file that tells readers of the newest checkpoint; without it they list the folder."""


def write_checkpoint(folder: Path) -> int:
    """Write a checkpoint of the newest version of a table, and drop entries that it covers and that have expired; its
    version."""
    # 6. Logs kept short
    table, log = DeltaTable(folder), folder / "_delta_log"
    table.create_checkpoint()
    for path in [*_files_of(log, table.version()), log / _POINTER]:
        sync_file(path)
    sync_folder(log)
    table.cleanup_metadata()
    return table.version()


def opened(folder: Path) -> DeltaTable:
    """The table, without a newest checkpoint that is torn, as long as the entries and checkpoints before give its
    rows."""
    try:
        return DeltaTable(folder)
    except DeltaError:
        if not _drop_torn(folder / "_delta_log"):
            raise
        return opened(folder)


def last_checkpoint(folder: Path) -> int:
    """The version of a table's newest Delta checkpoint, 0 before the first."""
    log = folder / "_delta_log"
    try:
        return int(json.loads((log / _POINTER).read_text())["version"])
    except FileNotFoundError:
        return 0
    except (ValueError, KeyError, TypeError):  # torn
        return max(_versions(log), default=0)


def _drop_torn(log: Path) -> bool:
    """Remove the newest checkpoint if it is torn and nothing is lost with it; whether it is gone."""
    versions = sorted(_versions(log))
    if not versions or all(map(is_whole, _files_of(log, versions[-1]))):
        return False
    first = versions[-2] + 1 if len(versions) > 1 else 0
    if not all((log / f"{number:020}.json").exists() for number in range(first, versions[-1] + 1)):
        return False
    (log / _POINTER).unlink(missing_ok=True)
    for path in _files_of(log, versions[-1]):
        path.unlink()
    sync_folder(log)
    return True


def _versions(log: Path) -> set[int]:
    return {int(found[1]) for path in log.iterdir() if (found := _CHECKPOINT.fullmatch(path.name))}


def _files_of(log: Path, version: int) -> list[Path]:
    return sorted(log.glob(f"{version:020}.checkpoint*.parquet"))


def is_whole(path: Path) -> bool:
    """Whether a Parquet file has its footer."""
    try:
        pl.read_parquet_schema(path)
    except (pl.exceptions.PolarsError, OSError):
        return False
    return True
