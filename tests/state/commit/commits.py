"""An application with three tables, and commits to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.commit.tables import read_rows
from weir.state.storage.places import Place
from weir.state.types import StateId, TableSpec

FACTS = TableSpec(name="facts", schema=pl.Schema({"n": pl.Int64(), "_epoch": pl.Int64()}))


TOTALS = TableSpec(
    name="totals",
    keys=("k",),
    schema=pl.Schema(
        {
            "k": pl.String(),
            "n": pl.Int64(),
            "_ts": pl.Datetime("ms", "UTC"),
            "_epoch": pl.Int64(),
            "_seq": pl.Int64(),
            "_deleted": pl.Boolean(),
        }
    ),
)


CHANGES = TableSpec(
    name="_changelog/s",
    partition_by=("task",),
    keys=("k",),
    schema=pl.Schema(
        {"k": pl.String(), "n": pl.Int64(), "_epoch": pl.Int64(), "_deleted": pl.Boolean(), "task": pl.String()}
    ),
)


TABLES = (FACTS, TOTALS, CHANGES)


class Crash(BaseException):
    """Stands for a kill, seen from inside the process."""


def committer(
    warehouse: Place, tables: Sequence[TableSpec] = TABLES, on_step: Callable[[str], None] = lambda step: None
) -> Committer:
    return Committer(warehouse, "app", tables, fingerprint="f", on_step=on_step)


def record(warehouse: Place, generation: int, epoch: int) -> CommitRecord:
    """A commit with one file for each table; every number is written once."""
    app, key = warehouse / "app", f"k{epoch % 3}"
    files = (
        write_file(app, FACTS, pl.DataFrame({"n": [epoch], "_epoch": [epoch]})),
        write_file(
            app,
            TOTALS,
            pl.DataFrame(
                {
                    "k": [key, key],
                    "n": [0, epoch],
                    "_ts": [1, 2],
                    "_epoch": [epoch] * 2,
                    "_seq": [0, 1],
                    "_deleted": [False, epoch % 4 == 0],
                }
            ),
        ),
        write_file(
            app,
            CHANGES,
            pl.DataFrame({"k": [key], "n": [epoch], "_epoch": [epoch], "_deleted": [False]}),
            {"task": "0_0"},
        ),
    )
    tasks = {"0_0": TaskCommit(state=StateId(generation, epoch), instance="i", positions={"t": {0: epoch}})}
    return CommitRecord(
        kind="commit",
        generation=generation,
        epoch=epoch,
        at_ms=epoch,
        fingerprint="f",
        files=files,
        reason="interval",
        tasks=tasks,
    )


def facts(warehouse: Place) -> list[int]:
    return sorted(read_rows(warehouse / "app" / "facts")["n"])


def all_counts(warehouse: Place) -> list[int]:
    return [read_rows(warehouse / "app" / spec.name).height for spec in TABLES]


FIGHTER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from tests.state.commit.test_protocol import FACTS, committer
from weir.state.commit.files import write_file
from weir.state.commit.record import CommitRecord
from weir.state.errors import FencedError
from weir.state.storage.places import folder_at
import polars as pl
warehouse, end = folder_at(sys.argv[1]), time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    driver = committer(warehouse, tables=(FACTS,))
    try:
        claim = driver.claim()
        epoch = claim.newest.epoch if claim.newest else 0
        for _ in range(4):
            epoch += 1
            entry = write_file(warehouse / "app", FACTS, pl.DataFrame({"n": [epoch], "_epoch": [epoch]}))
            driver.commit(CommitRecord(kind="commit", generation=claim.generation, epoch=epoch, at_ms=0,
                                       fingerprint="f", files=(entry,)))
            print("commit", claim.generation, epoch, flush=True)
    except FencedError:
        print("fenced", flush=True)
    finally:
        driver.close()
"""
