"""Tables of upserts: one row per live key, brought up to date from the table of updates that commits write.

Readers need no knowledge of Weir. The commit row stays the only pivot (PROTOCOL 33): a refresh reads what the updates
table holds, and writes it in one Delta entry under the application's transaction, at the version of the commit up to
which it reflects the updates. So a refresh may die anywhere, be repeated, or be overtaken, and a table never goes back.
The steps are those of "A refresh" in docs/protocol.md. When to refresh is up to the caller; creating the table belongs
to ``weir.state.commit.tables``.

Files are rewritten only if they hold a changed key. Full files hold the oldest windows, or whatever was written first,
so in a windowed table a refresh leaves most of them alone. A merge by delta-rs takes as long, but syncs neither its
files nor its entry to disk (PROTOCOL 13).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl
from deltalake import DeltaTable

from weir.state.changelog.merging import HELD_ROWS, batches, merged_updates
from weir.state.commit.columns import differences
from weir.state.commit.evolution import UPDATES_PROPERTY
from weir.state.commit.files import read_files, stored_schema, write_file
from weir.state.commit.log import COMMITS, newest_of
from weir.state.commit.swap import NOTES_KEPT
from weir.state.commit.tables import (
    AppendTable,
    file_actions,
    key_columns,
    newest_of_each_key,
    standing_rows,
    tombstone_horizon,
)
from weir.state.commit.upserts import upserts_of
from weir.state.errors import UpsertsBusyError
from weir.state.storage.places import Place, is_table, table_at, tables_in
from weir.state.types import FileEntry, TableSpec

log = logging.getLogger("weir.upserts")

ROWS_A_FILE = 250_000
"""The most rows of a file; files with less than half are merged whenever rows are added."""
VACUUM_EVERY_S = 60.0
_ATTEMPTS = 5
_EPOCH_BITS = 0xFFFF_FFFF


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """What a refresh did."""

    epoch: int
    """The epoch of the commit up to which the table now shows the updates."""
    files_before: int
    files_written: int
    rows_written: int


class Upserts:
    """One table of upserts, and the updates that it shows.

    ``on_step`` is called at each point where a crash would leave something to redo: ``upserts written``,
    ``upserts replaced`` and ``upserts cleaned``.
    """

    def __init__(
        self,
        app_folder: Place,
        updates: TableSpec,
        application: str,
        *,
        rows_a_file: int = ROWS_A_FILE,
        held_rows: int = HELD_ROWS,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        """Open the table that shows ``updates``, creating it if it is missing; nothing is read of the updates yet.

        Raises:
            TableModeError, TableSchemaError: The table was written in another mode, or has other columns.
            ValueError: No table shows these updates.
        """
        shown = upserts_of(updates)
        table = AppendTable.create_upserts(app_folder, updates, application)
        if shown is None or table is None:
            raise ValueError(f"table {updates.name!r} is read as it is")
        self._app_folder, self._application, self._on_step = app_folder, application, on_step
        self._updates, self._keys, self._shown, self._table = updates, list(updates.keys), shown, table
        self._order = sorted(self._keys, key=lambda name: name != "window_start")
        self._rows_a_file, self._held_rows = rows_a_file, held_rows
        self._vacuumed_at_s: float | None = None

    def refresh(self) -> Refreshed | None:
        """Show the updates up to the newest commit that their table has; None if the table already does.

        Any process may do so at any time, even beside a driver. Once the tables have got columns from a later program,
        nothing is written here: its driver keeps them up to date.

        Raises:
            UpsertsBusyError: Another writer was quicker, several times in a row.
        """
        for _ in range(_ATTEMPTS):
            # 1. Both tables read as they are
            updates = table_at(self._app_folder / self._updates.name)
            version = updates.transaction_version(self._application) or 0
            self._table.refresh()
            if self._table.version >= version:
                self._clean()
                return None
            if self._is_of_earlier_program(updates):
                return None
            done = self._refresh(updates, version)
            if done is not None:
                self._clean()
                return done
        raise UpsertsBusyError(self._shown.name, _ATTEMPTS)

    def _is_of_earlier_program(self, updates: DeltaTable) -> bool:
        """Whether the tables have other columns than when they were opened here."""
        tables = ((self._updates, updates), (self._shown, self._table.snapshot()))
        return any(differences(pl.scan_delta(table).collect_schema(), stored_schema(spec)) for spec, table in tables)

    def _refresh(self, updates: DeltaTable, version: int) -> Refreshed | None:
        """None, with nothing changed, if another writer was quicker."""
        before = file_actions(self._table.snapshot())
        changed = self._changed(updates, version)
        # 3. Files written
        added: list[FileEntry] = []
        try:
            if changed is None:
                removed = before
                self._write_all(updates, added)
            else:
                removed = self._rewrite(before, changed, added)
        except Exception:  # a full disk, for example
            self._delete(added)
            raise
        self._on_step("upserts written")
        # 4. One Delta entry
        if not self._table.replace(version, added, removed):
            self._delete(added)
            return None
        if self._table.version < version:  # an entry that nobody reads, under a number that was cleaned up
            return None
        self._on_step("upserts replaced")
        return Refreshed(
            epoch=version & _EPOCH_BITS,
            files_before=before.height,
            files_written=len(added),
            rows_written=sum(entry.rows for entry in added),
        )

    def _changed(self, updates: DeltaTable, version: int) -> pl.DataFrame | None:
        """The newest row, deleted or not, of each key that commits have changed since; None if that is too much, or
        cannot be told from rows alone."""
        # 2. Changes found
        since = self._table.version & _EPOCH_BITS
        if not self._table.version or tombstone_horizon(updates) > since or self._was_swapped(since, version):
            return None
        files = file_actions(updates, ranges=["_epoch"])
        if files.is_empty():
            return None
        files = files.filter((pl.col("max._epoch") > since).fill_null(True))
        columns = pl.scan_delta(updates).collect_schema()
        held = pl.DataFrame(schema=columns)
        if files.is_empty():
            return held
        for names in batches(files, self._held_rows):
            rows = read_files(self._app_folder / self._updates.name, names, columns).filter(pl.col("_epoch") > since)
            held = newest_of_each_key(pl.concat([held, rows]), self._keys)
            if held.height > self._held_rows:
                return None
        return held

    def _was_swapped(self, since: int, version: int) -> bool:
        """Whether a backfill has replaced updates since that epoch: its rows do not have the commit's epoch."""
        folder = self._app_folder / COMMITS.name
        newest = newest_of(folder, file_actions(table_at(folder)))
        notes = newest.swapped if newest else ()
        if len(notes) == NOTES_KEPT and notes[0].epoch > since:
            return True
        return any(since < note.epoch <= version & _EPOCH_BITS and self._updates.name in note.tables for note in notes)

    def _write_all(self, updates: DeltaTable, added: list[FileEntry]) -> None:
        """Write everything anew, in bounded memory."""
        files = file_actions(updates)
        if files.is_empty():
            return
        folder, columns = self._app_folder / self._updates.name, pl.scan_delta(updates).collect_schema()
        for newest in merged_updates(folder, files, columns, self._keys, self._held_rows):
            self._write(standing_rows(newest, self._keys), added)

    def _rewrite(self, files: pl.DataFrame, changed: pl.DataFrame, added: list[FileEntry]) -> pl.DataFrame:
        """Write the files that hold changed keys anew, with small ones if rows are added; returns those replaced."""
        keys, standing = changed.select(self._keys), standing_rows(changed, self._keys)
        found = [keys.clear()]
        touched: list[str] = []
        for path in self._may_hold(files, keys)["path"]:
            held = self._read(path, self._keys).join(keys, on=self._keys, how="semi", nulls_equal=True)
            if held.height:
                touched.append(path)
                found.append(held)
        new = standing.join(pl.concat(found), on=self._keys, how="anti", nulls_equal=True)
        is_touched, is_small = pl.col("path").is_in(touched), pl.col("num_records") < self._rows_a_file // 2
        small = files.filter(is_touched & is_small)
        if new.height or small.height:
            room = self._rows_a_file - new.height - int(small["num_records"].sum())
            others = files.filter(~is_touched & is_small).sort("num_records", "path")
            small = pl.concat([small, others.filter(pl.col("num_records").cum_sum() <= room)])
        full = files.filter(is_touched & ~is_small)
        for path in full["path"]:
            self._write(self._updated(path, keys, standing), added)
        merged = [self._updated(path, keys, standing) for path in small["path"]]
        self._write(pl.concat([*merged, self._columns(new)]), added)
        return pl.concat([full, small])

    def _updated(self, path: str, keys: pl.DataFrame, standing: pl.DataFrame) -> pl.DataFrame:
        """A file's rows with those of changed keys as they are now."""
        rows = self._columns(self._read(path))
        kept = rows.join(keys, on=self._keys, how="anti", nulls_equal=True)
        if kept.height == rows.height:
            return rows
        updated = standing.join(rows.select(self._keys), on=self._keys, how="semi", nulls_equal=True)
        return pl.concat([kept, self._columns(updated)])

    def _may_hold(self, files: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
        """The files that may hold one of ``keys``, by their statistics."""
        for name in self._keys:
            column = keys[name]
            is_ranged = column.dtype.is_integer() or column.dtype in (pl.Datetime, pl.String)
            if column.is_empty() or column.null_count() or not is_ranged or f"max.{name}" not in files.columns:
                continue
            least, greatest = keys.select(pl.col(name).min().alias("least"), pl.col(name).max().alias("greatest"))
            files = files.filter(
                (pl.col(f"max.{name}") >= pl.lit(least)).fill_null(True)
                & (pl.col(f"min.{name}") <= pl.lit(greatest)).fill_null(True)
            )
        return files

    def _write(self, rows: pl.DataFrame, added: list[FileEntry]) -> None:
        """Write rows into new files, the oldest windows first, so that full files are those that no longer change."""
        ordered = self._columns(rows).sort(self._order)
        for part in ordered.iter_slices(self._rows_a_file) if ordered.height else ():
            added.append(write_file(self._app_folder, self._shown, part))

    def _delete(self, added: Iterable[FileEntry]) -> None:
        """Delete new files that the table does not have."""
        self._table.folder.delete(entry.path for entry in added)

    def _read(self, path: str, columns: Sequence[str] | None = None) -> pl.DataFrame:
        stored = stored_schema(self._shown)
        wanted = stored if columns is None else pl.Schema({name: stored[name] for name in columns})
        return read_files(self._table.folder, [path], wanted)

    def _columns(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.select(pl.col(name).cast(dtype) for name, dtype in stored_schema(self._shown).items())

    def _clean(self) -> None:
        """Delete files that left the table longer ago than its property says, and write a Delta checkpoint when due."""
        is_due = self._table.is_checkpoint_due()
        now_s = time.monotonic()
        if not is_due and self._vacuumed_at_s is not None and now_s - self._vacuumed_at_s < VACUUM_EVERY_S:
            return
        # 5. Replaced files deleted: before a checkpoint, which forgets them
        self._table.folder.delete(table_at(self._table.folder).vacuum(dry_run=True))
        self._vacuumed_at_s = now_s
        if is_due:
            self._table.checkpoint()
        self._on_step("upserts cleaned")


def updates_but(app_folder: Place, known: Collection[str]) -> Iterator[TableSpec]:
    """The updates, as they are, that tables of upserts in the folder show, without those named in ``known``."""
    for shown in tables_in(app_folder):
        name = table_at(app_folder / shown).metadata().configuration.get(UPDATES_PROPERTY)
        if name is not None and name not in known and is_table(app_folder / name):
            updates = table_at(app_folder / name)
            keys = tuple(key_columns(updates))
            yield TableSpec(name=name, schema=pl.scan_delta(updates).collect_schema(), keys=keys)


def refresh_at_rest(app_folder: Place, tables: Iterable[TableSpec], application: str) -> None:
    """Refresh every table that shows one of ``tables``, after a commit that no driver made.

    A failure is logged; the next start makes up for it.
    """
    for spec in tables:
        if upserts_of(spec) is None:
            continue
        try:
            Upserts(app_folder, spec, application).refresh()
        except Exception:
            log.warning("%s could not be brought up to date; the next start tries again", spec.name, exc_info=True)
