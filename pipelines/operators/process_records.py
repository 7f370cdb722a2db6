"""Runs processors that take one record after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from weir.pipelines.errors import UserFunctionError
from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.functions import Records
from weir.pipelines.operators.process import CHILD, Process
from weir.pipelines.processors.forwarding import Cause, Forwarded
from weir.pipelines.processors.processor import Punctuation
from weir.pipelines.processors.records import FixedKeyRecord, Record
from weir.pipelines.processors.running import STREAM, Out, Running
from weir.pipelines.processors.times import as_time
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.shapes import TIME
from weir.pipelines.serdes.values import as_datetimes


@dataclass(frozen=True, kw_only=True)
class ProcessRecords(Process):
    """The node of a processor that takes records."""

    def _take(self, rows: pl.DataFrame, running: Running, epoch: Epoch) -> None:
        times = epoch.advance(self.clock, rows.get_column("_ts"))
        records = map(
            self._record_class,
            self.key.to_objects(rows),
            self.value.to_objects(rows, rows.get_column("_deleted")),
            as_datetimes(rows.get_column("_ts").cast(TIME)).to_list(),
        )
        causes = list(
            zip(
                rows.get_column("_partition").to_list(),
                rows.get_column("_offset").to_list(),
                rows.get_column("_ts").to_list(),
                strict=True,
            )
        )
        process, clocks, clock = running.processor.process, running.clocks, self.clock
        given = Records(rows, self.key.names)
        for index, (record, cause, time_ms) in enumerate(zip(records, causes, times.to_list(), strict=True)):
            clocks[clock] = time_ms
            running.cause(Cause(*cause, True))
            try:
                process(record)
            except Exception as error:
                raise self._failed("process", error, given, index) from error
            if index + 1 < len(causes) and causes[index + 1][:2] == cause[:2]:
                continue  # the record that caused it is not through yet
            due_ms = running.next_ms(STREAM)
            if due_ms is not None and due_ms <= time_ms:
                self._when_through(epoch, "all", partial(self._fire, STREAM, time_ms, running, cause[:2]))

    def _call_timers(self, punctuation: Punctuation, time_ms: int, running: Running, place: Sequence[int]) -> None:
        partition, offset = place
        for key, at_ms in running.due_timers(punctuation, time_ms):
            running.cause(Cause(partition, offset, at_ms))
            with self._guarded("on_timer"):
                running.processor.on_timer(self._record_class(key, None, as_time(at_ms)))

    def _rows(self, forwarded: Out) -> pl.DataFrame:
        sent = [each for each in forwarded if isinstance(each, Forwarded)]
        frame = pl.DataFrame(
            [
                *self._key_columns(sent),
                *self._columns("value", self.result, [each.record.value for each in sent], sent),
                pl.Series("_ts", [each.record.timestamp for each in sent], dtype=TIME).dt.timestamp("ms"),
                pl.Series("_partition", [each.cause.partition for each in sent], dtype=pl.Int32),
                pl.Series("_offset", [each.cause.offset for each in sent], dtype=pl.Int64),
                pl.Series("_deleted", [each.record.value is None for each in sent], dtype=pl.Boolean),
            ]
        )
        if any(each.child is not None for each in sent):
            frame = frame.with_columns(pl.Series(CHILD, [each.child for each in sent], dtype=pl.Int32))
        return frame

    def _key_columns(self, sent: Sequence[Forwarded]) -> list[pl.Series]:
        keys, types = [each.record.key for each in sent], self.key_result
        if not types.is_windowed:
            return self._columns("key", types.row_type, keys, sent)
        return [
            *self._columns("key", types.row_type, [key.key for key in keys], sent),
            pl.Series("window_start", [key.window_start for key in keys], dtype=TIME),
            pl.Series("window_end", [key.window_end for key in keys], dtype=TIME),
        ]

    def _columns(self, what: str, types: RowType, items: Sequence[Any], sent: Sequence[Forwarded]) -> list[pl.Series]:
        try:
            return types.to_columns(items)
        except (AttributeError, OverflowError, TypeError, ValueError) as error:
            index, reason = types.misfit(items) or (None, str(error).partition("\n")[0])
            place = None if index is None else Records(_places(sent), ()).at(index)
            raise UserFunctionError(
                f"{self._name}.process",
                self.shape.node,
                f"it forwarded a {what} that does not fit the declared type: {reason}",
                place,
            ) from error

    @property
    def _record_class(self) -> Any:
        return FixedKeyRecord if self.shape.is_fixed_key else Record


def _places(sent: Sequence[Forwarded]) -> pl.DataFrame:
    """Where the records were that caused what was sent."""
    return pl.DataFrame(
        [each.cause[:3] for each in sent],
        schema={"_partition": pl.Int32, "_offset": pl.Int64, "_ts": pl.Int64},
        orient="row",
    )
