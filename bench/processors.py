"""What a processor costs: ``python -m bench.processors [RECORDS]`` prints one JSON object, microseconds of processor
time per record.

Each program keeps a count per key and forwards it: record by record or in batches, with or without a timer per key.
Epochs have 50,000 records of 10,000 keys, 20 records per millisecond of stream time; stores are on disk.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from datetime import timedelta
from typing import Any

import polars as pl
from polars import col

from bench.one_task import task_of
from weir import BatchProcessor, Int64, KeyValueStore, ListStore, Processor, Record, StreamsBuilder, String
from weir.pipelines.spark.worker import GC_ALLOCATIONS
from weir.pipelines.tasks.order import Arrivals, Part, with_keys

RECORDS, EPOCH_RECORDS, KEYS, RECORDS_PER_MS = 200_000, 50_000, 10_000, 20
QUIET = timedelta(seconds=30)


class Passes(Processor[str, int, str, int]):
    def init(self, context: Any) -> None:
        self.context = context

    def process(self, record: Record[str, int]) -> None:
        self.context.forward(record)


class Counts(Passes):
    stores = (KeyValueStore("counts", key=str, value=int),)

    def init(self, context: Any) -> None:
        self.context, self.counts = context, context.state_store("counts")

    def process(self, record: Record[str, int]) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value(count))


class CountsAndTimes(Counts):
    def process(self, record: Record[str, int]) -> None:
        super().process(record)
        self.context.timer(record.key, record.timestamp + QUIET)

    def on_timer(self, record: Record[str, None]) -> None:
        self.counts.delete(record.key)


class Appends(Passes):
    stores = (ListStore("lists", key=str, value=int),)

    def init(self, context: Any) -> None:
        self.lists = context.state_store("lists")

    def process(self, record: Record[str, int]) -> None:
        self.lists.append(record.key, record.value)


class PassesBatches(BatchProcessor[str, int, str, int]):
    def process_batch(self, rows: pl.DataFrame) -> pl.DataFrame | None:
        return rows.with_columns(value="n")


class CountsBatches(PassesBatches):
    stores = (KeyValueStore("counts", key=str, value=int),)

    def init(self, context: Any) -> None:
        self.context, self.counts = context, context.state_store("counts")

    def process_batch(self, rows: pl.DataFrame) -> pl.DataFrame | None:
        held = self.counts.get_rows(rows.select(key="user").unique()).select(user="key", before="value")
        rows = rows.join(held, on="user", how="left", maintain_order="left").with_columns(
            value=col("before").fill_null(0) + pl.int_range(1, pl.len() + 1).over("user")
        )
        self.counts.put_rows(rows.select("_ts", "value", key="user"))
        return rows


class CountsAndTimesBatches(CountsBatches):
    def process_batch(self, rows: pl.DataFrame) -> pl.DataFrame | None:
        self.context.timers(rows, col("_ts") + QUIET // timedelta(milliseconds=1))
        return super().process_batch(rows)

    def on_timers(self, rows: pl.DataFrame) -> None:
        self.counts.delete_rows(rows.select(key="user"))


class AppendsBatches(PassesBatches):
    stores = (ListStore("lists", key=str, value=int),)

    def init(self, context: Any) -> None:
        self.lists = context.state_store("lists")

    def process_batch(self, rows: pl.DataFrame) -> pl.DataFrame | None:
        self.lists.append_rows(rows.select("_ts", key="user", value="n"))
        return None


PROGRAMS = {
    "forward": (Passes, PassesBatches),
    "count": (Counts, CountsBatches),
    "count, and a timer per key": (CountsAndTimes, CountsAndTimesBatches),
    "append to a list per key": (Appends, AppendsBatches),
}


def cost_us(cls: type, records: int) -> float:
    """Microseconds of processor time per record, reading and decoding left out."""
    builder = StreamsBuilder()
    builder.stream("in", key=String("user"), value=Int64("n")).process(cls, name="measured").to_delta("out")
    spent = 0.0
    with task_of(builder) as task:
        for first in range(0, records, EPOCH_RECORDS):
            frame = with_keys(_records(first, min(EPOCH_RECORDS, records - first)), 0, 0)
            turns = Arrivals([Part(input="in", rank=0, partition=0, frame=frame)]).turns
            began = time.process_time()
            task.run(turns, 0)
            spent += time.process_time() - began
    return round(spent / records * 1e6, 2)


def _records(first: int, count: int) -> pl.DataFrame:
    numbers = pl.int_range(first, first + count, dtype=pl.Int64, eager=True)
    return pl.DataFrame(
        {
            "user": "user-" + (numbers * 7919 % KEYS).cast(pl.String),
            "n": numbers,
            "_ts": numbers // RECORDS_PER_MS,
            "_partition": pl.repeat(0, count, dtype=pl.Int32, eager=True),
            "_offset": numbers,
            "_deleted": pl.repeat(False, count, dtype=pl.Boolean, eager=True),
        }
    )


if __name__ == "__main__":
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 50, 50)  # as workers do
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS
    found = {
        name: {"record by record": cost_us(each, wanted), "in batches": cost_us(batched, wanted)}
        for name, (each, batched) in PROGRAMS.items()
    }
    print(json.dumps(found, indent=2))
