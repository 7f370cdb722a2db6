"""The commit log: the Delta table ``_commits``, one row per claim or commit, with the whole record as JSON beside a few
columns for listing. The order of writing, and fencing, belong to ``weir.state.commit.protocol``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import polars as pl
from deltalake import DeltaTable

from weir.state.commit.damage import naming_damage
from weir.state.commit.delta_log import DeltaLog
from weir.state.commit.files import read_as_written, scan_as_written, write_file
from weir.state.commit.live_files import live_files
from weir.state.commit.record import (
    FORMAT_VERSION,
    KEYED_FORMAT_VERSION,
    RECORDS,
    SWAP_FORMAT_VERSION,
    UNLOGGED_FORMAT_VERSION,
    CommitRecord,
)
from weir.state.commit.tables import scan_table
from weir.state.errors import DamagedFileError, FormatVersionError
from weir.state.frames import framed, picked
from weir.state.storage.contract import Folder
from weir.state.storage.places import Place, folder_at, is_table
from weir.state.storage.syncs import Syncs
from weir.state.types import FileEntry, StateId, TableSpec

COMMITS = TableSpec(
    name="_commits",
    schema=pl.Schema(
        {
            "generation": pl.Int64(),
            "epoch": pl.Int64(),
            "kind": pl.String(),
            "at": pl.Datetime("ms", "UTC"),
            "fingerprint": pl.String(),
            "reason": pl.String(),
            "record": pl.String(),
        }
    ),
)

_READ = ("kind", "generation", "epoch", "record")
FORMATS = (FORMAT_VERSION, SWAP_FORMAT_VERSION, KEYED_FORMAT_VERSION, UNLOGGED_FORMAT_VERSION)
"""The row formats that this version reads."""


def write_row(app_folder: Place, record: CommitRecord, syncs: Syncs | None = None) -> FileEntry:
    """Write a record into a file in the log's folder, synced as ``write_file`` has it. It counts once the log names
    that file."""
    row = {
        "generation": record.generation,
        "epoch": record.epoch,
        "kind": record.kind,
        "at": record.at_ms,
        "fingerprint": record.fingerprint,
        "reason": record.reason,
        "record": msgspec.json.encode(record).decode(),
    }
    columns = [pl.Series(name, [row[name]], dtype) for name, dtype in COMMITS.schema.items()]
    return write_file(app_folder, COMMITS, framed(columns), syncs=syncs)


def newest_commit(warehouse: Place, application: str) -> CommitRecord | None:
    """The newest commit (claims aside), or None before the first.

    Found by file statistics, without reading the whole log (PROTOCOL 16).
    """
    folder = folder_at(warehouse) / application / COMMITS.name
    return newest_of(folder, files_of_log(folder)) if is_table(folder) else None


def files_of_log(place: Place) -> pl.DataFrame:
    """The log's files, as the functions here take them."""
    files, _ = live_files(place, ranges=("kind", "generation", "epoch"))
    return files


def newest_generation(warehouse: Place, application: str) -> int:
    """The generation of the newest driver that has claimed the application; 0 before the first."""
    folder = folder_at(warehouse) / application / COMMITS.name
    if not is_table(folder):
        return 0
    return DeltaLog(folder, application).transaction >> 32


def newest_of(place: Place, files: pl.DataFrame) -> CommitRecord | None:
    """Same as ``newest_commit``, given the log's files."""
    if files.is_empty():
        return None
    rows = picked(files, ("max.generation", "max.epoch", "path", "max.kind")).iter_rows()
    with_commits = [(generation, epoch, path) for generation, epoch, path, kind in rows if kind == "commit"]
    if not with_commits:
        return None
    *_, newest = max(with_commits)
    folder = folder_at(place)
    with naming_damage(folder, [newest]):
        found = picked(read_as_written(folder, newest), _READ).rows()
    *_, record = _commits_among(folder, ((*row, f"{folder.uri}/{newest}") for row in found))
    return record


def commits_above(place: Place, files: pl.DataFrame, version: int) -> Iterator[CommitRecord]:
    """All commits whose transaction version is above ``version``, oldest first, given the log's files."""
    above = files.filter((pl.col("max.kind") == "commit") & (file_version() > version))
    if above.is_empty():
        return
    folder, paths = folder_at(place), above["path"].to_list()
    with naming_damage(folder, paths):
        found = scan_as_written(folder, paths, name_in="path").select(*_READ, "path").collect()
    for record in _commits_among(folder, found.iter_rows()):
        if record.state_id.version > version:
            yield record


def time_of(place: Place, commit: StateId) -> int | None:
    """When a commit was made, in milliseconds of Unix time; None if the log in ``place`` has none of this id."""
    of_commit = (pl.col("generation") == commit.generation) & (pl.col("epoch") == commit.epoch)
    around = pl.lit(commit.epoch).is_between(pl.col("min.epoch"), pl.col("max.epoch"))
    paths = files_of_log(place).filter(around)["path"].to_list()
    if not paths:
        return None
    with naming_damage(folder_at(place), paths):
        rows = scan_as_written(place, paths).filter(of_commit & (pl.col("kind") == "commit")).select("at").collect()
    return int(rows["at"].dt.epoch("ms")[0]) if rows.height else None


def commit_times(table: DeltaTable) -> pl.DataFrame:
    """One row per claim or commit: ``generation``, ``epoch``, ``kind``, ``at``."""
    return scan_table(table).select("generation", "epoch", "kind", "at").collect()


def file_version() -> pl.Expr:
    """The highest transaction version in a file of the log, from its statistics."""
    return pl.col("max.generation") * (1 << 32) + pl.col("max.epoch")


def _commits_among(folder: Folder, rows: Iterable[tuple[Any, ...]]) -> Iterator[CommitRecord]:
    """Oldest first; a row has the columns ``_READ``, then the URI of its file."""
    commits = sorted((row for kind, *row in rows if kind == "commit"), key=lambda row: (row[0], row[1]))
    for generation, epoch, text, path in commits:
        try:
            version = _VERSIONS.decode(text).format_version
            record = RECORDS.decode(text) if version in FORMATS else None
        except msgspec.MsgspecError as error:
            reason = f"its row of commit {generation}.{epoch} cannot be decoded ({error})"
            raise DamagedFileError(path, reason) from error
        if record is None:
            raise FormatVersionError(folder.parent.name, f"the commit log {folder.uri}", max(FORMATS), version)
        yield record


class _Versioned(msgspec.Struct):
    """What every format of a record has."""

    format_version: int = FORMAT_VERSION


_VERSIONS = msgspec.json.Decoder(_Versioned)
