"""Outboxes: committed rows that wait for an outside system.

Tasks write an outbox like any table of facts, and commits add its files, so it holds committed rows only. A publisher
reads them in order, and removes files once the outside system has all their rows. Rows are numbered by their epoch and
their place in it; epochs never begin anew, so a mark of what is published stays right whoever publishes next.
"""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import polars as pl

from weir.state.commit.checkpoints import LOG, entry_name, last_checkpoint
from weir.state.commit.delta_log import replace_files
from weir.state.commit.files import read_files
from weir.state.commit.tables import file_actions
from weir.state.storage.places import Place, folder_at, table_at

OUTBOX_FOLDER, REFUSED_FOLDER = "_outbox", "_refused"
"""Below an application's folder: one table for each sink, and one for each whose rows have been refused."""


BYTES = "_bytes"
"""The column with the bytes that a row has as it leaves, if its outbox has one."""


AT = "_at_ms"
"""The column with the time by which a row belongs to a day, which the outboxes of backfills have."""
_ROW_BITS = 32


class Mark(NamedTuple):
    """How far a sink has come: it has all rows of earlier epochs, and the first ``rows`` of ``epoch``."""

    epoch: int = 0
    rows: int = 0


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """What of an outbox is still to be published."""

    rows: int
    size_bytes: int
    """Of whole files; one that is partly published counts in full."""
    since_s: float | None
    """When the oldest of it was committed, in seconds since 1970; None if nothing waits."""


class Outbox:
    """One sink's outbox, as its publisher sees it. Nothing is read anew before ``refresh``."""

    def __init__(self, app_folder: Place, sink: str, application: str, *, is_of_refused: bool = False) -> None:
        """Open an outbox that exists: the claim of a run creates it; or that of the sink's refused rows.

        Raises:
            TableNotFoundError: It does not exist.
        """
        self.folder = folder_at(app_folder) / (refused_name(sink) if is_of_refused else outbox_name(sink))
        self.sink, self.is_of_refused = sink, is_of_refused
        self._committed_in = folder_at(app_folder) / outbox_name(sink)
        self._table, self._published = table_at(self.folder), f"{application}/published"
        self._live: tuple[int, pl.DataFrame] | None = None
        """The files of a version, which are asked for with each batch."""
        self._waiting: tuple[int, Mark, pl.DataFrame] | None = None
        """Those of them after a mark, which are asked for again and again while nothing is added."""

    def another(self) -> Outbox:
        """The same outbox, for another thread: nothing is shared."""
        found = copy.copy(self)
        found._table, found._live, found._waiting = table_at(self.folder), None, None
        return found

    @property
    def id(self) -> str:
        """That of the table: an application that begins anew, after a reset, has another."""
        return str(self._table.metadata().id)

    @cached_property
    def committed_id(self) -> str:
        """That of the outbox that the rows were committed to: refused rows lie in another table."""
        return str(table_at(self._committed_in).metadata().id) if self.is_of_refused else self.id

    @property
    def floor(self) -> int:
        """The newest epoch whose rows have been removed, since the outside system had them; 0 before the first."""
        return self._table.transaction_version(self._published) or 0

    def refresh(self) -> bool:
        """Read what has been added to the table since it was last read; False if nothing has."""
        version = self._table.version()
        next_entry = (self.folder / LOG).find(entry_name(version + 1))
        if next_entry is None and last_checkpoint(self.folder) <= version:
            return False
        self._table.update_incremental()
        return True

    def waiting(self, mark: Mark) -> Waiting:
        """What is still to be published after ``mark``."""
        files = self._after(mark)
        if files.is_empty():
            return Waiting(rows=0, size_bytes=0, since_s=None)
        rows, size, committed_ms = files.select(
            pl.col("rows").sum(), pl.col("size_bytes").sum(), pl.col("committed_ms").min()
        ).row(0)
        return Waiting(
            rows=rows - (mark.rows if files["epoch"][0] == mark.epoch else 0),
            size_bytes=size,
            since_s=committed_ms / 1000,
        )

    def rows(
        self, after: Mark, *, at_most: int, size_bytes: int, one_epoch: bool = False
    ) -> Iterator[tuple[pl.DataFrame, Mark]]:
        """The rows after a mark in order, at most so many or so many bytes at a time, with the mark they reach.

        The order is that of epochs; in an epoch, tasks come one after another, each with its rows in order. With
        ``one_epoch`` no piece has rows of two. A row has the bytes that its column ``_bytes`` says, or without that
        column, the average in memory of the files that are read with it. A single row may have more bytes than a piece.
        """
        waiting = self._after(after)
        if waiting.is_empty():
            return
        schema = pl.scan_delta(self._table).collect_schema()
        held: list[pl.DataFrame] = []
        mark, held_rows, held_bytes, read = after, 0, 0, Mark()
        for epoch, paths in _read_together(waiting, at_most, size_bytes):
            if held and one_epoch and epoch != mark.epoch:
                yield pl.concat(held), mark
                held, held_rows, held_bytes = [], 0, 0
            number = read.rows if epoch == read.epoch else 0
            rows = read_files(self.folder, paths, schema)
            start = min(max(0, after.rows - number), rows.height) if epoch == after.epoch else 0
            ends = _sizes(rows).cum_sum()
            while start < rows.height:
                before = ends[start - 1] if start else 0
                fitting = int(ends.search_sorted(before + size_bytes - held_bytes, side="right")) - start
                if held and fitting < 1:
                    yield pl.concat(held), mark
                    held, held_rows, held_bytes = [], 0, 0
                    continue
                piece = rows[start : start + max(1, min(at_most - held_rows, fitting))]
                held.append(piece)
                start, held_rows = start + piece.height, held_rows + piece.height
                held_bytes += ends[start - 1] - before
                mark = Mark(epoch, number + start)
                if held_rows >= at_most or held_bytes >= size_bytes:
                    yield pl.concat(held), mark
                    held, held_rows, held_bytes = [], 0, 0
            read = Mark(epoch, number + rows.height)
        if held:
            yield pl.concat(held), mark

    def committed_as(self, mark: Mark) -> Mark:
        """The mark that rows up to ``mark`` reached when they were committed: refused rows have other numbers here."""
        if not self.is_of_refused:
            return mark
        through = refused_mark(mark.epoch)
        together = int(self._files().filter(pl.col("epoch") == mark.epoch)["rows"].sum())
        return Mark(through.epoch, through.rows - together + mark.rows)

    def remove(self, through: Mark) -> None:
        """Remove the files all of whose rows are published; call it only when the outside system has them for good."""
        files = self._files()
        begin, end = _of_epoch(files, through.epoch)
        files = files[: begin if files["rows"][begin:end].sum() > through.rows else end]
        if files.is_empty():
            return
        floor = (self._published, int(files["epoch"].max()))  # type: ignore[arg-type]
        if replace_files(self.folder, files.select("path", "size_bytes"), [], is_data_changed=True, transaction=floor):
            self.folder.delete(files["path"])  # nobody else reads them

    def _after(self, mark: Mark) -> pl.DataFrame:
        """The files with rows after ``mark``, and those of its epoch if that has such rows."""
        version = self._table.version()
        if self._waiting is None or self._waiting[:2] != (version, mark):
            files = self._files()
            begin, end = _of_epoch(files, mark.epoch)
            is_partly_left = files["rows"][begin:end].sum() > mark.rows
            self._waiting = version, mark, files[begin if is_partly_left else end :]
        return self._waiting[2]

    def _files(self) -> pl.DataFrame:
        """The live files in the order of their rows: each holds rows of one epoch of one task."""
        version = self._table.version()
        if self._live is None or self._live[0] != version:
            self._live = version, self._read_files()
        return self._live[1]

    def _read_files(self) -> pl.DataFrame:
        files = file_actions(self._table)
        if files.is_empty():
            return pl.DataFrame(schema=_FILES)
        return files.select(
            "path",
            pl.col("size_bytes").cast(pl.Int64),
            pl.col("num_records").cast(pl.Int64).alias("rows"),
            pl.col("min._epoch").cast(pl.Int64).alias("epoch"),
            pl.col("modification_time").cast(pl.Int64).alias("committed_ms"),
        ).sort("epoch", "path")


