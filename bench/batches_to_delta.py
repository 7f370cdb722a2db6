"""How fast events are batched by customer from a topic to Delta, exactly once: ``python -m bench.batches_to_delta
[EVENTS]`` prints one JSON object.

Four partitions of events of 68 bytes, two slots, one commit per second; a batch leaves with its last record or after
five seconds. The broker runs on the same cores. Every event has to be in exactly one batch.
"""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from bench import cluster
from bench.apps import COMMIT_INTERVAL
from bench.events import SMALL_BYTES, event_frame, make_events
from bench.processes import measure
from weir import Application, StreamsBuilder, String, read_table

MOST = {1_000: 500, 10_000: 500, 50_000: 50}
"""How many customers there are, and the most events of a batch."""
RUNS = 3


def _topic(customers: int) -> str:
    return f"events_of_{customers}"


def batches(customers: int) -> Application:
    """The program for so many customers."""
    builder = StreamsBuilder()
    events = builder.stream(_topic(customers), key=String("customer"), value=String("event"))
    batched = events.batch(
        max_records=MOST[customers], max_wait=timedelta(seconds=5), on_stop="flush", name=f"of_{customers}"
    )
    batched.to_delta("batches")
    return Application("batches", builder, commit_interval=COMMIT_INTERVAL)


of_1000, of_10000, of_50000 = map(batches, MOST)


def main(events: int) -> None:
    print(json.dumps({"events": events, "customers": {customers: _case(customers, events) for customers in MOST}}))


def _case(customers: int, events: int) -> dict[str, Any]:
    topic, reference = _topic(customers), f"bench.batches_to_delta:of_{customers}"
    with tempfile.TemporaryDirectory() as folder, cluster.embedded(Path(folder, "broker")) as client:
        make_events(client, topic, events, SMALL_BYTES, partial(_frame, customers))
        rates, peaks = [], []
        for run in range(RUNS):
            place = Path(folder, f"run-{run}")
            command = [sys.executable, "-m", "bench.weir_side", reference, str(place), str(client)]
            measured = measure(command, "the batches")
            written = read_table(place / "warehouse" / "batches" / "batches")
            assert (measured.records, written["records"].list.len().sum()) == (events, events)
            rates.append(round(measured.per_s))
            peaks.append(measured.peak_bytes >> 20)
    return {"most": MOST[customers], "events_per_s": rates, "batches": written.height, "peak_mb": max(peaks)}


def _frame(customers: int, start: int, stop: int, event_bytes: int) -> pl.DataFrame:
    """Events by customer instead of user."""
    number = pl.col("key").str.slice(1).cast(pl.Int64) % customers
    return event_frame(start, stop, event_bytes).with_columns(key="c" + number.cast(pl.String))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4_000_000)
