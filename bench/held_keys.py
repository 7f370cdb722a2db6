"""A suppression that holds ten million keys: ``python -m bench.held_keys [KEYS]`` prints one JSON object.

The buffer is on disk, so the memory of its task stays at what one epoch needs, however many keys are held.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import polars as pl

from bench.memory import peak_memory
from weir import BufferConfig, StreamsBuilder, String, Suppressed
from weir.pipelines.tasks.order import Arrivals, Part, Turns, with_keys
from weir.pipelines.tasks.processor import TaskProcessor
from weir.state.engine.task_store import TaskStore
from weir.state.errors import MapFullError
from weir.state.types import StateId

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
    sub_topology = builder.build().sub_topologies[0]
    processor, clocks, held = TaskProcessor(sub_topology), dict[str, int](), 0
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="held-keys-") as folder, peak_memory(os.getpid()) as peak:
        store = TaskStore.create(Path(folder, "store"), "0_0", [spec.name for spec in sub_topology.stores])
        for epoch, first in enumerate(range(0, keys, EPOCH_RECORDS), 1):
            state, expected = StateId(1, epoch), StateId(1, epoch - 1) if epoch > 1 else None
            while True:
                try:
                    with store.session() as session:
                        output = processor.run(
                            _turns(_records(first, min(EPOCH_RECORDS, keys - first))), session, clocks, 0
                        )
                        store.apply(
                            session,
                            state=state,
                            expected=expected,
                            generation=1,
                            plan_hash=str(state),
                            make_receipt=lambda _: b"",
                        )
                    break
                except MapFullError:
                    store.grow()
            store.settle(generation=1, expected=state, committed=state)
            clocks, held = output.clocks, output.metrics.buffers[HELD][0]
        store.close()
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
