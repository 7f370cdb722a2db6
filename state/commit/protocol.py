"""The commit protocol: claim a generation, append the pivot, then the tables, and redo what a crash left.

PROTOCOL 2, 3 and 12 to 16 are the law here. Records come from the driver, which alone knows when to commit;
rows and their files are ``state.commit.log``, single tables ``state.commit.tables``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from deltalake import DeltaTable

from state.commit.log import COMMITS, commits_above, newest_commit, newest_of, write_row
from state.commit.record import CommitRecord
from state.commit.tables import AppendTable, version_text
from state.errors import FencedError
from state.types import FileEntry, TableSpec

__all__ = ["Claim", "Committer", "newest_commit"]

_ATTEMPTS = 3
_APPEND_THREADS = 4


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a driver starts from: its generation, and the newest commit, None at the very first start."""

    generation: int
    newest: CommitRecord | None


class Committer:
    """One driver's hold on an application: it claims first, then commits until another driver claims.

    ``on_step`` is called at every point between which a crash leaves something to redo: ``pivot appended``,
    ``table appended`` (once a table) and ``settled``; redoing one after a crash is ``append redone``.
    """

    def __init__(self, warehouse: Path, application: str, tables: Sequence[TableSpec], *, fingerprint: str,
                 on_step: Callable[[str], None] = lambda step: None) -> None:
        self._app_folder, self._application = warehouse / application, application
        self._specs, self._fingerprint, self._on_step = tuple(tables), fingerprint, on_step
        self._log: AppendTable | None = None
        self._tables: dict[str, AppendTable] = {}
        self._table_versions: dict[str, int] = {}
        self._generation = self._last = 0
        self._pending: CommitRecord | None = None
        self._appends = ThreadPoolExecutor(_APPEND_THREADS, "append")
        self._upkeep = ThreadPoolExecutor(1, "checkpoint")
        self._checkpoints: dict[str, Future[None]] = {}

    def claim(self) -> Claim:
        """Take the application over: from now on every older driver is fenced.

        Appends the claim to the log, makes missing tables, then redoes what the log promised and a table lacks,
        oldest first.

        Raises:
            FencedError: Another driver claimed at the same moment.
            TableBehindError: A promised file is gone.
            TableSchemaError: A table has other columns than its spec.
        """
        while True:
            log = self._log = AppendTable.create(self._app_folder, COMMITS, self._application)
            newest = newest_of(log.folder, log.files())
            self._last, self._generation = log.version, (log.version >> 32) + 1
            self._table_versions = dict(newest.table_versions) if newest else {}
            try:
                self._append_row(CommitRecord(
                    kind="claim", generation=self._generation, epoch=newest.epoch if newest else 0,
                    at_ms=time.time_ns() // 1_000_000, fingerprint=self._fingerprint,
                    table_versions=self._table_versions))
                break
            except FencedError:
                if log.version >> 32 >= self._generation:  # else the driver taken over from has committed once more
                    raise
        self._open_tables()
        self._redo()
        return Claim(generation=self._generation, newest=newest)

    def commit(self, record: CommitRecord) -> None:
        """Make a commit durable: first the row in the log, then its files in each table.

        May be called again with the same record after any error but a fence: it goes on where it stopped.

        Raises:
            FencedError: Another driver has claimed the application; nothing was written.
            TableBehindError: A file that the record names does not exist.
            ValueError: The record is not of this claim, or names a table that was not given.
        """
        version = record.state_id.version
        if record.generation != self._generation or record.kind != "commit" or version < self._last:
            raise ValueError(f"{record.kind} {record.state_id} does not follow {version_text(self._last)} "
                             f"in generation {self._generation}")
        if self._pending is not None:
            self._append_files(self._pending)
        if version == self._last:
            return
        by_table = _by_table(record.files)
        for table, files in by_table.items():
            if table not in self._tables:
                raise ValueError(f"commit {record.state_id} has files of table {table!r}, which is not the topology's")
            self._tables[table].check_files(version, files)
        table_versions = {**self._table_versions, **dict.fromkeys(by_table, version)}
        record = replace(record, table_versions=table_versions)
        self._append_row(record)
        self._pending, self._table_versions = record, table_versions
        self._on_step("pivot appended")
        self._append_files(record)

    def check_claim(self) -> None:
        """Raise ``FencedError`` when another driver has claimed the application since."""
        log = self._claimed_log()
        log.refresh()
        if log.version != self._last:
            raise FencedError(self._application, version_text(self._last), version_text(log.version))

    def close(self) -> None:
        """Wait for checkpoints that are being written."""
        self._appends.shutdown()
        self._upkeep.shutdown()

    def _append_row(self, record: CommitRecord) -> None:
        """Append to the log from a snapshot that holds my last row and nothing newer, else I am fenced."""
        log, version = self._claimed_log(), record.state_id.version
        entry = write_row(self._app_folder, record)
        for attempt in range(_ATTEMPTS):
            failure: Exception | None = None
            try:
                log.write(version, [entry])
            except Exception as error:
                failure = error
            log.refresh()
            if log.version == version and (failure is None or entry.path in log.files()["path"]):
                break
            if log.version != self._last:
                raise FencedError(self._application, version_text(self._last), version_text(log.version))
            if failure is not None and attempt == _ATTEMPTS - 1:
                raise failure
        self._last = version
        self._checkpoint_when_due(log)

    def _append_files(self, record: CommitRecord) -> None:
        version = record.state_id.version
        appends = {self._appends.submit(self._tables[table].append, version, files): self._tables[table]
                   for table, files in _by_table(record.files).items()}
        for append in as_completed(appends):
            append.result()
            self._on_step("table appended")
        self._pending = None
        self._on_step("settled")
        for table in appends.values():
            self._checkpoint_when_due(table)

    def _open_tables(self) -> None:
        self._tables = {spec.name: AppendTable.create(self._app_folder, spec, self._application)
                        for spec in self._specs}
        for name in self._table_versions.keys() - self._tables.keys():  # written by an earlier topology
            if DeltaTable.is_deltatable(str(self._app_folder / name)):
                self._tables[name] = AppendTable(self._app_folder / name, name, self._application)

    def _redo(self) -> None:
        log = self._claimed_log()
        for name, table in self._tables.items():
            if table.version >= self._table_versions.get(name, 0):
                continue
            for record in commits_above(log.folder, log.files(), table.version):
                if files := _by_table(record.files).get(name):
                    table.append(record.state_id.version, files)
                    self._on_step("append redone")

    def _checkpoint_when_due(self, table: AppendTable) -> None:
        """Off the hot path, one at a time; a failure costs speed only and shows at the next one."""
        running = self._checkpoints.get(table.name)
        if table.is_checkpoint_due() and (running is None or running.done()):
            self._checkpoints[table.name] = self._upkeep.submit(table.checkpoint)

    def _claimed_log(self) -> AppendTable:
        if self._log is None:
            raise ValueError(f"application {self._application!r} is not claimed yet: call claim() first")
        return self._log


def _by_table(files: Sequence[FileEntry]) -> dict[str, list[FileEntry]]:
    grouped: defaultdict[str, list[FileEntry]] = defaultdict(list)
    for entry in files:
        grouped[entry.table].append(entry)
    return grouped
