"""What aggregates cost: ``python -m bench.aggregates [NAME...]`` prints one JSON object.

Microseconds of processor time per record for one task with its store on disk, as a table per key and as final results
of tumbling windows, and their ratios to those of ``Sum``. Records reach the task as columns: reading, decoding, Spark
and the writing of tables are left out. The aggregates take turns, and the median of the rounds counts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median

import polars as pl

from bench.events import event_fields
from bench.one_task import task_of
from weir import (
    ApproxDistinct,
    ApproxQuantiles,
    Collect,
    EmitStrategy,
    Json,
    KGroupedStream,
    Last,
    Max,
    MaxBy,
    Mean,
    StreamsBuilder,
    String,
    StringAgg,
    Sum,
    TimeWindows,
    TopK,
    ValueCounts,
    Variance,
)
from weir.pipelines.operators.aggregates import Aggregate
from weir.pipelines.tasks.order import Arrivals, Part, Turns, with_keys

RECORDS, EPOCH_RECORDS, ROUNDS = 200_000, 50_000, 3
EVENT = pl.Schema({"amount": pl.Int64(), "page": pl.String()})
SUM = "Sum"
AGGREGATES: dict[str, Aggregate] = {
    SUM: Sum("amount"),
    "Mean": Mean("amount"),
    "Max": Max("amount"),
    "Last": Last("page"),
    "Last by time": Last("page", by_time=True),
    "MaxBy": MaxBy("page", by="amount"),
    "TopK": TopK("amount", 3),
    "TopK by": TopK("page", 3, by="amount"),
    "Variance": Variance("amount"),
    "StringAgg": StringAgg("page", ",", max_chars=1_000),
    "Collect": Collect("page", limit=100),
    "ValueCounts": ValueCounts("page", limit=100),
    "ApproxDistinct": ApproxDistinct("page"),
    "ApproxQuantiles": ApproxQuantiles("amount"),
}
WINDOWS = TimeWindows.of_size_with_no_grace(timedelta(seconds=5))


def as_table(grouped: KGroupedStream, aggregate: Aggregate) -> None:
    grouped.agg("store", it=aggregate).to_delta("out")


def as_final_results(grouped: KGroupedStream, aggregate: Aggregate) -> None:
    windowed = grouped.windowed_by(WINDOWS).emit_strategy(EmitStrategy.on_window_close())
    windowed.agg("store", it=aggregate).to_delta("out")


PROGRAMS = {"per key": as_table, "per window, final": as_final_results}


def turns(start: int, stop: int) -> Turns:
    events = event_fields(start, stop).rename({"ts": "_ts"})
    frame = events.with_columns(
        pl.lit(0, pl.Int32).alias("_partition"),
        pl.int_range(start, stop, dtype=pl.Int64, eager=True).alias("_offset"),
        pl.lit(False).alias("_deleted"),
    )
    return Arrivals([Part(input="in", rank=0, partition=0, frame=with_keys(frame, 0, 0))]).turns


def cost_us(program: Callable[[KGroupedStream, Aggregate], None], aggregate: Aggregate) -> float:
    builder = StreamsBuilder()
    program(builder.stream("in", key=String("user"), value=Json(EVENT)).group_by_key(), aggregate)
    spent = 0.0
    with task_of(builder) as task:
        for start in range(0, RECORDS, EPOCH_RECORDS):
            arriving = turns(start, start + EPOCH_RECORDS)
            began = time.process_time()
            task.run(arriving, 0)
            spent += time.process_time() - began
    return spent / RECORDS * 1e6


def main(names: list[str]) -> None:
    chosen = {name: AGGREGATES[name] for name in AGGREGATES if name in (SUM, *names) or not names}
    found: dict[str, dict[str, list[float]]] = {program: {name: [] for name in chosen} for program in PROGRAMS}
    for _ in range(ROUNDS):
        for program, make in PROGRAMS.items():
            for name, aggregate in chosen.items():
                found[program][name].append(cost_us(make, aggregate))
    medians = {program: {name: median(costs) for name, costs in each.items()} for program, each in found.items()}
    shown = {
        program: {name: {"us": round(cost, 2), "of Sum": round(cost / each[SUM], 2)} for name, cost in each.items()}
        for program, each in medians.items()
    }
    print(json.dumps(shown, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
