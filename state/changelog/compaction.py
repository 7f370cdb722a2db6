"""Compaction: an application's tables in fewer files, beside its driver, which neither waits for it nor notices.

Changelogs and tables of updates keep the newest row per key (as Kafka's log cleaner does), facts keep all rows, the
commit log's old rows are rolled up. Files are replaced in one Delta commit that names exactly the files that were read,
so appends, other compactions and a kill at any moment leave every table right. The steps are those of "A compaction" in
docs/protocol.md. Merging rows belongs to ``weir.state.changelog.merging``, deleting from disk to
``weir.state.commit.vacuum``; when to compact is up to the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import polars as pl
from deltalake import DeltaTable

from weir.state.changelog.merging import Merge, Merged, merged, packs
from weir.state.changelog.rows import SEGMENT_EPOCHS, partition_of_rows
from weir.state.commit.checkpoints import LOG, NO_HOOKS, entry_name
from weir.state.commit.columns import differences
from weir.state.commit.damage import naming_damage
from weir.state.commit.delta_log import is_append_only, replace_files
from weir.state.commit.evolution import TOMBSTONE_HORIZON, is_upserts
from weir.state.commit.files import MERGED, partition_text, scan_as_written
from weir.state.commit.layout import Layout
from weir.state.commit.log import COMMITS, commit_times, newest_of
from weir.state.commit.outbox import OUTBOX_FOLDER, REFUSED_FOLDER
from weir.state.commit.protocol import redo_appends
from weir.state.commit.removal import table_id
from weir.state.commit.rollup import roll_up
from weir.state.commit.tables import (
    AppendTable,
    file_actions,
    key_columns,
    tombstone_horizon,
)
from weir.state.commit.upserts import UPDATES_FOLDER
from weir.state.commit.vacuum import vacuum
from weir.state.commit.widening import is_wider
from weir.state.errors import AppendOnlyError
from weir.state.storage.contract import Folder
from weir.state.storage.places import Place, folder_at, table_at, tables_in
from weir.state.types import CHANGELOG_FOLDER, TableSpec

TOMBSTONE_RETENTION_MS = 24 * 3600 * 1000
_ATTEMPTS = 3
_WAITING = (OUTBOX_FOLDER, REFUSED_FOLDER)
"""Tables whose rows wait for an outside system, in the order of their files: these are cleaned, and never merged."""


@dataclass(frozen=True, kw_only=True)
class TableReport:
    """What a compaction did, or would do, to one table."""

    table: str
    """The path below the application's folder."""
    files_before: int
    rows_before: int
    bytes_before: int
    files_after: int
    rows_after: int
    bytes_after: int
    seconds: float
    """How long it took; 0 if it is only planned."""
    files_deleted: int
    """Files of earlier compactions and crashes, deleted from disk."""
    is_append_only: bool
    """Whether its files stay as they are because a merge would drop rows, which its owner forbids."""


