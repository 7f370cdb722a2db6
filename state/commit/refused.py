"""Rows that a sink's outside system refuses, put aside so that the rows after them can go on.

They lie in a table of their own, in the order in which they were refused. It is an outbox too: whoever wants them sent
again opens it as ``Outbox(..., is_of_refused=True)`` and removes them once the outside system has them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

import polars as pl

from weir.state.commit.delta_log import DeltaLog, replace_files
from weir.state.commit.files import scan_files, write_file
from weir.state.commit.live_files import live_files
from weir.state.commit.outbox import Mark, outbox_name, refused_mark, refused_name, refused_number
from weir.state.commit.tables import AppendTable
from weir.state.storage.places import Place, folder_at, is_table
from weir.state.types import TableSpec

T = TypeVar("T")
REASON = {"_reason": pl.String(), "_refused_at": pl.Datetime("ms", "UTC")}
"""What rows get beside the columns of their outbox: why and when they were refused."""


@dataclass(frozen=True, kw_only=True)
class RefusedRows:
    """What was put aside at once: a row, or a batch of one epoch."""

    through: Mark
    """The mark that they reach."""
    rows: int
    first: pl.DataFrame
    """The first of them, as it is in the outbox."""
    reason: str


class Refused:
    """One sink's refused rows, for the publisher that puts them aside. The table is made with the first of them."""

    def __init__(self, app_folder: Place, sink: str, application: str) -> None:
        self._app_folder, self._sink = app_folder, sink
        self._folder, self._transaction = folder_at(app_folder) / refused_name(sink), f"{application}/refused"
        self._first: tuple[int, int, list[RefusedRows]] = -1, 0, []
        """The version, how many were asked for, and what was found: publishers ask every few seconds."""

    @property
    def mark(self) -> Mark:
        """How far the rows have come that were put aside last: a publisher never goes back behind them."""
        if not is_table(self._folder):
            return Mark()
        return refused_mark(self._log().transaction)

    def count(self) -> int:
        """How many rows are aside."""
        if not is_table(self._folder):
            return 0
        return int(self._files()["num_records"].sum())

    def all(self) -> pl.DataFrame:
        """What was put aside at once, a row each in order: ``epoch`` and ``first_row`` of the first of its ``rows``,
        their ``reason``, and ``refused_at``."""
        of_each = [pl.len().cast(pl.Int64()), pl.col(list(REASON)).first()]
        rows = self._read(lambda rows: rows.group_by("_epoch").agg(of_each).sort("_epoch"))
        marks = [(*refused_mark(number), number, *others) for number, *others in rows.rows()]
        schema = {"epoch": pl.Int64(), "through": pl.Int64(), "number": pl.Int64(), "rows": pl.Int64()}
        found = pl.DataFrame(
            marks, {**schema, "reason": pl.String(), "refused_at": REASON["_refused_at"]}, orient="row"
        )
        return found.with_columns(first_row=pl.col("through") - pl.col("rows")).drop("through")

    def rows(self, number: int) -> pl.DataFrame:
        """The rows that were put aside at once, as they are in the outbox; ``number`` as in ``all``."""
        return self._read(lambda rows: rows.filter(pl.col("_epoch") == number).drop(list(REASON)))

    def discard(self, numbers: Collection[int]) -> int:
        """Delete what was put aside with these numbers, as in ``all``; returns how many rows there were."""
        while True:
            files = self._files().filter(pl.col("min._epoch").is_in(list(numbers)))
            if files.is_empty():
                return 0
            if replace_files(self._folder, files, [], is_data_changed=True):
                return int(files["num_records"].sum())

    def _read(self, query: Callable[[pl.LazyFrame], pl.LazyFrame]) -> pl.DataFrame:
        """What a query finds."""
        if not is_table(self._folder):
            return query(pl.LazyFrame(schema={"_epoch": pl.Int64(), **REASON})).collect()

        def read(log: DeltaLog) -> pl.DataFrame:
            files = self._files()
            return query(scan_files(self._folder, files["path"], log.layout.columns)).collect()

        return self._at_newest(read)

    def first(self, at_most: int) -> list[RefusedRows]:
        """The earliest of what is aside. One row of each is read, however many there are."""
        if not is_table(self._folder):
            return []

        def read(log: DeltaLog) -> tuple[int, int, list[RefusedRows]]:
            if self._first[:2] == (log.version, at_most):
                return self._first
            return log.version, at_most, self._read_first(log, at_most)

        self._first = self._at_newest(read)
        return self._first[2]

    def _log(self) -> DeltaLog:
        return DeltaLog(self._folder, self._transaction)

    def _files(self) -> pl.DataFrame:
        """As ``file_actions`` has them."""
        files, _ = live_files(self._folder, ranges=["_epoch"])
        return files

    def _at_newest(self, read: Callable[[DeltaLog], T]) -> T:
        """What is read of the newest version. Files are deleted once their rows have been sent again, perhaps before
        they have been read: then it is read of the version that no longer has them."""
        while True:
            log = self._log()
            try:
                return read(log)
            except FileNotFoundError:
                if self._log().version == log.version:
                    raise

    def _read_first(self, log: DeltaLog, at_most: int) -> list[RefusedRows]:
        found = list[RefusedRows]()
        earliest = self._files().sort("min._epoch").head(at_most)
        for path, rows, number in earliest.select("path", "num_records", "min._epoch").rows():
            row = scan_files(self._folder, [path], log.layout.columns).head(1).collect()
            through, reason = refused_mark(number), row["_reason"].item()
            found.append(RefusedRows(through=through, rows=rows, first=row.drop(list(REASON)), reason=reason))
        return found

    def add(self, rows: pl.DataFrame, reached: Mark, reason: str) -> None:
        """Put rows of the outbox aside, which end at ``reached``, unless they are aside already."""
        outbox = DeltaLog(folder_at(self._app_folder) / outbox_name(self._sink), self._transaction).layout.columns
        spec = TableSpec(name=refused_name(self._sink), schema=pl.Schema({**outbox, **REASON}))
        number = refused_number(reached)
        now = pl.lit(time.time_ns() // 1_000_000).cast(REASON["_refused_at"])
        refused = rows.with_columns(_epoch=pl.lit(number, pl.Int64()), _reason=pl.lit(reason), _refused_at=now)
        table = AppendTable.create(self._app_folder, spec, self._transaction)
        if table.version < number:
            table.append(number, [write_file(self._app_folder, spec, refused)])
