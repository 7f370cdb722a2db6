"""What merging a large changelog costs, in this process and as a Spark job: time and memory of the process tree.

``python -m bench.compaction [KEYS [VERSIONS]]`` makes a changelog of one task with each of 4,000,000 keys twice, in
files of 250,000 rows, and merges it each way, in a process of its own. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import polars as pl

from bench.memory import peak_memory
from weir.infra.settings import Settings
from weir.pipelines.spark.merging import SparkMerging
from weir.state.changelog.compaction import Compaction
from weir.state.changelog.rows import SEGMENT_EPOCHS, changelog_spec
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.storage.places import folder_at
from weir.state.types import FileEntry, StoreSpec

KEYS, VERSIONS, ROWS_A_FILE = 4_000_000, 2, 250_000
CHANGES = changelog_spec(
    StoreSpec(
        name="totals",
        key=pl.Schema({"key": pl.String()}),
        value=pl.Schema({"orders": pl.Int64(), "total": pl.Float64()}),
    )
)
WAYS = ("process", "spark")


def make(dir: Path, keys: int, versions: int) -> None:
    """The changelog: each file has keys from everywhere, and one row of a hundred is a deletion."""
    warehouse, epoch = folder_at(Settings.load(dir).warehouse), 0
    driver = Committer(warehouse, "app", [CHANGES], fingerprint="f")
    generation, files = driver.claim().generation, list[FileEntry]()
    for version in range(versions):
        numbers = pl.int_range(keys, eager=True).shuffle(seed=version)
        for part in numbers.to_frame("number").iter_slices(ROWS_A_FILE):
            epoch += 1
            rows = part.select(
                key=pl.format("key-{}", pl.col("number").cast(pl.String).str.zfill(12)),
                orders=pl.lit(epoch, pl.Int64()),
                total=pl.col("number") * 1.5,
                _ts=pl.lit(epoch, pl.Int64()).cast(pl.Datetime("ms", "UTC")),
                _epoch=pl.lit(epoch, pl.Int64()),
                _deleted=pl.col("number") % 100 == epoch % 100,
            )
            partition = {"task": "0_0", "segment": str(epoch // SEGMENT_EPOCHS)}
            files.append(write_file(warehouse / "app", CHANGES, rows, partition))
    now_ms, named = time.time_ns() // 1_000_000, tuple(files)
    driver.commit(
        CommitRecord(kind="commit", generation=generation, epoch=epoch, at_ms=now_ms, fingerprint="f", files=named)
    )
    driver.close()


def measure(dir: Path, way: str) -> dict[str, float]:
    """Compact it, with the start of Spark."""
    settings, began = Settings.load(dir), time.perf_counter()
    with peak_memory(os.getpid()) as peak, SparkMerging(settings, lambda keys: way == "spark") as merge:
        report, _ = Compaction(folder_at(settings.warehouse), "app", is_whole=True, merge=merge).run([CHANGES.name])
        seconds = time.perf_counter() - began
    return {
        "seconds": round(seconds, 1),
        "memory_mb": peak.rss_anon_bytes >> 20,
        "rows_before": report.rows_before,
        "rows_after": report.rows_after,
        "files_after": report.files_after,
    }


def main(keys: int = KEYS, versions: int = VERSIONS) -> dict[str, dict[str, float]]:
    """Each way over the same files."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        made = Path(name, "made")
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            pool.submit(make, made, keys, versions).result()
        for way in WAYS:
            shutil.copytree(made, copied := Path(name, way), copy_function=os.link)
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                found[way] = pool.submit(measure, copied, way).result()
            shutil.rmtree(copied)
    return found


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:])), indent=2))
