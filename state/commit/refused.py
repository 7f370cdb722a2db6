"""Rows that a sink's outside system refuses, put aside so that the rows after them can go on.

They lie in a table of their own, in the order in which they were refused. It is an outbox too: whoever wants them sent
again opens it as ``Outbox(..., is_of_refused=True)`` and removes them once the outside system has them.
"""

from __future__ import annotations

import time
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from weir.state.commit.files import write_file
from weir.state.commit.outbox import Mark, outbox_name, refused_name
from weir.state.commit.tables import AppendTable, file_actions
from weir.state.types import TableSpec

_ROW_BITS = 32
REASON = {"_reason": pl.String(), "_refused_at": pl.Datetime("ms", "UTC")}
"""What rows get beside the columns of their outbox: why and when they were refused."""


class Refused:
    """One sink's refused rows, for the publisher that puts them aside. The table is made with the first of them."""

    def __init__(self, app_folder: Path, sink: str, application: str) -> None:
        self._app_folder, self._sink = app_folder, sink
        self._folder, self._transaction = app_folder / refused_name(sink), f"{application}/refused"

    @property
    def mark(self) -> Mark:
        """How far the rows have come that were put aside last: a publisher never goes back behind them."""
        if not DeltaTable.is_deltatable(str(self._folder)):
            return Mark()
        return _mark(DeltaTable(self._folder).transaction_version(self._transaction) or 0)

    def count(self) -> int:
        """How many rows are aside."""
        if not DeltaTable.is_deltatable(str(self._folder)):
            return 0
        files = file_actions(DeltaTable(self._folder))
        return 0 if files.is_empty() else int(files["num_records"].sum())

    def add(self, rows: pl.DataFrame, reached: Mark, reason: str) -> None:
        """Put rows of the outbox aside, which end at ``reached``, unless they are aside already."""
        outbox = pl.scan_delta(str(self._app_folder / outbox_name(self._sink))).collect_schema()
        spec = TableSpec(name=refused_name(self._sink), schema=pl.Schema({**outbox, **REASON}))
        number = _number(reached)
        now = pl.lit(time.time_ns() // 1_000_000).cast(REASON["_refused_at"])
        refused = rows.with_columns(_epoch=pl.lit(number, pl.Int64()), _reason=pl.lit(reason), _refused_at=now)
        table = AppendTable.create(self._app_folder, spec, self._transaction)
        if table.version < number:
            table.append(number, [write_file(self._app_folder, spec, refused)])


def _number(mark: Mark) -> int:
    return mark.epoch << _ROW_BITS | mark.rows


def _mark(number: int) -> Mark:
    return Mark(number >> _ROW_BITS, number & (1 << _ROW_BITS) - 1)
