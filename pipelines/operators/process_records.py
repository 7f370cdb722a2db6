"""Runs processors that take one record after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import polars as pl

from weir.pipelines.errors import RecordPlace, UserFunctionError
from weir.pipelines.operators import calls
from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.functions import KeyType, Records
from weir.pipelines.operators.process import CHILD, NOWHERE, Process
from weir.pipelines.operators.time_limit import check_time
from weir.pipelines.processors.forwarding import RESERVED, Cause, Forwarded
from weir.pipelines.processors.processor import Punctuation
from weir.pipelines.processors.records import FixedKeyRecord, Record
from weir.pipelines.processors.running import STREAM, Out, Running
from weir.pipelines.processors.times import as_ms, as_time
from weir.pipelines.serdes.headers import HEADERS, headers_column, headers_of
from weir.pipelines.serdes.plain import PlainRows
from weir.pipelines.serdes.row_type import RowType
from weir.pipelines.serdes.shapes import TIME, Scalar
from weir.pipelines.serdes.values import as_datetimes
from weir.state.own_code import failures

_MISFITS = (AttributeError, OverflowError, TypeError, ValueError)
"""What values raise that do not fit their columns."""


class Given(NamedTuple):
    """A record as a processor takes it, and the place and time of its row."""

    record: Any
    partition: int
    offset: int
    time_ms: int


@dataclass(frozen=True, kw_only=True)
class ProcessRecords(Process):
    """The node of a processor that takes records."""

    def given(self, rows: pl.DataFrame) -> list[Given]:
        """The records of ``rows``, in order."""
        if rows.height == 1 and self._plain_taken is not None:
            return [self._one(rows.row(0, named=True), *self._plain_taken)]
        parts = [
            self.key.to_objects(rows),
            self.value.to_objects(rows, rows.get_column("_deleted")),
            as_datetimes(rows.get_column("_ts").cast(TIME)).to_list(),
        ]
        if HEADERS in rows.columns:
            parts.append([headers_of(each) for each in rows.get_column(HEADERS).to_list()])
        records = map(self._record_class, *parts)
        places = (rows.get_column(name).to_list() for name in ("_partition", "_offset", "_ts"))
        return list(map(Given, records, *places))

    def _one(self, row: Mapping[str, Any], keys: PlainRows, values: PlainRows) -> Given:
        """What ``given`` makes of a single row, without its cost of columns."""
        parts = [row[name] for name in keys.row_type.columns]
        key = None if all(part is None for part in parts) else keys.item(parts)
        value = None if row["_deleted"] else values.item([row[name] for name in values.row_type.columns])
        record = self._record_class(key, value, as_time(row["_ts"]), headers_of(row.get(HEADERS)))
        return Given(record, row["_partition"], row["_offset"], row["_ts"])

    def passed_on(self, sent: Forwarded, to: ProcessRecords) -> Given | None:
        """What the processor ``to``, which takes the same columns, gets of ``sent``; None if only columns can tell."""
        record = sent.record
        if self._plain_sent is None or to._plain_taken is None or record.timestamp.microsecond % 1000:
            return None
        (sent_keys, sent_values), (keys, values) = self._plain_sent, to._plain_taken
        try:
            parts = [] if record.key is None else sent_keys.plain(record.key)
            key = None if all(part is None for part in parts) else keys.item(parts)
            value = None if record.value is None else values.item(sent_values.plain(record.value))
        except TypeError:
            return None
        time_ms = as_ms(record.timestamp)
        return Given(to._record_class(key, value, as_time(time_ms), tuple(record.headers)), *sent.cause[:2], time_ms)

    def process_given(self, given: Given, epoch: Epoch) -> None:
        """Process the one record that is under way; what is forwarded goes to the node's outlet."""
        with self.at_work(epoch) as running:
            time_ms = running.clocks[self.clock] = max(given.time_ms, running.clocks.get(self.clock, given.time_ms))
            cause = Cause(*given[1:], True, given.record.key)
            running.cause(cause)
            calls.running = self._called_for, cause, None
            try:
                running.processor.process(given.record)
                check_time()
            except failures() as error:
                raise self._failed_at("process", error, self._place_of(cause)) from error
            self._call_due(given, time_ms, running, epoch)

    def _take(self, rows: pl.DataFrame, running: Running, epoch: Epoch) -> None:
        times = epoch.advance(self.clock, rows.get_column("_ts"))
        process, clocks, clock = running.processor.process, running.clocks, self.clock
        records = self.given(rows)
        last = len(records) - 1
        with calls.timed():
            for index, (given, time_ms) in enumerate(zip(records, times.to_list(), strict=True)):
                clocks[clock] = time_ms
                running.cause(Cause(*given[1:], True, given.record.key))
                calls.running = self._called, rows, index
                try:
                    process(given.record)
                    check_time()
                except failures() as error:
                    raise self._failed("process", error, Records(rows, self.key.names), index) from error
                if index < last:
                    following = records[index + 1]
                    if following.offset == given.offset and following.partition == given.partition:
                        continue  # the record that caused it is not through yet
                self._call_due(given, time_ms, running, epoch)

    def _called(self, rows: pl.DataFrame, index: int) -> calls.Call | None:
        return calls.of_record(self._failed("process", RuntimeError(), Records(rows, self.key.names), index))

    def _called_for(self, cause: Cause, _: None) -> calls.Call | None:
        return calls.of_record(self._failed_at("process", RuntimeError(), self._place_of(cause)))

    def _place_of(self, cause: Cause) -> RecordPlace | None:
        """The place of the record that the processor is called with; None if it is called for what is due."""
        if not cause.is_record:
            return None
        return RecordPlace(
            partition=cause.partition,
            offset=cause.offset,
            time_ms=cause.time_ms,
            key=self._named_key(cause.key),
        )

    def _call_due(self, given: Given, time_ms: int, running: Running, epoch: Epoch) -> None:
        if running.is_due(STREAM, time_ms):
            place = (given.partition, given.offset)
            self._when_through(epoch, "all", partial(self._fire, STREAM, time_ms, running, place))

    def _named_key(self, key: Any) -> dict[str, Any]:
        row_type = self.key.row_type
        if row_type.is_scalar:
            return dict.fromkeys(row_type.columns, key)
        return {name: getattr(key, name, None) for name in row_type.columns}

    @cached_property
    def _plain_sent(self) -> tuple[PlainRows, PlainRows] | None:
        return _plain(self.key_result, self.result)

    @cached_property
    def _plain_taken(self) -> tuple[PlainRows, PlainRows] | None:
        return _plain(self.key, self.value)

    def _call_timers(self, punctuation: Punctuation, time_ms: int, running: Running, place: Sequence[int]) -> None:
        partition, offset = place
        with calls.timed():
            for key, at_ms in running.due_timers(punctuation, time_ms):
                running.cause(Cause(partition, offset, at_ms, call="on_timer"))
                with self._guarded("on_timer", partial(self._timer, key, at_ms)):
                    running.processor.on_timer(self._record_class(key, None, as_time(at_ms)))

    def _timer(self, key: Any, at_ms: int) -> str:
        partition, offset = NOWHERE
        place = RecordPlace(partition=partition, offset=offset, time_ms=at_ms, key=self._named_key(key))
        return f"the timer of {place}"

    def _rows(self, forwarded: Out) -> pl.DataFrame:
        sent = [each for each in forwarded if isinstance(each, Forwarded)]
        if len(sent) == 1 and (row := self._one_row(sent[0])) is not None:
            return row
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
        if self.shape.has_headers:
            frame = frame.with_columns_seq(headers_column(each.record.headers for each in sent))
        if any(each.child is not None for each in sent):
            frame = frame.with_columns_seq(pl.Series(CHILD, [each.child for each in sent], dtype=pl.Int32))
        return frame

    def _one_row(self, sent: Forwarded) -> pl.DataFrame | None:
        """What ``_rows`` makes of a single record, without its cost of columns; None if only columns can tell."""
        record, plain = sent.record, self._plain_sent
        if plain is None or sent.child is not None or record.timestamp.microsecond % 1000:
            return None
        try:
            parts = [
                [None] * len(rows.row_type.columns) if item is None else rows.plain(item)
                for item, rows in zip((record.key, record.value), plain, strict=True)
            ]
        except TypeError:
            return None
        place = (as_ms(record.timestamp), *sent.cause[:2], record.value is None)
        row = pl.DataFrame(
            [(*parts[0], *parts[1], *place)],
            schema={**self.key_result.row_type.columns, **self.result.columns, **RESERVED},
            orient="row",
        )
        return row.with_columns_seq(headers_column([record.headers])) if self.shape.has_headers else row

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
        except _MISFITS as error:
            index, reason = types.misfit(items) or (None, str(error).partition("\n")[0])
            place = None if index is None else self._place_of(sent[index].cause)
            forwarded = sent[_refused_alone(types, items) if index is None else index]
            raise UserFunctionError(
                f"{self._name}.{forwarded.cause.call}",
                self.shape.node,
                f"it forwarded a {what} of another type than it declares: {reason.replace('it returned', 'got')}",
                place,
            ) from error

    @property
    def _record_class(self) -> Any:
        return FixedKeyRecord if self.shape.is_fixed_key else Record


def _refused_alone(types: RowType, items: Sequence[Any]) -> int:
    """Which of ``items``, of which ``types`` does not take all, is the first that it does not take alone; 0 if there is
    none."""
    for index, item in enumerate(items):
        try:
            types.to_columns([item])
        except _MISFITS:
            return index
    return 0


def _plain(key: KeyType, value: RowType) -> tuple[PlainRows, PlainRows] | None:
    """Conversions of keys and values whose columns keep every value as it is; None for others."""
    types = (key.row_type, value)
    shapes = [field.shape for each in types for field in each.fields.values()]
    is_exact = all(
        isinstance(shape, Scalar)
        and shape.kind in (bool, bytes, float, int, str)
        and (shape.dtype.is_integer() or shape.dtype in (pl.Boolean, pl.Binary, pl.Float64, pl.String))
        for shape in shapes
    )
    is_made = all(each.is_scalar or each.python_type is not None for each in types)
    return (PlainRows(types[0]), PlainRows(types[1])) if is_exact and is_made and not key.is_windowed else None
