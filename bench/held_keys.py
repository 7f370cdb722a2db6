"""A suppression that holds ten million keys: ``python -m bench.held_keys [KEYS]`` prints one JSON object.

The buffer is on disk, so the memory of its task stays at what one epoch needs, however many keys are held.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta

import polars as pl

from bench.memory import peak_memory
from bench.one_task import task_of
from weir import BufferConfig, StreamsBuilder, String, Suppressed
from weir.pipelines.tasks.order import Arrivals, Part, Turns, with_keys
from weir.state.types import IsolationLevel

HELD = "held-store"
KEYS, EPOCH_RECORDS = 10_000_000, 100_000


def main(keys: int) -> None:
    """Send ``keys`` distinct keys, a millisecond apart, to a suppression of one day, with a commit per epoch."""
    builder = StreamsBuilder()
    (
        builder.stream("in", key=String("user"), value=String("page"))
        .to_table("pages")
        .suppress(Suppressed.until_time_limit(timedelta(days=1), BufferConfig.unbounded()).with_name("held"))
        .to_delta("out")
    )
    started = time.monotonic()
    with task_of(builder) as task, peak_memory(os.getpid()) as peak:
        for first in range(0, keys, EPOCH_RECORDS):
            task.run(_turns(_records(first, min(EPOCH_RECORDS, keys - first))), 0)
        with task.store.reader(IsolationLevel.READ_COMMITTED) as view:
            held = view.count(HELD)
    print(
        json.dumps({"held": held, "seconds": round(time.monotonic() - started, 1), "peak_bytes": peak.rss_anon_bytes})
    )


def _turns(records: pl.DataFrame) -> Turns:
    return Arrivals([Part(input="in", rank=0, partition=0, frame=with_keys(records, 0, 0))]).turns


def _records(first: int, count: int) -> pl.DataFrame:
    numbers = pl.int_range(first, first + count, dtype=pl.Int64, eager=True)
    return pl.DataFrame(
        {
            "user": "user-" + numbers.cast(pl.String),
            "page": "/item/" + (numbers % 877).cast(pl.String),
            "_ts": numbers,
            "_partition": 0,
            "_offset": numbers,
            "_deleted": False,
        },
        schema_overrides={"_partition": pl.Int32},
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else KEYS)