_FILES = {
    "path": pl.String(),
    "size_bytes": pl.Int64(),
    "rows": pl.Int64(),
    "epoch": pl.Int64(),
    "committed_ms": pl.Int64(),
}


def _of_epoch(files: pl.DataFrame, epoch: int) -> tuple[int, int]:
    """Where the files of an epoch begin and end, in the order of epochs."""
    epochs = files["epoch"].to_list()
    return bisect_left(epochs, epoch), bisect_right(epochs, epoch)


def _read_together(files: pl.DataFrame, at_most: int, size_bytes: int) -> Iterator[tuple[int, list[str]]]:
    """Epochs and paths of files that follow one another in an epoch and have no more rows or bytes together than a
    piece; a single file may have more. A scan of many files costs a quarter of as many scans."""
    paths: list[str] = []
    of_epoch = held_rows = held_bytes = 0
    for epoch, path, rows, size in files.select("epoch", "path", "rows", "size_bytes").iter_rows():
        if paths and (epoch != of_epoch or held_rows + rows > at_most or held_bytes + size > size_bytes):
            yield of_epoch, paths
            paths, held_rows, held_bytes = [], 0, 0
        paths.append(path)
        of_epoch, held_rows, held_bytes = epoch, held_rows + rows, held_bytes + size
    if paths:
        yield of_epoch, paths


def _sizes(rows: pl.DataFrame) -> pl.Series:
    if BYTES in rows.columns:
        return rows.get_column(BYTES)
    return pl.repeat(max(1, int(rows.estimated_size()) // max(1, rows.height)), rows.height, dtype=pl.Int64, eager=True)


def outbox_name(sink: str) -> str:
    """The table of a sink's outbox, below the application's folder."""
    return f"{OUTBOX_FOLDER}/{sink}"


def sink_of(table: str) -> str | None:
    """The sink whose outbox a table is; None for any other table."""
    folder, _, sink = table.partition("/")
    return sink if folder == OUTBOX_FOLDER else None


def refused_name(sink: str) -> str:
    """The table of a sink's refused rows, below the application's folder."""
    return f"{REFUSED_FOLDER}/{sink}"


def refused_number(through: Mark) -> int:
    """What refused rows have in place of their epoch, which says how far they reach."""
    return through.epoch << _ROW_BITS | through.rows


def refused_mark(number: int) -> Mark:
    """The mark that such a number stands for."""
    return Mark(number >> _ROW_BITS, number & (1 << _ROW_BITS) - 1)
