"""Delta tables of an application: made from their specs, appended to once per commit, and read.

An append carries the application's Delta transaction at the commit's version, so doing it again changes
nothing. Which commits to append, and in what order, is ``state.commit.protocol``; writing the files is
``state.commit.files``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import polars as pl
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, CommitProperties, PostCommitHookProperties, RemoveAction, Transaction

from state.commit.files import stored_schema
from state.engine.environment import sync_folder
from state.errors import TableBehindError, TableSchemaError
from state.types import FileEntry, StateId, TableSpec

KEYS_PROPERTY = "weir.keys"
"""The table property that names the key columns of a table of updates, separated by commas."""
CHECKPOINT_EVERY_VERSIONS = 25
"""A commit reads the log entries since the last checkpoint again (0.1 ms each, twice), so they are kept few."""

_ORDER = ("_epoch", "_seq")
_DELETED = "_deleted"
_ATTEMPTS = 3
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class AppendTable:
    """One Delta table and the application's transaction in it; the handle is kept between appends."""

    def __init__(self, folder: Path, name: str, application: str) -> None:
        """Open a table that exists."""
        self.folder, self.name, self.application = folder, name, application
        self._table = DeltaTable(folder)
        self._partition_by = list(self._table.metadata().partition_columns)
        self._synced = self._table.version()
        self.version = self._transaction_version()
        """The application's transaction version in the handle's snapshot; 0 before the first."""
        self._checkpointed = _last_checkpoint(folder)
        self._is_checkpoint_new = False

    @classmethod
    def create(cls, app_folder: Path, spec: TableSpec, application: str) -> AppendTable:
        """Open a table, made first when it is missing.

        Raises:
            TableSchemaError: It exists with other columns.
        """
        folder = app_folder / spec.name
        schema = Schema.from_arrow(pl.DataFrame(schema=stored_schema(spec)).to_arrow().schema)
        if not DeltaTable.is_deltatable(str(folder)):
            DeltaTable.create(folder, schema, mode="ignore", partition_by=list(spec.partition_by),
                              configuration={KEYS_PROPERTY: ",".join(spec.keys)} if spec.keys else None,
                              raise_if_key_not_exists=False)
            sync_folder(folder / "_delta_log")
            sync_folder(folder)
        table = cls(folder, spec.name, application)
        if table._table.schema() != schema:
            raise TableSchemaError(spec.name, _columns(schema), _columns(table._table.schema()))
        return table

    def refresh(self) -> None:
        """Bring the handle up to date, and new log entries to disk."""
        if self._is_checkpoint_new:  # an older handle would go on reading the entries that the checkpoint covers
            self._is_checkpoint_new = False
            self._table = DeltaTable(self.folder)
        else:
            self._table.update_incremental()
        log = self.folder / "_delta_log"
        newest = self._table.version()
        for version in range(self._synced + 1, newest + 1):
            entry = log / f"{version:020}.json"
            if entry.exists():
                with entry.open("rb") as file:
                    os.fsync(file.fileno())
        if newest > self._synced:
            sync_folder(log)
        self._synced = newest
        self.version = self._transaction_version()

    def append(self, version: int, files: Sequence[FileEntry]) -> None:
        """Add a commit's files, unless the table has that commit already.

        A write can succeed and still raise, so after any error the version is read back before the next
        attempt. A handle that is not up to date is safe: Delta refuses an append when the application's
        transaction has moved since its snapshot.

        Raises:
            TableBehindError: A file is gone.
        """
        for attempt in range(_ATTEMPTS):
            if self.version >= version:
                return
            self.check_files(version, files)
            try:
                self.write(version, files)
            except Exception:
                self.refresh()
                if self.version < version and attempt == _ATTEMPTS - 1:
                    raise
            else:
                self.refresh()
                return

    def write(self, version: int, files: Sequence[FileEntry]) -> None:
        """One Delta commit from the handle's snapshot, with the application's transaction at ``version``."""
        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            AddAction(path=entry.path, size=entry.size_bytes, partition_values=dict(entry.partition_values),
                      modification_time=now_ms, data_change=True, stats=entry.stats) for entry in files]
        self._table.create_write_transaction(
            actions, "append", self._table.schema(), self._partition_by,
            commit_properties=CommitProperties(app_transactions=[Transaction(self.application, version)]),
            post_commithook_properties=_NO_HOOKS)

    def check_files(self, version: int, files: Sequence[FileEntry]) -> None:
        """Raise ``TableBehindError`` unless all files lie in the table's folder (Delta would not notice)."""
        for entry in files:
            path = self.folder / entry.path
            if not path.is_file() or path.stat().st_size != entry.size_bytes:
                raise TableBehindError(self.name, version_text(version), entry.path)

    def files(self) -> pl.DataFrame:
        """One row a file of the snapshot: ``path``, ``size_bytes``, ``partition.*``, ``min.*``, ``max.*``."""
        return file_actions(self._table)

    def is_checkpoint_due(self) -> bool:
        """Whether so many versions have passed that opening the table would become slow."""
        return self._synced - self._checkpointed >= CHECKPOINT_EVERY_VERSIONS

    def checkpoint(self) -> None:
        """Write a Delta checkpoint and drop expired log entries, with a handle of its own: any thread will do."""
        table = DeltaTable(self.folder)
        table.create_checkpoint()
        table.cleanup_metadata()
        self._checkpointed = table.version()
        self._is_checkpoint_new = True

    def _transaction_version(self) -> int:
        return self._table.transaction_version(self.application) or 0


