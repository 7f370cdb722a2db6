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
from bench.one_task import Task, turns_of
from weir import Json, StreamsBuilder, String, Sum
from weir.pipelines.spark.worker import GC_ALLOCATIONS
from weir.pipelines.tasks.order import Turns
from weir.pipelines.tasks.output import EpochOutput
from weir.pipelines.topology.topology import table_spec
from weir.state.changelog.rows import changelog_frame, changelog_spec
from weir.state.commit.files import write_file
from weir.state.engine.session import EpochSession
from weir.state.storage.places import folder_at

KEYS, EPOCH_RECORDS, EPOCHS_A_COMMIT = 1_500_000, 50_000, 2


class Run(Task):
    """A task with its files, and what its parts have taken."""

    epochs_a_commit = EPOCHS_A_COMMIT

    def __init__(self, folder: Path) -> None:
        builder = StreamsBuilder()
        grouped = builder.stream("in", key=String("user"), value=Json(Event)).group_by_key()
        grouped.agg("sums", total=Sum("amount")).to_delta("out")
        super().__init__(folder, builder.build().sub_topologies[0])
        self.warehouse = folder_at(str(folder / "warehouse"))
        (self.spec,) = self.sub_topology.stores
        self.changelog, self.table = changelog_spec(self.spec), table_spec(self.sub_topology.sinks[0])
        self.spent_s: dict[str, float] = defaultdict(float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began_s = time.process_time()
        yield
        self.spent_s[name] += time.process_time() - began_s

    def write(self, session: EpochSession, output: EpochOutput) -> None:
        epoch = pl.lit(self.epoch, pl.Int64).alias("_epoch")
        with self.part("changelog's rows"):
            changes = changelog_frame(self.spec, session).with_columns_seq(epoch)
        with self.part("files"):
            write_file(self.warehouse, self.changelog, changes, {"task": "0_0", "segment": "0"})
            (rows,) = output.sinks.values()
            write_file(self.warehouse, self.table, rows.with_columns_seq(epoch), {})


def _turns(numbers: np.ndarray, first: int) -> Turns:
    users = pl.Series(numbers)
    return turns_of("user-" + users.cast(pl.String), first, amount=users % 1000)


def main(keys: int) -> None:
    found = {}
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 50, 50)  # as workers do
    with tempfile.TemporaryDirectory(prefix="distinct-keys-") as folder, peak_memory(os.getpid()) as peak:
        run, random = Run(Path(folder)), np.random.default_rng(1)
        for index, name in enumerate(("new keys", "known keys")):
            users = random.permutation(keys)
            for first in range(0, keys, EPOCH_RECORDS):
                run.run(_turns(users[first : first + EPOCH_RECORDS], index * keys + first), 0)
            parts = {part: round(spent_s / keys * 1e6, 2) for part, spent_s in run.spent_s.items()}
            found[name] = {**parts, "all": round(sum(run.spent_s.values()) / keys * 1e6, 2)}
            run.spent_s.clear()
        run.store.close()
    print(json.dumps({"us": found, "peak_mb": peak.rss_anon_bytes >> 20}, indent=2))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else KEYS)
