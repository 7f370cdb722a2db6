"""An application with three tables, and commits to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import polars as pl

from weir.state.commit.files import write_file
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord, TaskCommit
from weir.state.commit.tables import read_rows
from weir.state.errors import FencedError
from weir.state.storage.places import Place, folder_at
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


def fight(warehouse: str, told: Path, wanted: Mapping[str, int]) -> None:
    """Claim and commit again and again beside others, for a process of its own, until ``told`` has so many lines of
    each kind that is ``wanted``: ``commit GENERATION EPOCH`` of a commit that is done, ``fenced``, and others'."""
    place = folder_at(warehouse)
    while not has_told(told, wanted):
        driver = committer(place, tables=(FACTS,))
        try:
            claim = driver.claim()
            epoch = claim.newest.epoch if claim.newest else 0
            for _ in range(4):
                epoch += 1
                entry = write_file(place / "app", FACTS, pl.DataFrame({"n": [epoch], "_epoch": [epoch]}))
                driver.commit(
                    CommitRecord(
                        kind="commit",
                        generation=claim.generation,
                        epoch=epoch,
                        at_ms=0,
                        fingerprint="f",
                        files=(entry,),
                    )
                )
                tell(told, f"commit {claim.generation} {epoch}")
        except FencedError:
            tell(told, "fenced")
        finally:
            driver.close()


def tell(told: Path, line: str) -> None:
    with told.open("a") as file:
        print(line, file=file)


def has_told(told: Path, wanted: Mapping[str, int]) -> bool:
    lines = Counter(line.split()[0] for line in told.read_text().splitlines()) if told.exists() else Counter[str]()
    return all(lines[kind] >= count for kind, count in wanted.items())


def committed(told: Path) -> set[tuple[int, ...]]:
    """Generation and epoch of the commits that were told."""
    lines = (line.split() for line in told.read_text().splitlines())
    return {tuple(map(int, place)) for kind, *place in lines if kind == "commit"}
