"""Records of a stream get other times; which time a record of a topic has is decided in ``serdes.timestamps``."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from weir.pipelines.errors import InvalidTimestampError
from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.functions import KeyType, Records, UserFunction
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.shapes import TIME
from weir.pipelines.serdes.timestamps import as_ms, invalid_times, why_invalid
from weir.pipelines.serdes.values import as_datetimes


@dataclass(frozen=True, kw_only=True)
class WithTimestamp:
    """A new time for each record, from an expression, or a function of ``(key, value)`` or ``(key, value, time)``.

    Their order stays as it is, so a record with an earlier time than one before it is out of order. One whose time is
    null, negative or after the year 9999 is dropped and counted as ``invalid_timestamps``, or stops the run.
    """

    node: str
    time: pl.Expr | UserFunction
    takes_time: bool
    """Whether the function is given the time that the record has."""
    key: KeyType
    value: RowType
    result: RowType
    """The one column of times: datetimes, dates, or integers in milliseconds."""
    skips_invalid: bool

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        times = as_ms(self._times(rows))
        invalid = invalid_times(times)
        if invalid.any():
            if not self.skips_invalid:
                self._refuse(rows, times, int(invalid.arg_true()[0]))
            epoch.counts["invalid_timestamps"] += int(invalid.sum())
            rows, times = rows.filter(~invalid), times.filter(~invalid)
        return rows.with_columns_seq(times)

    def _times(self, rows: pl.DataFrame) -> pl.Series:
        if isinstance(self.time, pl.Expr):
            return rows.with_columns_seq(self.time.alias("_time")).get_column("_time")
        records = Records(rows, self.key.names)
        arguments = [self.key.to_objects(rows), self.value.to_objects(rows, rows.get_column("_deleted"))]
        if self.takes_time:
            arguments.append(as_datetimes(rows.get_column("_ts").cast(TIME)).to_list())
        answers = self.time.over(zip(*arguments, strict=True), records)
        (times,) = self.time.columns(self.result, answers, records)
        return times

    def _refuse(self, rows: pl.DataFrame, times: pl.Series, row: int) -> None:
        source = self.time.name if isinstance(self.time, UserFunction) else str(self.time)
        record = Records(rows, self.key.names).at(row)
        raise InvalidTimestampError(source, self.node, why_invalid(times[row]), record)
