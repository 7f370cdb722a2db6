"""The commit protocol: claim a generation, append the pivot, then the tables, and redo what a crash left undone.

PROTOCOL 2, 3 and 12 to 16; the steps are those of "A commit" in docs/protocol.md. Records come from the driver, which
decides when to commit; rows and their files belong to ``weir.state.commit.log``, single tables to
``weir.state.commit.tables``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock

import polars as pl

from weir.state.commit.delta_log import is_append_only
from weir.state.commit.log import COMMITS, commits_above, files_of_log, newest_commit, newest_of, write_row
from weir.state.commit.outbox import outbox_name
from weir.state.commit.record import CommitRecord, SwapNote, TableSwap
from weir.state.commit.removal import remove_tables
from weir.state.commit.rollup import ROLL_UP_EVERY_ROWS, roll_up, rows_to_roll_up
from weir.state.commit.swap import NOTES_KEPT, check_swaps, notes_of
from weir.state.commit.tables import AppendTable, check_files, tombstone_horizon, version_text
from weir.state.commit.upserts import shown_name, upserts_of
from weir.state.errors import (
    EpochLimitError,
    FencedError,
    SwapRefusedError,
    TableAheadError,
    TableBehindError,
    TableLostError,
)
from weir.state.full_disk import is_disk_full
from weir.state.storage.places import Place, folder_at, is_table, table_at
from weir.state.storage.syncs import Syncs
from weir.state.types import FileEntry, TableSpec

__all__ = ["Claim", "Committer", "newest_commit", "redo_appends"]

EPOCHS = 1 << 32
"""As many epochs as ``StateId.version`` has numbers for: 136 years of one a second."""
_ATTEMPTS = 3
_APPEND_THREADS = 16


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a driver starts from: its generation, and the newest commit, None at the very first start."""

    generation: int
    newest: CommitRecord | None


