"""What windows and joins cost: ``python -m bench.windows [records [shape]]`` prints one JSON object, by shape.

Each is a program over the bench's events in one task of four, a foreign-key join in one task of each of its
sub-topologies, with stores on disk. ``microseconds`` are processor time per record, without reading, decoding and
writing files; ``results`` are how many a record makes, and ``stored`` how many rows are left of each user. All are
measured once windows have begun to close.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import numpy as np
import polars as pl

from bench.events import KEYS, PARTITIONS, START_MS
from bench.one_task import Task, tasks_of
from weir import (
    BufferConfig,
    Int64,
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
)
from weir.pipelines.tasks.order import Arrivals, Part, with_keys
from weir.state.types import IsolationLevel

GRACE = timedelta(seconds=10)
TUMBLING = TimeWindows.of_size_and_grace(timedelta(minutes=1), GRACE)
EPOCH_RECORDS, WARM_UP = 50_000, 200_000
USERS, PER_MS = KEYS // PARTITIONS, 10 / PARTITIONS
RIGHT_ROWS = 100
"""Rows of the table that is joined by foreign key."""
NEW_KEYS = "foreign-key join, new keys"
"""Each record has another key."""


def final(windows: TimeWindows) -> StreamsBuilder:
    """The sum per user and window of a minute, ten seconds after it has ended."""
    builder = StreamsBuilder()
    (
        builder.stream("in", key=String("user"), value=Int64("amount"))
        .group_by_key()
        .windowed_by(windows)
        .agg("sums", total=Sum("amount"))
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_delta("totals")
    )
    return builder


def updated(windows: TimeWindows | SessionWindows | SlidingWindows) -> StreamsBuilder:
    """The sum per user and window, as a table that every epoch updates."""
    builder = StreamsBuilder()
    (
        builder.stream("in", key=String("user"), value=Int64("amount"))
        .group_by_key()
        .windowed_by(windows)
        .agg("sums", total=Sum("amount"))
        .to_delta("totals")
    )
    return builder


def stream_join() -> StreamsBuilder:
    """Records of two streams of one user and at most ten seconds apart."""
    builder = StreamsBuilder()
    left, right = (builder.stream(name, key=String("user"), value=Int64(f"of_{name}")) for name in ("in", "other"))
    windows = JoinWindows.of_time_difference_and_grace(timedelta(seconds=10), GRACE)
    left.join(right, windows=windows, store="pairs").to_delta("totals")
    return builder


def foreign_key_join() -> StreamsBuilder:
    """The newest amount of each user with the row of another table that it names."""
    builder = StreamsBuilder()
    left = builder.table("in", key=String("user"), value=Int64("amount"), store="lefts")
    right = builder.table("other", key=Int64("row"), value=Int64("factor"), store="rights")
    left.join(right, foreign_key="amount").to_stream().to_delta("totals")
    return builder


SHAPES: dict[str, Callable[[], StreamsBuilder]] = {
    "tumbling": partial(final, TUMBLING),
    "4 a record": partial(final, TUMBLING.advance_by(timedelta(seconds=15))),
    "60 a record": partial(final, TUMBLING.advance_by(timedelta(seconds=1))),
    "4 a record, updates": partial(updated, TUMBLING.advance_by(timedelta(seconds=15))),
    "sessions": partial(updated, SessionWindows.of_inactivity_gap_and_grace(timedelta(seconds=3), GRACE)),
    "sliding": partial(updated, SlidingWindows.of_time_difference_and_grace(timedelta(seconds=10), GRACE)),
    "stream-stream join": stream_join,
    "foreign-key join": foreign_key_join,
    NEW_KEYS: foreign_key_join,
}


def cost(shape: str, records: int) -> dict[str, float]:
    """The figures over ``records`` records, in epochs of ``EPOCH_RECORDS``."""
    spent, results = 0.0, 0
    with tasks_of(SHAPES[shape]()) as tasks:
        if SHAPES[shape] is foreign_key_join:
            _epoch(tasks, {"other": _factors()})
        for first in range(0, WARM_UP + records, EPOCH_RECORDS):
            read, began = _read(shape, first, EPOCH_RECORDS), time.process_time()
            made = _epoch(tasks, read)
            if first >= WARM_UP:
                spent += time.process_time() - began
                results += made
        stored = 0
        for task in tasks:
            with task.store.reader(IsolationLevel.READ_COMMITTED) as view:
                stored += sum(view.count(spec.name) for spec in task.sub_topology.stores)
    return {
        "microseconds": round(1e6 * spent / records, 2),
        "results": round(results / records, 2),
        "stored": round(stored / USERS, 1),
    }


def _epoch(tasks: list[Task], read: dict[str, pl.DataFrame]) -> int:
    """One epoch of every task that has something to read, and of those that get rows from it, until nothing is left;
    the number of results."""
    waiting: dict[int, list[Part]] = {}
    for task in tasks:
        for topic, frame in read.items():
            if topic in task.sub_topology.inputs:
                rank = task.sub_topology.ranks[topic]
                part = Part(input=topic, rank=rank, partition=0, frame=with_keys(frame, rank, 0))
                waiting.setdefault(task.sub_topology.index, []).append(part)
    results = 0
    while waiting:
        index = min(waiting)
        output = tasks[index].run(Arrivals(waiting.pop(index)).turns, 0)
        results += sum(rows.height for rows in output.sinks.values())
        for edge in tasks[index].sub_topology.edges_out:
            if edge.name in output.edges:
                rank, frame = tasks[edge.target].sub_topology.ranks[edge.name], output.edges[edge.name]
                part = Part(input=edge.name, rank=rank, partition=0, frame=frame, batch="epoch")
                waiting.setdefault(edge.target, []).append(part)
    return results


def _read(shape: str, first: int, count: int) -> dict[str, pl.DataFrame]:
    """The events from ``first`` on; for a join of streams, every other one on the other side."""
    events = _events(first, count, 1 << 32 if shape == NEW_KEYS else USERS)
    if shape != "stream-stream join":
        return {"in": events}
    is_left = pl.col("_offset") % 2 == 0
    return {
        name: events.filter(side).rename({"amount": f"of_{name}"})
        for name, side in (("in", is_left), ("other", ~is_left))
    }


def _events(first: int, count: int, users_at_most: int) -> pl.DataFrame:
    numbers = np.arange(first, first + count)
    users = pl.Series((numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) % users_at_most)
    return _records(
        {"user": "u" + users.cast(pl.String).str.zfill(6), "amount": 10 + numbers % 90},
        START_MS + (numbers / PER_MS).astype(np.int64),
        numbers,
    )


def _factors() -> pl.DataFrame:
    rows = np.arange(RIGHT_ROWS)
    return _records({"row": rows, "factor": rows}, np.full(RIGHT_ROWS, START_MS), rows)


def _records(columns: dict[str, pl.Series | np.ndarray], times: np.ndarray, offsets: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame(
        {**columns, "_ts": times, "_partition": 0, "_offset": offsets, "_deleted": False},
        schema_overrides={"_partition": pl.Int32},
    )


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    print(json.dumps({name: cost(name, count) for name in sys.argv[2:] or SHAPES}, indent=1))
