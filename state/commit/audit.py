"""Compares the newest commits with each other and with the tables: exactly once, checked after the fact.

Changes nothing and may run beside a driver. Whether stores agree with their changelogs is
``weir.state.changelog.verify``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import polars as pl
from deltalake import DeltaTable

from weir.state.commit.damage import naming_damage
from weir.state.commit.log import COMMITS, commits_above, newest_of
from weir.state.commit.record import LOST_RECORDS_ACCEPTED, CommitRecord, TaskCommit
from weir.state.commit.tables import AppendTable, file_actions, key_columns, scan_table
from weir.state.storage.places import Place, is_table, table_at
from weir.state.types import FileEntry


@dataclass(frozen=True, kw_only=True)
class CommitWindow:
    """The newest commits, and the one before them."""

    base: CommitRecord | None
    """None if ``commits`` begins with the application's first."""
    commits: tuple[CommitRecord, ...]
    """Oldest first, at least one."""

    @property
    def newest(self) -> CommitRecord:
        return self.commits[-1]

    @property
    def counted_from(self) -> CommitRecord | None:
        """The commit from which the tasks' counts continue to the newest: a swap of everything brings its backfill's
        counts. None if they start from nothing."""
        return next(filter(_swaps_everything, reversed(self.commits)), self.base)


@dataclass(frozen=True, kw_only=True)
class OffsetBreak:
    """Two consecutive commits between which a task's offsets do not add up."""

    task: str
    epoch: int
    """The epoch of the later commit."""
    is_wrong: bool
    """False for offsets that hold no record, which compacted topics and transactions have."""
    sentence: str


@dataclass(frozen=True, kw_only=True)
class RowCount:
    """A table's rows compared with the commit log, over the epochs whose files the log still lists."""

    first_epoch: int
    last_epoch: int
    committed: int
    """According to the commit log."""
    found: int
    """In the table; in a table of updates that was compacted, fewer is correct."""
    is_right: bool


def newest_commits(warehouse: Place, application: str, epochs: int) -> CommitWindow | None:
    """The commits of the newest ``epochs`` epochs; None before the first commit."""
    folder = warehouse / application / COMMITS.name
    if not is_table(folder):
        return None
    files = file_actions(table_at(folder))
    newest = newest_of(folder, files)
    if newest is None:
        return None
    recent = files.filter(pl.col("max.epoch") > newest.epoch - epochs)
    found = [record for record in commits_above(folder, recent, 0) if record.epoch > newest.epoch - epochs]
    if newest.epoch > epochs and len(found) > 1:
        return CommitWindow(base=found[0], commits=tuple(found[1:]))
    return CommitWindow(base=None, commits=tuple(found))


def offset_breaks(window: CommitWindow) -> Iterator[OffsetBreak]:
    """Where offsets go back, or where more or fewer records were read than the offsets advanced.

    A task whose counts restart was given up by a start that accepted the loss; it is not compared. Nor is the commit
    that swaps in a backfill of everything, which has the backfill's counts, or one that accepts lost records.
    """
    for before, after in pairwise((*([window.base] if window.base else []), *window.commits)):
        if _swaps_everything(after) or after.reason == LOST_RECORDS_ACCEPTED:
            continue
        for task in after.tasks.keys() & before.tasks.keys():
            one, two = before.tasks[task], after.tasks[task]
            read = two.totals.get("records_in", 0) - one.totals.get("records_in", 0)
            if not two.positions or read < 0:
                continue
            moves = _moves(one, two)
            back = [place for place, moved in moves.items() if moved < 0]
            moved = sum(moves.values())
            text = ""
            if back:
                text = f"goes back in {', '.join(back)}"
            elif read > moved:
                text = f"read {read} records over {moved} offsets: some were read twice"
            elif read < moved:
                text = f"read {read} records over {moved} offsets: the other offsets hold no record, or were skipped"
            if text:
                yield OffsetBreak(
                    task=task,
                    epoch=after.epoch,
                    is_wrong=bool(back) or read > moved,
                    sentence=f"task {task}, epochs {before.epoch} to {after.epoch}: {text}",
                )


def _swaps_everything(commit: CommitRecord) -> bool:
    return any(note.is_whole and note.epoch == commit.epoch for note in commit.swapped)


def _moves(before: TaskCommit, after: TaskCommit) -> dict[str, int]:
    """How far each partition's next offset has moved; a partition that was not read before is left out."""
    return {
        f"{topic}-{partition}": offset - before.positions[topic][partition]
        for topic, offsets in after.positions.items()
        for partition, offset in offsets.items()
        if partition in before.positions.get(topic, {})
    }


def row_count(warehouse: Place, application: str, table: str, window: CommitWindow) -> RowCount | None:
    """Compare a table's rows with the files that the commits list; None if there is nothing to compare.

    Left out are commits whose files the log has rolled up, a commit that a driver is still appending to the table, and
    commits up to the cut of a backfill that was swapped in, since it has replaced some of their rows.

    Raises:
        DamagedFileError: A file of the table is gone or cannot be read.
    """
    folder = warehouse / application / table
    if not is_table(folder):
        return None
    through = AppendTable(folder, table, application).version
    cut = max((note.cut_epoch for note in window.newest.swapped if table in note.tables), default=0)
    first, last = max(window.base.epoch if window.base else 0, cut) + 1, 0
    listed: list[FileEntry] = []
    for commit in window.commits:
        if commit.is_rolled_up:
            first = max(first, commit.epoch + 1)
        elif commit.epoch < first:
            continue
        elif table not in commit.table_versions or commit.table_versions[table] <= through:
            last = commit.epoch
            listed += (entry for entry in commit.files if entry.table == table)
    if last < first:
        return None
    delta = table_at(folder)
    with naming_damage(folder, file_actions(delta)["path"]):
        found = scan_table(delta).filter(pl.col("_epoch").is_between(first, last)).select(pl.len()).collect().item()
    committed = sum(entry.rows for entry in listed)
    is_right = found == committed or (found < committed and _is_compacted(delta, listed))
    return RowCount(first_epoch=first, last_epoch=last, committed=committed, found=found, is_right=is_right)


def _is_compacted(delta: DeltaTable, listed: Iterable[FileEntry]) -> bool:
    """Whether files of a table of updates were replaced, so that rows have given way to newer ones."""
    files = file_actions(delta)
    return bool(key_columns(delta)) and not {entry.path for entry in listed} <= set(files["path"])
