"""One task over many distinct keys: ``python -m bench.distinct_keys [KEYS]`` prints one JSON object.

A running sum per key, in no order: first each key is new, then each is changed once. Stores, changelog and results are
on disk, and every other epoch is committed; reading, Spark and Delta's logs are left out. Microseconds of processor
time per record, of all threads, by part of the epoch, and the peak of anonymous memory.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl

from bench.apps import Event
from bench.memory import peak_memory
from weir import Json, StreamsBuilder, String, Sum
from weir.pipelines.spark.worker import GC_ALLOCATIONS
from weir.pipelines.tasks.order import Arrivals, Part, Turns, with_keys
from weir.pipelines.tasks.output import EpochOutput
from weir.pipelines.tasks.processor import TaskProcessor
from weir.pipelines.topology.topology import table_spec
from weir.state.changelog.rows import changelog_frame, changelog_spec
from weir.state.commit.files import write_file
from weir.state.engine.session import EpochSession
from weir.state.engine.task_store import TaskStore
from weir.state.errors import MapFullError
from weir.state.storage.places import folder_at
from weir.state.types import StateId

KEYS, EPOCH_RECORDS, EPOCHS_A_COMMIT = 1_500_000, 50_000, 2


class Run:
    """A task, and what its parts have taken."""

    def __init__(self, folder: Path) -> None:
        builder = StreamsBuilder()
        grouped = builder.stream("in", key=String("user"), value=Json(Event)).group_by_key()
        grouped.agg("sums", total=Sum("amount")).to_delta("out")
        topology = builder.build()
        self.sub_topology = topology.sub_topologies[0]
        self.processor, self.clocks, self.epoch = TaskProcessor(self.sub_topology), dict[str, int](), 0
        self.warehouse = folder_at(str(folder / "warehouse"))
        self.committed: StateId | None = None
        (self.spec,) = self.sub_topology.stores
        self.changelog, self.table = changelog_spec(self.spec), table_spec(self.sub_topology.sinks[0])
        self.store = TaskStore.create(folder / "store", "0_0", [self.spec.name])
        self.spent_s: dict[str, float] = defaultdict(float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began_s = time.process_time()
        yield
        self.spent_s[name] += time.process_time() - began_s

    def run(self, turns: Turns) -> None:
        """One epoch; every ``EPOCHS_A_COMMIT``-th is committed."""
        expected = StateId(1, self.epoch) if self.epoch else None
        with self.part("settle"):
            if self.epoch % EPOCHS_A_COMMIT == 0:
                self.committed = expected
            self.store.settle(generation=1, expected=expected, committed=self.committed)
        self.epoch += 1
        while True:
            try:
                with self.store.session() as session:
                    with self.part("operators"):
                        output = self.processor.run(turns, session, self.clocks, 0)
                    self._write(session, output)
                    with self.part("store's transaction"):
                        self.store.apply(
                            session,
                            state=StateId(1, self.epoch),
                            expected=expected,
                            generation=1,
                            plan_hash=str(self.epoch),
                            make_receipt=lambda _: b"",
                        )
                break
            except MapFullError:
                self.store.grow()
        self.clocks = output.clocks

    def _write(self, session: EpochSession, output: EpochOutput) -> None:
        epoch = pl.lit(self.epoch, pl.Int64).alias("_epoch")
        with self.part("changelog's rows"):
            changes = changelog_frame(self.spec, session).with_columns_seq(epoch)
        with self.part("files"):
            write_file(self.warehouse, self.changelog, changes, {"task": "0_0", "segment": "0"})
            (rows,) = output.sinks.values()
            write_file(self.warehouse, self.table, rows.with_columns_seq(epoch), {})


def _turns(users: np.ndarray, first: int) -> Turns:
    numbers = pl.int_range(first, first + len(users), dtype=pl.Int64, eager=True)
    frame = pl.DataFrame(
        {
            "user": "user-" + pl.Series(users).cast(pl.String),
            "amount": numbers % 1000,
            "_ts": numbers,
            "_partition": pl.repeat(0, len(users), dtype=pl.Int32, eager=True),
            "_offset": numbers,
            "_deleted": pl.repeat(False, len(users), dtype=pl.Boolean, eager=True),
        }
    )
    return Arrivals([Part(input="in", rank=0, partition=0, frame=with_keys(frame, 0, 0))]).turns


def main(keys: int) -> None:
    found = {}
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 50, 50)  # as workers do
    with tempfile.TemporaryDirectory(prefix="distinct-keys-") as folder, peak_memory(os.getpid()) as peak:
        run, random = Run(Path(folder)), np.random.default_rng(1)
        for index, name in enumerate(("new keys", "known keys")):
            users = random.permutation(keys)
            for first in range(0, keys, EPOCH_RECORDS):
                run.run(_turns(users[first : first + EPOCH_RECORDS], index * keys + first))
            parts = {part: round(spent_s / keys * 1e6, 2) for part, spent_s in run.spent_s.items()}
            found[name] = {**parts, "all": round(sum(run.spent_s.values()) / keys * 1e6, 2)}
            run.spent_s.clear()
        run.store.close()
    print(json.dumps({"us": found, "peak_mb": peak.rss_anon_bytes >> 20}, indent=2))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else KEYS)
