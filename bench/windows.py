"""What windows cost: ``python -m bench.windows`` prints one JSON object, by kind of window.

The sum per user and minute, final results, in one task of the bench's four, with its store on disk. ``microseconds``
are processor time per record, without reading, decoding and writing files; ``results`` are how many a record makes, and
``stored`` how many rows are left of each user. All are measured once windows have begun to close.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta

import numpy as np
import polars as pl

from bench.events import KEYS, PARTITIONS, START_MS
from bench.one_task import task_of
from weir import BufferConfig, Int64, StreamsBuilder, String, Sum, Suppressed, TimeWindows
from weir.pipelines.tasks.order import Arrivals, Part, Turns, with_keys
from weir.state.types import IsolationLevel

TUMBLING = TimeWindows.of_size_and_grace(timedelta(minutes=1), timedelta(seconds=10))
WINDOWS = {
    "tumbling": TUMBLING,
    "4 a record": TUMBLING.advance_by(timedelta(seconds=15)),
    "60 a record": TUMBLING.advance_by(timedelta(seconds=1)),
}
EPOCH_RECORDS, WARM_UP = 50_000, 200_000
USERS, PER_MS = KEYS // PARTITIONS, 10 / PARTITIONS


def cost(windows: TimeWindows, records: int) -> dict[str, float]:
    """The figures over ``records`` records, in epochs of ``EPOCH_RECORDS``."""
    builder = StreamsBuilder()
    (
        builder.stream("in", key=String("user"), value=Int64("amount"))
        .group_by_key()
        .windowed_by(windows)
        .agg("sums", total=Sum("amount"))
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_delta("totals")
    )
    spent, results = 0.0, 0
    with task_of(builder) as task:
        for first in range(0, WARM_UP + records, EPOCH_RECORDS):
            turns, began = _turns(first, EPOCH_RECORDS), time.process_time()
            output = task.run(turns, 0)
            if first >= WARM_UP:
                spent += time.process_time() - began
                results += sum(rows.height for rows in output.sinks.values())
        with task.store.reader(IsolationLevel.READ_COMMITTED) as view:
            stored = view.count("sums")
    return {
        "microseconds": round(1e6 * spent / records, 2),
        "results": round(results / records, 2),
        "stored": round(stored / USERS, 1),
    }


def _turns(first: int, count: int) -> Turns:
    numbers = np.arange(first, first + count)
    users = pl.Series((numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) % USERS)
    frame = pl.DataFrame(
        {
            "user": "u" + users.cast(pl.String).str.zfill(6),
            "amount": 10 + numbers % 90,
            "_ts": START_MS + (numbers / PER_MS).astype(np.int64),
            "_partition": 0,
            "_offset": numbers,
            "_deleted": False,
        },
        schema_overrides={"_partition": pl.Int32},
    )
    return Arrivals([Part(input="in", rank=0, partition=0, frame=with_keys(frame, 0, 0))]).turns


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    print(json.dumps({name: cost(windows, count) for name, windows in WINDOWS.items()}))
