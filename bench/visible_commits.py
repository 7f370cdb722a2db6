"""How soon a commit is seen: ``python -m bench.visible_commits [--commits N] [--folder FOLDER]`` prints a JSON object.

Commits of eight files of two tables, without Spark and without a broker: milliseconds from the call to the last entry
that a reader of a table sees, and processor time. What takes most of it is waiting for the disk, so FOLDER, or else the
folder for temporary files, has to be on one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import polars as pl

from bench.processes import BenchError
from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.types import TableSpec

SCHEMA = pl.Schema({"n": pl.Int64(), "_epoch": pl.Int64()})
TABLES = tuple(TableSpec(name=name, schema=SCHEMA) for name in ("orders", "customers"))
FILES = 4
"""Of each table in each commit: one for each of so many tasks."""
WARM_UP = 10


def main(commits: int, folder: Path) -> None:
    appended, seen_ms, cpu_ms = list[float](), list[float](), list[float]()

    def on_step(step: str) -> None:
        if step == "table appended":
            appended.append(time.perf_counter())

    committer = Committer(folder, "bench", TABLES, fingerprint="bench", on_step=on_step)
    committer.claim()
    for epoch in range(1, WARM_UP + commits + 1):
        rows = pl.DataFrame({"n": [epoch], "_epoch": [epoch]})
        files = tuple(write_file(folder / "bench", table, rows) for table in TABLES for _ in range(FILES))
        record = CommitRecord(kind="commit", generation=1, epoch=epoch, at_ms=0, fingerprint="bench", files=files)
        appended.clear()
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        committer.commit(record)
        cpu_ms.append(1000 * (time.process_time() - began_cpu_s))
        if len(appended) != len(TABLES):
            raise BenchError(f"{len(appended)} of {len(TABLES)} tables were appended")
        seen_ms.append(1000 * (appended[-1] - began_s))
    committer.close()
    seen_ms, cpu_ms = sorted(seen_ms[WARM_UP:]), cpu_ms[WARM_UP:]
    found = {
        "commits": commits,
        "seen_ms": round(statistics.median(seen_ms), 2),
        "seen_p90_ms": round(seen_ms[int(0.9 * commits)], 2),
        "cpu_ms": round(statistics.mean(cpu_ms), 2),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.visible_commits", description="How soon a commit is seen.")
    parser.add_argument("--commits", type=int, default=100, help="how many to measure")
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as made:
        main(arguments.commits, Path(made))
