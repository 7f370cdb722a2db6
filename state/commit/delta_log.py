"""Appends to a table's Delta log that cost the same however long the table's history and however many its files.

Delta's libraries load every live file before they write and list the whole log folder for it: 1.7 ms more per 1,000
files, 0.4 ms more per 100 entries (docs/adr/0003). An append of files with a transaction needs none of that: the next
number of the log that is free, and what others wrote since. Making, reading and rewriting tables, checkpoints and the
log's clean-up stay with delta-rs; which commits to append is ``state.commit.protocol``.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from deltalake import DeltaTable, Schema

from state.engine.environment import sync_folder
from state.errors import TableFeatureError
from state.types import FileEntry

_SCRATCH_SUFFIX = ".entry.tmp"
_SCRATCH_LIFE_S = 3600.0
_PLAIN_WRITER_VERSION = 2
_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz"})
"""Of the features that a table may ask of writers, those that an append of whole files keeps to by itself."""
_ENGINE = {"engineInfo": "weir"}


class _Transaction(msgspec.Struct, rename="camel"):
    app_id: str
    version: int


class _Action(msgspec.Struct, rename="camel"):
    txn: _Transaction | None = None
    meta_data: Any = None
    protocol: Any = None


class DeltaLog:
    """The log of one table as far as an application has read it: Delta version and its own transaction version."""

    version: int
    """The newest Delta version read."""
    transaction: int
    """The application's transaction version there; 0 before the first."""
    schema: Schema

    def __init__(self, folder: Path, application: str) -> None:
        """Open the log of a table that exists.

        Raises:
            TableFeatureError: The table asks writers for what is not known here.
        """
        self._table_folder, self._application = folder, application
        self._folder = folder / "_delta_log"
        self._open()

    def refresh(self) -> None:
        """Read what was written since, and see to it that it is on disk."""
        read_from = self.version
        while (entry := self._entry(self.version + 1)).exists():
            if not self._read(entry):
                break
        if last_checkpoint(self._table_folder) > self.version:
            self._open()  # entries that were not read yet have been cleaned away
        for version in range(read_from + 1, self.version + 1):
            if (entry := self._entry(version)).exists():
                with entry.open("rb") as file:
                    os.fsync(file.fileno())
        if self.version > read_from:
            sync_folder(self._folder)

    def append(self, transaction: int, files: Sequence[FileEntry]) -> bool:
        """Add files under the application's transaction; False, with nothing written, when that has moved meanwhile.

        Whoever slept until the log was cleaned up can write an entry where one was removed. Nobody reads it, and
        ``transaction`` is afterwards what the log really has.
        """
        expected = self.transaction
        scratch = self._folder / f".{uuid.uuid4().hex}{_SCRATCH_SUFFIX}"
        try:
            with scratch.open("wb") as file:
                file.write(self._append_entry(transaction, files))
                file.flush()
                os.fsync(file.fileno())
            while True:
                if self.transaction != expected:
                    return False
                try:
                    os.link(scratch, self._entry(self.version + 1))
                    break
                except FileExistsError:
                    self.refresh()
        finally:
            scratch.unlink(missing_ok=True)
        self.refresh()
        return True

    def _append_entry(self, transaction: int, files: Sequence[FileEntry]) -> bytes:
        now_ms = time.time_ns() // 1_000_000
        actions: list[dict[str, Any]] = [
            {"commitInfo": {"timestamp": now_ms, "operation": "WRITE", "operationParameters": {"mode": "Append"},
                            "isBlindAppend": True, **_ENGINE}},
            {"txn": {"appId": self._application, "version": transaction, "lastUpdated": now_ms}}]
        actions += ({"add": {"path": quote(entry.path, safe="/="), "partitionValues": dict(entry.partition_values),
                             "size": entry.size_bytes, "modificationTime": now_ms, "dataChange": True,
                             "stats": entry.stats}} for entry in files)
        return b"".join(msgspec.json.encode(action) + b"\n" for action in actions)

    def _entry(self, version: int) -> Path:
        return self._folder / f"{version:020}.json"

    def _read(self, entry: Path) -> bool:
        """Take in the next entry; False when it was cleaned away or changes the table, which is then opened anew."""
        try:
            lines = entry.read_bytes().splitlines()
        except FileNotFoundError:
            return False
        actions = [msgspec.json.decode(line, type=_Action) for line in lines if line]
        if any(action.meta_data is not None or action.protocol is not None for action in actions):
            self._open()
            return False
        for action in actions:
            if action.txn is not None and action.txn.app_id == self._application:
                self.transaction = action.txn.version
        self.version += 1
        return True

    def _open(self) -> None:
        table = DeltaTable(self._table_folder)
        protocol = table.protocol()
        features = set(protocol.writer_features or ())
        if not features <= _FEATURES or (protocol.min_writer_version > _PLAIN_WRITER_VERSION and not features):
            raise TableFeatureError(str(self._table_folder), sorted(features - _FEATURES)
                                    or [f"writer version {protocol.min_writer_version}"])
        self.version, self.schema = table.version(), table.schema()
        self.transaction = table.transaction_version(self._application) or 0


def last_checkpoint(folder: Path) -> int:
    """The version of a table's newest Delta checkpoint, 0 before the first."""
    try:
        return int(json.loads((folder / "_delta_log" / "_last_checkpoint").read_text())["version"])
    except FileNotFoundError:
        return 0


def sync_log(folder: Path) -> None:
    """See to it that a table's newest log entry is on disk."""
    log = folder / "_delta_log"
    with max(log.glob("*.json")).open("rb") as file:
        os.fsync(file.fileno())
    sync_folder(log)


def remove_scratch(folder: Path) -> None:
    """Remove entries of a table's log that a crash left half-written."""
    for scratch in (folder / "_delta_log").glob(f".*{_SCRATCH_SUFFIX}"):
        if time.time() - scratch.stat().st_mtime > _SCRATCH_LIFE_S:
            scratch.unlink(missing_ok=True)
