"""What a refresh of a table of upserts costs, beside a merge by delta-rs: time, processor time and memory.

``python -m bench.upserts [ROWS [CHANGED]]`` makes a table of 1,000,000 rows and changes 10,000 of its keys five times,
once at random and once among the newest; each way runs in a process of its own. Prints one JSON object: medians of the
last four rounds in seconds, the process's greatest memory in MB before the first and after the last.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import polars as pl
from deltalake import CommitProperties, DeltaTable, Transaction

from weir.state.changelog.upserts import Upserts
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import file_actions
from weir.state.types import TableSpec

ROWS, CHANGED, ROUNDS, NEWEST = 1_000_000, 10_000, 5, 50_000
UPDATES = TableSpec(
    name="_updates/totals",
    keys=("key",),
    schema=pl.Schema(
        {
            "key": pl.String(),
            "orders": pl.Int64(),
            "total": pl.Float64(),
            "_ts": pl.Datetime("ms", "UTC"),
            "_epoch": pl.Int64(),
            "_seq": pl.Int64(),
            "_deleted": pl.Boolean(),
        }
    ),
)


def updates(numbers: list[int], epoch: int) -> pl.DataFrame:
    """An update of each of these keys; one of a hundred is a deletion."""
    rows = pl.DataFrame({"number": numbers}).select(
        key=pl.format("key-{}", pl.col("number").cast(pl.String).str.zfill(9)),
        orders=pl.lit(epoch, pl.Int64()),
        total=pl.col("number") * 1.5,
        _ts=pl.lit(epoch, pl.Int64()).cast(pl.Datetime("ms", "UTC")),
        _epoch=pl.lit(epoch, pl.Int64()),
        _seq=pl.int_range(pl.len(), dtype=pl.Int64()),
    )
    return rows.with_columns(_deleted=pl.lit(epoch > 1) & (pl.col("_seq") % 100 == 0))


def commit(warehouse: Path, driver: Committer, rows: pl.DataFrame, epoch: int, generation: int) -> None:
    """One commit of one file."""
    file = write_file(warehouse / "app", UPDATES, rows)
    driver.commit(
        CommitRecord(kind="commit", generation=generation, epoch=epoch, at_ms=0, fingerprint="f", files=(file,))
    )


def make(warehouse: Path, rows: int) -> None:
    """The table with its first rows."""
    driver = Committer(warehouse, "app", [UPDATES], fingerprint="f")
    generation = driver.claim().generation
    commit(warehouse, driver, updates(list(range(rows)), 1), 1, generation)
    Upserts(warehouse / "app", UPDATES, "app").refresh()
    driver.close()


def merged(folder: Path, changed: pl.DataFrame, version: int) -> None:
    """The same by delta-rs, with the same transaction."""
    columns = {name: f"s.{name}" for name in ("key", "orders", "total", "_ts")}
    source = changed.with_columns(pl.col("_ts").cast(pl.Datetime("us", "UTC")))
    (
        DeltaTable(folder)
        .merge(
            source.to_arrow(),
            predicate="s.key = t.key",
            source_alias="s",
            target_alias="t",
            commit_properties=CommitProperties(app_transactions=[Transaction("app", version)]),
        )
        .when_matched_delete("s._deleted")
        .when_matched_update(columns)
        .when_not_matched_insert(columns, predicate="NOT s._deleted")
        .execute()
    )


def measure(warehouse: Path, way: str, which: str, rows: int, changed: int) -> dict[str, float]:
    """Change the keys some times, and bring the table up to date each time."""
    driver = Committer(warehouse, "app", [UPDATES], fingerprint="f")
    claim = driver.claim()
    assert claim.newest is not None
    upserts, rng = Upserts(warehouse / "app", UPDATES, "app"), random.Random(1)
    wall, processor, written = list[float](), list[float](), list[int]()
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    for epoch in range(claim.newest.epoch + 1, claim.newest.epoch + 1 + ROUNDS):
        numbers = rng.sample(range(rows) if which == "at random" else range(rows - NEWEST, rows), changed)
        frame = updates(numbers, epoch)
        commit(warehouse, driver, frame, epoch, claim.generation)
        before = set(file_actions(DeltaTable(upserts_folder := warehouse / "app" / "totals"))["path"])

        def merge(frame: pl.DataFrame = frame, epoch: int = epoch) -> None:
            merged(upserts_folder, frame, claim.generation << 32 | epoch)

        work: Callable[[], object] = upserts.refresh if way == "refresh" else merge
        began, began_processor = time.perf_counter(), time.process_time()
        work()
        wall.append(time.perf_counter() - began)
        processor.append(time.process_time() - began_processor)
        after = file_actions(DeltaTable(upserts_folder))
        written.append(int(after.filter(~pl.col("path").is_in(before))["num_records"].sum()))
    driver.close()
    return {
        "seconds": round(statistics.median(wall[1:]), 2),
        "processor_seconds": round(statistics.median(processor[1:]), 2),
        "rows_written": statistics.median(written[1:]),
        "memory_before_mb": peak_before,
        "memory_after_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def main(rows: int = ROWS, changed: int = CHANGED) -> dict[str, dict[str, float]]:
    """Each way over each choice of keys, with a table of its own."""
    found = {}
    for which in ("at random", "among the newest"):
        for way in ("refresh", "merge"):
            with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
                with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                    pool.submit(make, Path(name), rows).result()
                with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                    found[f"{way}, {which}"] = pool.submit(measure, Path(name), way, which, rows, changed).result()
    return found


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:])), indent=2))