def version_text(version: int) -> str:
    """A transaction version as the state id it stands for."""
    return str(StateId(version >> 32, version & 0xFFFF_FFFF))


def file_actions(table: DeltaTable) -> pl.DataFrame:
    """One row a file: ``path``, ``size_bytes``, ``num_records``, ``partition.*``, ``min.*``, ``max.*``."""
    return pl.Series(table.get_add_actions(flatten=True)).struct.unnest()


def read_rows(folder: Path, version: int | None = None) -> pl.DataFrame:
    """All rows of a table as they are stored, at a Delta version or the newest."""
    return pl.read_delta(str(folder), version=version)


def read_table(folder: Path, version: int | None = None) -> pl.DataFrame:
    """The rows that stand: of a table of facts all, of a table of updates the newest a key, deleted ones left out.

    Newest is by ``_epoch``, then ``_seq`` where there is one.
    """
    rows, keys = read_rows(folder, version), _keys(DeltaTable(folder, version=version))
    return _standing(rows, keys) if keys else rows


def count_rows(folder: Path, *, read_at_most: int) -> int | None:
    """How many rows stand, as ``read_table`` has them.

    Of a table of facts the Delta log knows it. Of a table of updates every key has to be read: None where those are
    more than ``read_at_most``.
    """
    table = DeltaTable(folder)
    files, keys = file_actions(table), _keys(table)
    stored = 0 if files.is_empty() else int(files["num_records"].sum())
    if not keys or not stored:
        return stored
    if stored > read_at_most:
        return None
    names = [name for name in (*keys, *_ORDER, _DELETED) if name in {field.name for field in table.schema().fields}]
    return _standing(pl.read_delta(table, columns=names), keys).height


def _keys(table: DeltaTable) -> list[str]:
    """The key columns of a table of updates; none of a table of facts."""
    names = table.metadata().configuration.get(KEYS_PROPERTY)
    return names.split(",") if names else []


def _standing(updates: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    order = [name for name in _ORDER if name in updates.columns]
    newest = updates.sort(order).unique(keys, keep="last", maintain_order=True)
    return newest.filter(~pl.col(_DELETED)) if _DELETED in updates.columns else newest


def _columns(schema: Schema) -> str:
    return ", ".join(f"{field.name} {json.loads(field.type.to_json())}" for field in schema.fields)


def _last_checkpoint(folder: Path) -> int:
    try:
        return int(json.loads((folder / "_delta_log" / "_last_checkpoint").read_text())["version"])
    except FileNotFoundError:
        return 0