class Committer:
    """One driver's hold on an application: it claims first, then commits until another driver claims.

    ``on_step`` is called at each point where a crash would leave something to redo: ``pivot appended``,
    ``table appended`` (once per table), ``tables evolved`` (in the first commit of a changed program) and ``settled``;
    an append that a claim redoes is ``append redone``.
    """

    def __init__(
        self,
        warehouse: Place,
        application: str,
        tables: Sequence[TableSpec],
        *,
        fingerprint: str,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._app_folder, self._application = warehouse / application, application
        self._specs, self._fingerprint, self._on_step = tuple(tables), fingerprint, on_step
        self._log: AppendTable | None = None
        self._checking = Lock()
        self._tables: dict[str, AppendTable] = {}
        self._upserts: dict[str, AppendTable] = {}
        """The tables that show the standing rows of tables of updates, by the names of those."""
        self._is_evolved = False
        self._table_versions: dict[str, int] = {}
        self._swapped: tuple[SwapNote, ...] = ()
        self._generation = self._last = 0
        self._pending: CommitRecord | None = None
        self._row: tuple[CommitRecord, FileEntry] | None = None
        """The newest record, and the file of its row: a try that got no answer may have appended it."""
        self._appends = ThreadPoolExecutor(_APPEND_THREADS, "append")
        self._upkeep = ThreadPoolExecutor(1, "upkeep")
        self._running: dict[str, Future[object]] = {}
        self._rows_to_roll_up = 0

    def claim(self) -> Claim:
        """Claim the next generation: from now on every older driver is fenced.

        Appends the claim to the log, deletes tables that the newest commit gave up, then redoes what the log promises
        and a table lacks, oldest first. If the newest commit is of this program, or there is none, missing tables are
        created, and all get the columns of their specs. Else they stay as they are until a commit of this program
        stands: a program that commits nothing leaves no trace that stops another (PROTOCOL 34).

        Raises:
            FencedError: Another driver claimed at the same moment.
            TableAheadError: A table has commits that the log lacks.
            TableBehindError, TableLostError: A promised file, or a table's Delta log, is gone.
            TableSchemaError, TableModeError: A table's columns, or its mode, cannot become those of its spec.
        """
        while True:
            log = self._log = AppendTable.create(self._app_folder, COMMITS, self._application)
            log_files = files_of_log(log.folder)
            newest = newest_of(log.folder, log_files)
            self._last, self._generation = log.version, (log.version >> 32) + 1
            self._table_versions = dict(newest.table_versions) if newest else {}
            self._swapped = newest.swapped if newest else ()
            try:
                claim = CommitRecord(
                    kind="claim",
                    generation=self._generation,
                    epoch=newest.epoch if newest else 0,
                    at_ms=time.time_ns() // 1_000_000,
                    fingerprint=self._fingerprint,
                    table_versions=self._table_versions,
                )
                self._append_row(claim, write_row(self._app_folder, claim))
                break
            except FencedError:
                if log.version >> 32 >= self._generation:  # else the older driver has committed again: retry
                    raise
        if newest is not None:
            remove_tables(self._app_folder, newest.removed_tables)
        is_of_this_program = newest is None or newest.fingerprint == self._fingerprint
        self._open_tables()
        if is_of_this_program:
            self._create_tables()
        self._require_no_table_ahead()
        self._redo(log_files)
        if is_of_this_program:
            self._evolve_tables(newest.epoch if newest else 0)
        self._rows_to_roll_up = rows_to_roll_up(log_files)
        self._roll_up_when_due()
        return Claim(generation=self._generation, newest=newest)

    def forget_table(self, name: str) -> None:
        """The next commit promises nothing of this table, which is going to be deleted."""
        self._table_versions.pop(name, None)
        self._tables.pop(name, None)

    def commit(self, record: CommitRecord, confirm: Callable[[], None] = lambda: None) -> None:
        """Make a commit durable: first the row in the log, then its files and swaps in each table.

        ``confirm`` is called just before the pivot, when everything else is ready; an error that it raises leaves
        nothing written. After any error except a fence, call it again with the same record: it resumes where it
        stopped. Swaps belong to one backfill, which has passed ``check_swap``.

        Raises:
            EpochLimitError: There is no number for its epoch; nothing was written.
            FencedError: Another driver has claimed the application; nothing was written.
            TableBehindError: A file that the record names does not exist.
            ValueError: The record is not from this claim, or names a table that was not given.
        """
        if record.epoch >= EPOCHS:
            raise EpochLimitError(self._application, EPOCHS)
        version = record.state_id.version
        if record.generation != self._generation or record.kind != "commit" or version < self._last:
            raise ValueError(
                f"{record.kind} {record.state_id} does not follow {version_text(self._last)} "
                f"in generation {self._generation}"
            )
        # 2. The previous commit finished
        if self._pending is not None:
            self._append_files(self._pending)
        if version == self._last:
            return
        changes = _by_table(record)
        for table in changes.keys() - self._tables.keys() - {spec.name for spec in self._specs}:
            raise ValueError(f"commit {record.state_id} has files of table {table!r}, which the topology does not have")
        table_versions = {**self._table_versions, **dict.fromkeys(changes, version)}
        record = replace(
            record,
            table_versions=table_versions,
            swapped=(*self._swapped, *notes_of(record))[-NOTES_KEPT:],
            format_version=record.needed_format,
        )
        row = self._prepare(record)
        confirm()
        # 4. The pivot
        self._append_row(record, row)
        self._pending, self._table_versions, self._swapped = record, table_versions, record.swapped
        self._on_step("pivot appended")
        # 5. Tables appended
        self._append_files(record)

    def note_of(self, backfill: str) -> SwapNote | None:
        """The note that a backfill was swapped in, if the newest commits still carry one."""
        return next((note for note in self._swapped if note.backfill == backfill), None)

    def check_swap(
        self, note: SwapNote, swaps: Sequence[TableSwap], prepared_at_s: float, sinks: Sequence[str] = ()
    ) -> None:
        """Raise ``SwapRefusedError`` when ``swaps``, all of the backfill that ``note`` is of, or rows of it for
        ``sinks`` outside the warehouse must not be part of the next commit."""
        # 2. The swap checked
        check_swaps(self._application, note, self._swapped, prepared_at_s, only_publishes=not swaps)
        named = {f"output {swap.table!r}": swap.table for swap in swaps}
        for what, table in (named | {f"sink {sink!r}": outbox_name(sink) for sink in sinks}).items():
            if table not in self._tables:
                raise SwapRefusedError(
                    self._application,
                    note.backfill,
                    f"the running program has no {what}; run the backfill's program first",
                )
        for swap in swaps:
            live = table_at(self._app_folder / swap.table)
            if is_append_only(live):
                raise SwapRefusedError(
                    self._application,
                    swap.backfill,
                    f"table {shown_name(swap.table)!r} is append-only (delta.appendOnly); set that property to false, "
                    "and swap it again",
                )
            horizon = tombstone_horizon(live)
            if horizon > swap.cut_epoch:  # its rows would bring back what was deleted since its cut
                raise SwapRefusedError(
                    self._application,
                    swap.backfill,
                    f"compaction has dropped deletions of table {swap.table!r} made after its cut (epoch "
                    f"{swap.cut_epoch}), up to epoch {horizon}; run it again",
                )
            try:
                check_files(self._application, self._app_folder / swap.table, swap.table, self._last, swap.files)
            except TableBehindError as error:
                raise SwapRefusedError(
                    self._application,
                    swap.backfill,
                    f"its file {error.missing} for table {swap.table!r} is gone; swap it again",
                ) from None

    def check_claim(self) -> None:
        """Raise ``FencedError`` if another driver has claimed the application since this one did."""
        log = self._claimed_log()
        with self._checking:
            log.refresh()
        if log.version != self._last:
            raise FencedError(self._application, version_text(self._last), version_text(log.version))

    def close(self) -> None:
        """Wait for checkpoints and roll-ups in progress, and remove the entries of a commit that was not made."""
        self._appends.shutdown()
        self._upkeep.shutdown()
        for table in (*self._tables.values(), *([self._log] if self._log else ())):
            table.close()

    def _prepare(self, record: CommitRecord) -> FileEntry:
        """Write the file of the commit's row, and look for all that the pivot and the appends need: together, since on
        an object store each is asked for by itself."""
        version, looks = record.state_id.version, list[Callable[[], FileEntry | None]]()
        # 3. Files checked
        for table, (files, swaps) in _by_table(record).items():
            named = [*files, *(entry for swap in swaps for entry in swap.files)]
            if table in self._tables:
                looks.append(partial(self._tables[table].prepare, version, named))
                if not swaps:
                    looks.append(partial(self._tables[table].stage, version, files))
            else:
                folder = self._app_folder / table
                looks.append(partial(check_files, self._application, folder, table, version, named))
        looks.append(partial(self._claimed_log().prepare, version, ()))
        if self._row is not None and self._row[0] == record:
            folder_at(self._app_folder).at_once(looks)
            return self._row[1]
        looks.append(partial(self._write_row, record))
        *_, row = folder_at(self._app_folder).at_once(looks)
        assert row is not None
        self._row = record, row
        return row

    def _write_row(self, record: CommitRecord) -> FileEntry:
        """Write the file of a commit's row, and stage the entry that names it: both become durable together, and with
        the entries of the tables."""
        syncs, log = Syncs(), self._claimed_log()
        row = write_row(self._app_folder, record, syncs)
        try:
            log.stage(record.state_id.version, [row])
            syncs.wait()
        except BaseException:
            log.folder.delete([row.path])
            raise
        return row

    def _append_row(self, record: CommitRecord, entry: FileEntry) -> None:
        """Append ``entry``, the file of its row, to the log, from a snapshot that ends with this driver's last row; a
        newer row means it is fenced."""
        log, version = self._claimed_log(), record.state_id.version
        for attempt in range(_ATTEMPTS):
            failure: Exception | None = None
            is_written = False
            try:
                is_written = log.write(version, [entry])
            except Exception as error:
                failure = error
                log.refresh()
            if log.version == version and (is_written or entry.path in files_of_log(log.folder)["path"]):
                break
            if log.version != self._last:
                raise FencedError(self._application, version_text(self._last), version_text(log.version))
            if failure is not None and attempt == _ATTEMPTS - 1:
                if is_disk_full(failure):
                    log.folder.delete([entry.path])  # the next try needs the room
                    self._row = None
                raise failure
        self._last = version
        self._rows_to_roll_up += 1
        self._keep_up(log)

    def _append_files(self, record: CommitRecord) -> None:
        version, is_of_this_program = record.state_id.version, record.fingerprint == self._fingerprint
        if is_of_this_program and not self._is_evolved:
            self._create_tables()
        appends = {
            self._appends.submit(self._tables[table].append, version, files, swaps): self._tables[table]
            for table, (files, swaps) in _by_table(record).items()
        }
        for append in as_completed(appends):
            append.result()
            self._on_step("table appended")
        if is_of_this_program and not self._is_evolved:
            self._evolve_tables(record.epoch)
            self._on_step("tables evolved")
        self._pending = None
        self._on_step("settled")
        # 6. Logs kept short
        for table in appends.values():
            self._keep_up(table)
        self._roll_up_when_due()

    def _open_tables(self) -> None:
        """Open the tables that exist, as they are, and create those whose rows the log promises."""
        shown = {spec.name: upserts_of(spec) for spec in self._specs}
        specs = {spec.name: spec for spec in self._specs}

        def opened(name: str) -> AppendTable | None:
            if is_table(self._app_folder / name):
                return AppendTable(self._app_folder / name, name, self._application)
            if name in specs and name in self._table_versions:
                return AppendTable.create(self._app_folder, specs[name], self._application)
            return None

        names = [*(specs.keys() | self._table_versions.keys())]
        upserts = {name: spec.name for name, spec in shown.items() if spec is not None}
        found = folder_at(self._app_folder).at_once(partial(opened, name) for name in (*names, *upserts.values()))
        self._tables |= {name: table for name, table in zip(names, found, strict=False) if table is not None}
        self._upserts = {
            name: table for name, table in zip(upserts, found[len(names) :], strict=True) if table is not None
        }

    def _create_tables(self) -> None:
        missing = [spec for spec in self._specs if spec.name not in self._tables]
        created = folder_at(self._app_folder).at_once(
            partial(AppendTable.create, self._app_folder, spec, self._application) for spec in missing
        )
        self._tables |= {spec.name: table for spec, table in zip(missing, created, strict=True)}

    def _evolve_tables(self, epoch: int) -> None:
        """Give tables the columns of their specs, and create those that show them; where keys change, rows from
        ``epoch`` on stay."""

        def evolved(spec: TableSpec) -> AppendTable | None:
            shown = AppendTable.create_upserts(self._app_folder, spec, self._application)
            table = self._tables[spec.name]
            table.refresh()
            table.evolve(self._app_folder, spec, epoch=epoch, check=self.check_claim)
            return shown

        found = folder_at(self._app_folder).at_once(partial(evolved, spec) for spec in self._specs)
        self._upserts |= {spec.name: shown for spec, shown in zip(self._specs, found, strict=True) if shown is not None}
        self._is_evolved = True

    def _require_no_table_ahead(self) -> None:
        for name, table in (*self._tables.items(), *self._upserts.items()):
            promised = self._table_versions.get(name, 0)
            if table.version > promised:
                self.check_claim()  # else a newer driver has committed meanwhile
                raise TableAheadError(
                    self._application,
                    table.name,
                    version_text(table.version),
                    version_text(promised) if promised else "none",
                )

    def _redo(self, log_files: pl.DataFrame) -> None:
        folder = self._claimed_log().folder
        for name, table in self._tables.items():
            redo_appends(
                table, self._table_versions.get(name, 0), folder, log_files, lambda: self._on_step("append redone")
            )

    def _keep_up(self, table: AppendTable) -> None:
        """Write a checkpoint when one is due."""
        if table.is_checkpoint_due():
            self._later(table.name, table.checkpoint)

    def _roll_up_when_due(self) -> None:
        """Called only when no table is behind the log: then every table has what the rows so far list."""
        if self._rows_to_roll_up >= ROLL_UP_EVERY_ROWS and self._later(
            "roll-up", roll_up, self._app_folder, self._last
        ):
            self._rows_to_roll_up = 0

    def _later(self, name: str, work: Callable[..., object], *arguments: object) -> bool:
        """Run ``work`` off the hot path, one per name at a time; a failure costs only speed, until the next try."""
        running = self._running.get(name)
        if running is not None and not running.done():
            return False
        self._running[name] = self._upkeep.submit(work, *arguments)
        return True

    def _claimed_log(self) -> AppendTable:
        if self._log is None:
            raise ValueError(f"application {self._application!r} has not been claimed: call claim() first")
        return self._log


def redo_appends(
    table: AppendTable,
    promised: int,
    log_folder: Place,
    log_files: pl.DataFrame,
    on_append: Callable[[], None] = lambda: None,
) -> None:
    """Bring a table up to the version that the commit log promises for it, oldest append first.

    Any process may do so at any time, even beside a driver: if two append the same commit, Delta's transaction lets one
    through. ``log_files`` are the log's files.

    Raises:
        TableBehindError: A promised file is gone.
        TableLostError: The table lacks commits whose files the log no longer lists.
    """
    if table.version >= promised:
        return
    for record in commits_above(log_folder, log_files, table.version):
        if record.is_rolled_up and record.table_versions.get(table.name, 0) > table.version:
            raise TableLostError(table.application, table.name, version_text(table.version), version_text(promised))
        if table.name in (changes := _by_table(record)):
            table.append(record.state_id.version, *changes[table.name])
            on_append()


def _by_table(record: CommitRecord) -> dict[str, tuple[list[FileEntry], list[TableSwap]]]:
    """The files and swaps that a commit brings to each table it changes."""
    grouped: defaultdict[str, tuple[list[FileEntry], list[TableSwap]]] = defaultdict(lambda: ([], []))
    for entry in record.files:
        grouped[entry.table][0].append(entry)
    for swap in record.swaps:
        grouped[swap.table][1].append(swap)
    return grouped
