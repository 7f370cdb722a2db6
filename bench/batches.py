"""What ``batch`` costs: ``python -m bench.batches`` prints one JSON object.

Records reach the operator and its store on disk; reading and decoding are left out, as in ``bench.processors``.
``records a second`` are those of one core, ``MB a second`` their values; then seconds of an epoch without records while
a million keys have open batches, with none due and with 1,000 due, and the process's memory after that.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from datetime import timedelta

import polars as pl

from bench.one_task import task_of
from weir import StreamsBuilder, String
from weir.pipelines.tasks.order import Arrivals, Part, Turns, with_keys

EPOCH_RECORDS, EPOCH_BYTES, KEYS = 50_000, 32 << 20, 10_000
OPEN_KEYS, DUE_KEYS = 1_000_000, 1_000
MAX_WAIT = timedelta(hours=1)


def program(max_records: int) -> StreamsBuilder:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=String("customer"), value=String("event"))
    stream.batch(max_records=max_records, max_wait=MAX_WAIT, name="batches").to_delta("out")
    return builder


def pace(value_bytes: int, records: int) -> dict[str, float]:
    """Records of a second of processor time, with batches of at most 500."""
    spent, epoch = 0.0, min(EPOCH_RECORDS, EPOCH_BYTES // value_bytes)
    with task_of(program(500)) as made:
        for first in range(0, records, epoch):
            turns = _turns(first, min(epoch, records - first), KEYS, value_bytes)
            began = time.process_time()
            made.run(turns, first)
            spent += time.process_time() - began
    return {"records a second": round(records / spent), "MB a second": round(records * value_bytes / spent / 1e6, 1)}


def idle() -> dict[str, float]:
    """Seconds of epochs while ``OPEN_KEYS`` keys have a batch of one record."""
    with task_of(program(500)) as made:
        for first in range(0, OPEN_KEYS, EPOCH_RECORDS):
            turns = _turns(first, EPOCH_RECORDS, OPEN_KEYS, 68)
            if not first:  # these are due before all others
                made.run(turns[:DUE_KEYS], -1)
                turns = turns[DUE_KEYS:]
            made.run(turns, 0)
        due_ms = MAX_WAIT // timedelta(milliseconds=1) - 1
        seconds = {}
        for name, now_ms, due in (("none due", due_ms - 1, 0), ("1,000 due", due_ms, DUE_KEYS)):
            began = time.process_time()
            output = made.run(Turns(), now_ms)
            seconds[name] = round(time.process_time() - began, 4)
            assert sum(rows.height for rows in output.sinks.values()) == due
    return {**seconds, "greatest memory in MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}


def _turns(first: int, count: int, keys: int, value_bytes: int) -> Turns:
    numbers = pl.int_range(first, first + count, dtype=pl.Int64, eager=True)
    frame = pl.DataFrame(
        {
            "customer": "customer-" + (numbers * 7919 % keys).cast(pl.String),
            "event": numbers.cast(pl.String).str.pad_end(value_bytes, "."),
            "_ts": numbers,
            "_partition": pl.repeat(0, count, dtype=pl.Int32, eager=True),
            "_offset": numbers,
            "_deleted": pl.repeat(False, count, dtype=pl.Boolean, eager=True),
        }
    )
    return Arrivals([Part(input="in", rank=0, partition=0, frame=with_keys(frame, 0, 0))]).turns


if __name__ == "__main__":
    sizes = {68: 500_000, 10_000: 20_000, 100_000: 2_000}
    found = {f"{size:,} bytes": pace(size, records) for size, records in sizes.items()}
    json.dump({**found, f"{OPEN_KEYS:,} open batches, seconds": idle()}, sys.stdout, indent=2)
    print()
