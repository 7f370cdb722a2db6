"""What a million timers cost: ``python -m bench.timers`` prints one JSON object.

Each of a million keys has a timer by stream time in a store on disk; figures are processor seconds of an epoch with one
record, as it makes none of them due and as it makes 1,000 due, and the process's memory after that.
"""

from __future__ import annotations

import json
import resource
import time
from datetime import timedelta
from typing import Any

import polars as pl
from polars import col

from bench.one_task import task_of
from weir import BatchProcessor, Int64, Processor, Record, StreamsBuilder, String
from weir.pipelines.tasks.order import Arrivals, Part, Turns, with_keys

KEYS, DUE_KEYS, EPOCH_RECORDS = 1_000_000, 1_000, 50_000
QUIET_MS = 3_600_000


class Rows(BatchProcessor[str, int, str, int]):
    """A timer per key, by columns."""

    timer_resolution = timedelta(milliseconds=1)

    def init(self, context: Any) -> None:
        self.context = context

    def process_batch(self, rows: pl.DataFrame) -> None:
        self.context.timers(rows, col("_ts") + QUIET_MS)

    def on_timers(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(value=1)


class Records(Processor[str, int, str, int]):
    """The same, record by record."""

    def init(self, context: Any) -> None:
        self.context = context

    def process(self, record: Record[str, int]) -> None:
        self.context.timer(record.key, record.timestamp + timedelta(milliseconds=QUIET_MS))

    def on_timer(self, record: Record[str, None]) -> None:
        self.context.forward(record.with_value(1))


def cost(cls: type) -> dict[str, float]:
    builder = StreamsBuilder()
    builder.stream("in", key=String("user"), value=Int64("n")).process(cls, name="timed").to_delta("out")
    with task_of(builder) as task:
        for first in range(0, KEYS, EPOCH_RECORDS):
            is_due = pl.int_range(first, first + EPOCH_RECORDS) < DUE_KEYS
            task.run(_turns(first, pl.select(pl.when(is_due).then(0).otherwise(1)).to_series()), 0)
        seconds = {}
        for name, at_ms, due in (("none due", QUIET_MS - 1, 0), ("1,000 due", QUIET_MS, DUE_KEYS)):
            turns, began = _turns(KEYS, pl.Series([at_ms])), time.process_time()
            output = task.run(turns, 0)
            seconds[name] = round(time.process_time() - began, 4)
            assert sum(rows.height for rows in output.sinks.values()) == due
    return {**seconds, "greatest memory in MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}


def _turns(first: int, times_ms: pl.Series) -> Turns:
    count = len(times_ms)
    numbers = pl.int_range(first, first + count, dtype=pl.Int64, eager=True)
    frame = pl.DataFrame(
        {
            "user": "user-" + numbers.cast(pl.String),
            "n": numbers,
            "_ts": times_ms.cast(pl.Int64),
            "_partition": pl.repeat(0, count, dtype=pl.Int32, eager=True),
            "_offset": numbers,
            "_deleted": pl.repeat(False, count, dtype=pl.Boolean, eager=True),
        }
    )
    return Arrivals([Part(input="in", rank=0, partition=0, frame=with_keys(frame, 0, 0))]).turns


if __name__ == "__main__":
    print(json.dumps({"by columns": cost(Rows), "record by record": cost(Records)}, indent=2))