class Compaction:
    """One run over an application's tables.

    ``is_whole`` merges everything that is committed; otherwise changelogs keep their open segment, the newest
    ``SEGMENT_EPOCHS`` epochs, as it is (PROTOCOL 22), which suits a running application. Both are safe beside a driver,
    since appends only bring newer epochs; the open segment stays so that reads as of a recent commit find it, and to
    save work. ``merge`` merges files, by default in this process. ``on_progress`` gets a table's rows read, its rows to
    read, and its name; ``on_step`` is for tests that kill.
    """

    def __init__(
        self,
        warehouse: Place,
        application: str,
        *,
        is_whole: bool,
        tombstone_retention_ms: int = TOMBSTONE_RETENTION_MS,
        merge: Callable[[Merge], Merged] = merged,
        on_progress: Callable[[int, int, str], None] = lambda done, total, table: None,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._app_folder, self._application, self._is_whole = folder_at(warehouse) / application, application, is_whole
        self._merged, self._on_progress, self._on_step = merge, on_progress, on_step
        self._tombstone_retention_ms = tombstone_retention_ms
        self._deletions_through = self._claimed_at_ms = 0

    def tables(self) -> list[str]:
        """The existing changelogs, outputs, outboxes and dead letters, sorted; ``run`` adds the commit log at the
        end."""
        below = [
            f"{folder}/{name}"
            for folder in (CHANGELOG_FOLDER, UPDATES_FOLDER, *_WAITING)
            for name in tables_in(self._app_folder / folder)
        ]
        return sorted([*(name for name in tables_in(self._app_folder) if name != COMMITS.name), *below])

    def plan(self, tables: Sequence[str]) -> list[TableReport]:
        """The tables as they are, each with the files it would have left if every merge left one; changes nothing."""
        reports = []
        for name in tables:
            table = table_at(self._app_folder / name)
            before = file_actions(table)
            merges = self._merges(name, table, before)
            left = before.height - sum(merge.files.height - 1 for merge in merges)
            reports.append(replace(_report(name, table, before, before, 0), files_after=left))
        return reports

    def run(self, tables: Sequence[str]) -> Iterator[TableReport]:
        """Redo what the commit log has for the tables, compact each, then the commit log; yields a report for each.

        A table that is removed meanwhile is left out.

        Raises:
            TableBehindError, TableLostError: A table cannot be brought up to what the commit log promises.
        """
        # 1. Deadlines read: before the redo, since a later claim may not have redone its appends yet
        log = self._app_folder / COMMITS.name
        with naming_damage(log):
            times = commit_times(table_at(log))
        self._deletions_through = _newest_epoch(times, time.time_ns() // 1_000_000 - self._tombstone_retention_ms)
        self._claimed_at_ms = _claimed_at_ms(times)
        log_files = file_actions(table_at(log))
        newest = newest_of(log, log_files)
        if newest is None:
            return
        # 2. Appends redone
        for name, promised in newest.table_versions.items():
            with self._unless_removed(name) as is_there:
                if is_there:
                    table = AppendTable(self._app_folder / name, name, self._application)
                    redo_appends(table, promised, log, log_files)
        for name in tables:
            with self._unless_removed(name) as is_there:
                if is_there:
                    yield self._compact(name)
        # 8. The commit log rolled up
        before, began_s = file_actions(table_at(log)), time.monotonic()
        roll_up(self._app_folder, newest.state_id.version)
        yield self._clean(COMMITS.name, before, began_s)

    @contextmanager
    def _unless_removed(self, name: str) -> Iterator[bool]:
        """Whether there is such a table; errors that come of its removal meanwhile end the block."""
        before = table_id(self._app_folder / name)
        try:
            yield before is not None
        except Exception:
            if before == table_id(self._app_folder / name):
                raise

    def _compact(self, name: str) -> TableReport:
        began_s, folder = time.monotonic(), self._app_folder / name
        table = table_at(folder)
        # 3. Files chosen
        before = file_actions(table)
        merges = [
            merge
            for merge in self._merges(name, table, before)
            if _has_columns_of(folder, merge.files, merge.spec.schema)
        ]
        done, total = 0, sum(merge.rows for merge in merges)
        for merge in merges:
            self._on_progress(done, total, name)
            self._merge(merge)
            done += merge.rows
        self._on_progress(total, total, name)
        return self._clean(name, before, began_s)

    def _merge(self, merge: Merge) -> None:
        # 4. Rows merged
        folder = self._app_folder / merge.spec.name
        done = self._merged(merge)
        self._on_step("rows written")
        # 5. The horizon raised
        if done.forgotten:
            raise_horizon(folder, done.forgotten)
            self._on_step("horizon raised")
        # 6. Files replaced: unless another compaction was quicker, or the table has become append-only
        with suppress(AppendOnlyError):
            replace_files(folder, merge.files, done.files, is_data_changed=bool(merge.spec.keys))
        self._on_step("files replaced")

    def _merges(self, name: str, table: DeltaTable, files: pl.DataFrame) -> list[Merge]:
        is_waiting = name.partition("/")[0] in _WAITING
        if files.is_empty() or is_waiting or is_upserts(Layout.of(table)):  # whose refreshes merge its files
            return []
        spec = TableSpec(
            name=name,
            schema=pl.scan_delta(table).collect_schema(),
            keys=tuple(key_columns(table)),
            partition_by=tuple(table.metadata().partition_columns),
            has_partition_columns=not is_changelog(name),
        )

        def merge(files: pl.DataFrame, partition: Mapping[str, str | None] | None = None) -> Merge:
            return Merge(
                app_folder=self._app_folder,
                spec=spec,
                version=table.version(),
                files=files,
                partition=partition or {},
                deletions_through=self._deletions_through,
            )

        if not spec.keys:
            partitions = [column for column in files.columns if column.startswith("partition.")]
            parts = files.partition_by(partitions) if partitions else [files]
            return [merge(pack) for part in parts for pack in packs(part)]
        if _must_keep_rows(name, table):
            return []
        if not is_changelog(name):
            return [merge(files)] if _has_news(files) else []
        closed = files if self._is_whole else files.filter(pl.col("partition.segment") < self._open_segment(table))
        return [
            merge(
                of_task,
                {
                    "task": of_task.sort("max._epoch")["partition.task"][-1],
                    "segment": partition_text(of_task["partition.segment"].max()),  # type: ignore[arg-type]
                },
            )
            for _, of_task in closed.group_by(partition_of_rows().alias("partition"), maintain_order=True)
            if _has_news(of_task)
        ]

    def _open_segment(self, table: DeltaTable) -> int:
        """The first segment that the newest driver may still write to: its epochs are above the committed ones."""
        return ((table.transaction_version(self._application) or 0) & 0xFFFF_FFFF) // SEGMENT_EPOCHS

    def _clean(self, name: str, before: pl.DataFrame, began_s: float) -> TableReport:
        # 7. Old files deleted
        table = AppendTable(self._app_folder / name, name, self._application)
        deleted = vacuum(table.folder, self._claimed_at_ms)
        _remove_empty_segments(table.folder, self._open_segment(table_at(table.folder)))
        after = table.files()
        if after.height < before.height:
            table.checkpoint()
        self._on_step("cleaned")
        seconds = time.monotonic() - began_s
        return replace(_report(name, table_at(table.folder), before, after, deleted), seconds=round(seconds, 3))


def is_changelog(table: str) -> bool:
    """Whether a table is a changelog, whose partitions are tasks and segments of epochs."""
    return table.partition("/")[0] == CHANGELOG_FOLDER


def _has_columns_of(folder: Place, files: pl.DataFrame, columns: pl.Schema) -> bool:
    """Whether a table with these columns has a place for all that its files hold.

    It has none while a commit of another program has brought files, and the table has yet to get its columns: merged
    rows would lack them.
    """
    return not any(
        each.now is None or (each.before is not None and is_wider(each.now, each.before))
        for path in files["path"]
        for each in differences(scan_as_written(folder, [path]).collect_schema(), columns)
    )


def _has_news(files: pl.DataFrame) -> bool:
    """Whether there are files of single epochs, which appends bring, to merge with others.

    A large table is several files even after a merge, and one of those may hold a single epoch too: its name tells.
    """
    is_appended = (pl.col("min._epoch") == pl.col("max._epoch")) & ~pl.col("path").str.contains(f"(^|/){MERGED}")
    return files.height > 1 and files.filter(is_appended).height > 0


def _remove_empty_segments(folder: Folder, open_segment: int) -> None:
    """Remove a changelog's folders of closed segments that vacuum has emptied: nobody writes to them any more.

    Merged rows go into folders that still hold files of the table. Tasks' folders stay, since they get new segments.
    """
    for task in folder.folders():
        for segment in (folder / task).folders() if task.startswith("task=") else ():
            number = segment.removeprefix("segment=")
            if number.isdecimal() and int(number) < open_segment:
                (folder / task).remove_empty(segment)


def raise_horizon(folder: Place, epoch: int) -> None:
    """Say in a table's properties, durably, up to which epoch deletions may be missing."""
    for attempt in range(_ATTEMPTS):
        table = table_at(folder)
        if tombstone_horizon(table) >= epoch:
            return
        try:
            table.alter.set_table_properties(
                {TOMBSTONE_HORIZON: str(epoch)}, raise_if_not_exists=False, post_commithook_properties=NO_HOOKS
            )
            (folder_at(folder) / LOG).sync([entry_name(table.version())])
        except Exception:  # when two change a table's properties at the same time, Delta refuses one
            if attempt == _ATTEMPTS - 1:
                raise


def _newest_epoch(times: pl.DataFrame, before_ms: int) -> int:
    """The newest epoch committed at ``before_ms`` or earlier; 0 if there is none."""
    old = times.filter((pl.col("kind") == "commit") & (pl.col("at").dt.timestamp("ms") <= before_ms))
    return max(old["epoch"], default=0)


def _claimed_at_ms(times: pl.DataFrame) -> int:
    """When the newest driver claimed the application."""
    newest = times.filter(kind="claim").sort("generation").tail(1)
    return int(newest["at"].dt.timestamp("ms").item()) if newest.height else 0


def _must_keep_rows(name: str, table: DeltaTable) -> bool:
    """Whether its owner forbids what a compaction does to it: a merge drops rows that a newer one of their key
    replaces, and a roll-up what old rows list."""
    return is_append_only(table) and bool(key_columns(table) or name == COMMITS.name)


def _report(name: str, table: DeltaTable, before: pl.DataFrame, after: pl.DataFrame, files_deleted: int) -> TableReport:
    def total(files: pl.DataFrame, column: str) -> int:
        return int(files[column].sum()) if files.height else 0

    return TableReport(
        table=name,
        files_before=before.height,
        rows_before=total(before, "num_records"),
        bytes_before=total(before, "size_bytes"),
        files_after=after.height,
        rows_after=total(after, "num_records"),
        bytes_after=total(after, "size_bytes"),
        seconds=0.0,
        files_deleted=files_deleted,
        is_append_only=_must_keep_rows(name, table),
    )
