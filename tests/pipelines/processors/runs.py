"""Runs of processors in which epochs have random sizes and drivers crash, over records with random times."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from tests.pipelines.spark.inline import Place, Topics
from weir import Application
from weir.state.commit.tables import read_rows


def records(seed: int, count: int) -> list[tuple[bytes, bytes, int]]:
    """Numbers of twelve users; time stands still, goes on, jumps, and some records are out of order."""
    chance = random.Random(seed)
    rows, time_ms = [], 0
    for number in range(count):
        time_ms += chance.choice([0, 100, 900, 2_000, 20_000, 31_000] if number % 20 == 0 else [0, 100, 900])
        late_ms = chance.choice([0, 0, 5_000])
        rows.append(
            (b"user-%d" % chance.randrange(12), number.to_bytes(8, "big", signed=True), max(0, time_ms - late_ms))
        )
    return rows


class CrashError(Exception):
    pass


@dataclass
class CrashesAt:
    steps: int

    def __call__(self, name: str) -> None:
        self.steps -= 1
        if self.steps == 0:
            raise CrashError(name)


def disturbed_run(
    application: Application, rows: list[tuple[bytes, bytes, int]], folder: Path, seed: int, topic: str = "numbers"
) -> Place:
    """Everything is read, in epochs of any size; drivers crash at any step, and local state is lost."""
    chance = random.Random(seed)
    place = Place(application, Topics({(topic, 0): []}), folder, max_records=chance.choice([7, 50, 1000]))
    given = 0
    while given < len(rows):
        given = min(len(rows), given + chance.choice([20, 90]))
        place.topics.rows[topic, 0] = rows[:given]
        place.max_records = chance.choice([7, 50, 1000])
        try:
            place.run(CrashesAt(chance.randrange(1, 40)))
        except Exception:
            place.run()
        if chance.random() < 0.3:
            for local in place.state_folder.iterdir():
                local.rename(local.with_name(f"{local.name}.gone"))
    place.run()
    return place


def written(place: Place, table: str, *columns: str) -> list[tuple]:
    """The rows of a table in the order of writing: ``columns`` and the time in ms."""
    rows = read_rows(place.warehouse / place.application.id / table).sort("_epoch", "_seq")
    return [(*values, round(at.timestamp() * 1000)) for *values, at in rows.select(*columns, "_ts").iter_rows()]
