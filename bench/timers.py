"""What a million timers cost: ``python -m bench.timers`` prints one JSON object.

Each of a million keys has a timer by stream time in a store on disk; figures are processor seconds of an epoch with one
record, as it makes none of them due and as it makes 1,000 due, and the process's memory after that.
"""

from __future__ import annotations

import json
import resource
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
from polars import col

from weir import BatchProcessor, Int64, Processor, Record, StreamsBuilder, String
from weir.pipelines.tasks.order import Arrivals, Part, with_keys
from weir.pipelines.tasks.output import EpochOutput
from weir.pipelines.tasks.processor import TaskProcessor
from weir.state.engine.task_store import TaskStore
from weir.state.types import StateId

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
    sub_topology = builder.build().sub_topologies[0]
    processor, instances, clocks, epoch = TaskProcessor(sub_topology), dict[str, object](), dict[str, int](), 0
    with tempfile.TemporaryDirectory(prefix="timers-") as folder:
        store = TaskStore.create(Path(folder, "store"), "0_0", [spec.name for spec in sub_topology.stores])

        def run(first: int, times_ms: pl.Series) -> tuple[EpochOutput, float]:
            nonlocal clocks, epoch
            epoch += 1
            state, expected = StateId(1, epoch), StateId(1, epoch - 1) if epoch > 1 else None
            frame = with_keys(_records(first, times_ms), 0, 0)
            turns = Arrivals([Part(input="in", rank=0, partition=0, frame=frame)]).turns
            began = time.process_time()
            with store.session() as session:
                output = processor.run(turns, session, clocks, 0, instances=instances)
                store.apply(
                    session,
                    state=state,
                    expected=expected,
                    generation=1,
                    plan_hash=str(state),
                    make_receipt=lambda _: b"",
                )
            store.settle(generation=1, expected=state, committed=state)
            clocks = output.clocks
            return output, round(time.process_time() - began, 4)

        for first in range(0, KEYS, EPOCH_RECORDS):
            run(
                first,
                pl.select(
                    pl.when(pl.int_range(first, first + EPOCH_RECORDS) < DUE_KEYS).then(0).otherwise(1)
                ).to_series(),
            )
        seconds = {}
        for name, at_ms, due in (("none due", QUIET_MS - 1, 0), ("1,000 due", QUIET_MS, DUE_KEYS)):
            output, seconds[name] = run(KEYS, pl.Series([at_ms]))
            assert sum(rows.height for rows in output.sinks.values()) == due
        store.close()
    return {**seconds, "greatest memory in MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}


def _records(first: int, times_ms: pl.Series) -> pl.DataFrame:
    count = len(times_ms)
    numbers = pl.int_range(first, first + count, dtype=pl.Int64, eager=True)
    return pl.DataFrame(
        {
            "user": "user-" + numbers.cast(pl.String),
            "n": numbers,
            "_ts": times_ms.cast(pl.Int64),
            "_partition": pl.repeat(0, count, dtype=pl.Int32, eager=True),
            "_offset": numbers,
            "_deleted": pl.repeat(False, count, dtype=pl.Boolean, eager=True),
        }
    )


if __name__ == "__main__":
    print(json.dumps({"by columns": cost(Rows), "record by record": cost(Records)}, indent=2))
