"""Runs processors that take records as columns.

A batch ends with the record that makes a punctuation due, or takes stream time to the next multiple of the timers'
resolution, and so with the last of the rows that this record has become. So what a processor is called with does not
depend on how its input is cut into epochs: between two such records no timer is due, whatever the processor sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import polars as pl

from weir.pipelines.operators import calls
from weir.pipelines.operators.epoch import Epoch, has_key, has_value
from weir.pipelines.operators.functions import Records
from weir.pipelines.operators.process import CHILD, Process
from weir.pipelines.operators.stateless import with_tombstones
from weir.pipelines.processors.forwarding import PLACE, RESERVED, Cause, ForwardedRows
from weir.pipelines.processors.processor import Punctuation
from weir.pipelines.processors.running import STREAM, Out, Running
from weir.pipelines.serdes.headers import HEADERS, HEADERS_TYPE
from weir.state.frames import picked


@dataclass(frozen=True, kw_only=True)
class ProcessBatches(Process):
    """The node of a processor that takes batches."""

    drops_nulls: bool = False
    """Whether null keys and null values are dropped and counted before it."""

    def next_close_ms(self, epoch: Epoch) -> int | None:
        with self.at_work(epoch) as running:
            due_ms, timer_ms = running.next_punctuation_ms(STREAM), running.next_timer_ms(STREAM)
            if timer_ms is not None:
                resolution_ms = self.shape.timer_resolution_ms
                reached_ms = epoch.clocks.get(self.clock, timer_ms) // resolution_ms * resolution_ms
                called_ms = max(-(-timer_ms // resolution_ms) * resolution_ms, reached_ms + resolution_ms)
                due_ms = called_ms if due_ms is None else min(due_ms, called_ms)
            return due_ms

    def close(self, before_ms: int, epoch: Epoch) -> pl.DataFrame | None:
        time_ms, resolution_ms = epoch.clocks[self.clock], self.shape.timer_resolution_ms
        with self.at_work(epoch) as running:
            self._punctuate(STREAM, time_ms, running, (-1, -1))
            if time_ms // resolution_ms > before_ms // resolution_ms:
                self._call_timers(STREAM, time_ms, running, (-1, -1))
            return self._rows(running.out) if running.out else None

    def _take(self, rows: pl.DataFrame, running: Running, epoch: Epoch) -> None:
        if self.drops_nulls:
            rows = has_value(has_key(rows, list(self.key.row_type.columns), epoch), epoch)
            if rows.is_empty():
                return
        before_ms = epoch.clocks.get(self.clock)
        times = epoch.advance(self.clock, rows.get_column("_ts")).to_numpy()
        headers = [HEADERS] if HEADERS in rows.columns else []
        rows = picked(rows, (*self.key.names, *self.value.columns, *RESERVED, *headers))
        places = picked(rows, PLACE)
        ends = _ends_of_records(places)
        calls = np.unique(ends[self._timer_calls(times, before_ms)])
        first, next_call = 0, 0
        while first < rows.height:
            last = rows.height - 1
            if (due_ms := running.next_punctuation_ms(STREAM)) is not None:
                due = max(first, int(np.searchsorted(times, due_ms)))
                last = int(ends[min(last, due)])
            while next_call < len(calls) and calls[next_call] < first:
                next_call += 1
            if next_call < len(calls):
                last = min(last, int(calls[next_call]))
            place, time_ms = places.row(last), int(times[last])
            partition, offset = place
            running.clocks[self.clock] = time_ms
            self._process(rows[first : last + 1], Cause(partition, offset, time_ms), running)
            due_ms = running.next_punctuation_ms(STREAM)
            if due_ms is not None and due_ms <= time_ms:
                self._when_through(epoch, "punctuation", partial(self._punctuate, STREAM, time_ms, running, place))
            if next_call < len(calls) and last == calls[next_call]:
                self._when_through(epoch, "timers", partial(self._call_timers, STREAM, time_ms, running, place))
            first = last + 1

    def _timer_calls(self, times: np.ndarray, before_ms: int | None) -> np.ndarray:
        """The rows after which timers are called; ``before_ms`` is stream time before them."""
        if STREAM not in self.shape.timers:
            return np.empty(0, np.int64)
        reached = times // self.shape.timer_resolution_ms
        before = reached[:1] if before_ms is None else [before_ms // self.shape.timer_resolution_ms]
        return np.flatnonzero(np.diff(reached, prepend=before))

    def _process(self, rows: pl.DataFrame, cause: Cause, running: Running) -> None:
        running.cause(cause, rows)
        with calls.timed(), self._guarded("process_batch", partial(self._told, rows)):
            if (given := running.processor.process_batch(rows)) is not None:
                running.forward_rows(given)

    def _told(self, rows: pl.DataFrame) -> str:
        return f"{rows.height} records from that of {Records(rows, self.key.names).at(0)}"

    def _call_timers(self, punctuation: Punctuation, time_ms: int, running: Running, place: Sequence[int]) -> None:
        if (due := running.due_timer_rows(punctuation, time_ms)) is not None:
            partition, offset = place
            running.cause(Cause(partition, offset, time_ms))
            with calls.timed(), self._guarded("on_timers"):
                if (given := running.processor.on_timers(due)) is not None:
                    running.forward_rows(given)

    @cached_property
    def _nothing(self) -> pl.DataFrame:
        headers = {HEADERS: HEADERS_TYPE} if self.shape.has_headers else {}
        return pl.DataFrame(schema={**self.shape.given, **RESERVED, **headers})

    def _rows(self, forwarded: Out) -> pl.DataFrame:
        sent = [each for each in forwarded if isinstance(each, ForwardedRows) and each.rows.height]
        if not sent:
            return self._nothing
        has_child = any(each.child is not None for each in sent)
        rows = pl.concat(
            [
                each.rows.with_columns_seq(pl.lit(each.child, pl.Int32).alias(CHILD)) if has_child else each.rows
                for each in sent
            ]
        )
        return with_tombstones(rows, self.result, self.key_result.names, rows.get_column("_deleted"))


def _ends_of_records(places: pl.DataFrame) -> np.ndarray:
    """For each row, given by the place of its record, the last row that the record has become."""
    differs = [np.diff(places.get_column(name).to_numpy()) != 0 for name in places.columns]
    is_last = np.append(np.logical_or(*differs), True)[: places.height]
    lasts: np.ndarray = np.flatnonzero(is_last)[np.cumsum(is_last) - is_last]
    return lasts
