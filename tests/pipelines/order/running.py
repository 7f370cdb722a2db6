"""Runs of a described program: by the real driver in this process, cut and killed at random, and by the test driver."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.faults.dying import KilledError
from tests.pipelines.order import building
from tests.pipelines.order.description import Data, Program
from tests.pipelines.order.model import Key, Machine, Outcome, Value
from tests.pipelines.spark import inline
from weir.state.commit.tables import read_table
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.in_memory import free
from weir.testing import TopologyTestDriver


@dataclass(frozen=True)
class Result:
    """What a run leaves, in a form that can be compared."""

    facts: dict[int, Counter[tuple[Key, Value, int]]]
    standing: dict[int, dict[Key, tuple[Value, int]]]
    late_records: int


def of_model(program: Program, data: Data) -> Result:
    outcome: Outcome = Machine(program).run(data)
    return Result(
        {place: Counter(rows) for place, rows in outcome.facts.items()}, outcome.standing, outcome.late_records
    )


@dataclass(frozen=True)
class Cuts:
    """How a run is cut into epochs, and where it is killed."""

    max_records: int
    max_skew: int | None
    steps_between_kills: tuple[int, ...] = ()
    """After how many steps of the protocol each generation but the last is killed."""
    seed: int = 0
    """Of the order in which the tasks of a stage run."""
    commit_interval: int = 1
    loses: str = "nothing"
    """What each kill takes along: "nothing", what only "memory" had, or all local "state"."""


class ShuffledSlots(inline.InlineSlots):
    """Runs the plans of a stage in another order each time."""

    rng: random.Random

    def run(self, plans: Any) -> Any:
        plans = list(plans)
        self.rng.shuffle(plans)
        return super().run(plans)


@dataclass
class ShuffledPlace(inline.Place):
    seed: int = 0

    def driver(self, *arguments: Any, **settings: Any) -> Any:
        driver = super().driver(*arguments, **settings)
        slots = driver._coordinator.slots
        slots.__class__ = ShuffledSlots
        slots.rng = random.Random(self.seed)
        return driver


def of_driver(program: Program, data: Data, cuts: Cuts, folder: Path) -> Result:
    """Run until all topics are read, with a new generation after each kill."""
    place = ShuffledPlace(
        building.application(
            program,
            commit_interval=timedelta(milliseconds=cuts.commit_interval),
            max_skew=None if cuts.max_skew is None else timedelta(milliseconds=cuts.max_skew),
        ),
        building.topics(data, program.topics_with_headers),
        folder,
        max_records=cuts.max_records,
        seed=cuts.seed,
    )
    for count in cuts.steps_between_kills:
        try:
            place.run(_killing_after(count))
        except KilledError:
            if cuts.loses != "nothing":
                TaskStoreCache.close_all()
                free(place.state_folder)
            if cuts.loses == "state":
                shutil.rmtree(place.state_folder, ignore_errors=True)
    summary = place.run()
    TaskStoreCache.close_all()
    free(place.state_folder)
    warehouse = place.warehouse / place.application.id
    facts = {sink: Counter(rows_of(warehouse / f"out{sink}")) for sink in program.facts()}
    standing = {
        sink: {key: (value, ts) for key, value, ts in rows_of(warehouse / f"out{sink}")} for sink in program.updates()
    }
    return Result(facts, standing, summary.totals.get("late_records", 0))


def of_test_driver(program: Program, data: Data) -> Result:
    """One record after another, in the one order; for topics of one partition."""
    with TopologyTestDriver(building.application(program), topics=[topic for topic, _ in program.topics]) as driver:
        inputs = {topic: driver.create_input_topic(topic) for topic, _ in program.topics}
        taken = [
            (topic, record)
            for (topic, _), records in data.items()
            if topic in program.global_topics
            for record in records
        ]
        taken += [(topic, record) for topic, _, record in Machine(program).order(data)]
        for topic, (key, value, ts, _) in taken:
            headers = building.headers_of(value) if topic in program.topics_with_headers else ()
            inputs[topic].pipe_input(key, value and building.Value(*value), timestamp_ms=ts, headers=headers)
        sinks = (*program.facts(), *program.updates())
        tables = {sink: driver.create_output_table(f"out{sink}") for sink in sinks}
    facts, standing = {}, {}
    for sink, table in tables.items():
        rows = [(*_row(record.row)[:2], _ms(record.timestamp), record.is_deleted) for record in table.read_records()]
        if sink in program.facts():
            facts[sink] = Counter((key, value, ts) for key, value, ts, _ in rows)
        else:
            newest = {key: (value, ts, is_deleted) for key, value, ts, is_deleted in rows}
            standing[sink] = {key: (value, ts) for key, (value, ts, is_deleted) in newest.items() if not is_deleted}
    return Result(facts, standing, driver.counts["late_records"])


def _killing_after(count: int) -> Any:
    left = count

    def on_step(name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KilledError(name)

    return on_step


def rows_of(table: Path) -> list[tuple[Key, Value, int]]:
    """The rows of an output table as the model has them; none if there is no table."""
    return of_rows(read_table(table).to_dicts()) if table.exists() else []


def of_rows(rows: Iterable[Mapping[str, Any]]) -> list[tuple[Key, Value, int]]:
    """Rows of an output table as the model has them."""
    return [(*_row(row), _ms(row["_ts"])) for row in rows]


def _row(row: Mapping[str, Any]) -> tuple[Key, Value]:
    key = row["key"]
    if "window_start" in row:
        key = key, _ms(row["window_start"]), _ms(row["window_end"])
    return key, Value(row["num"], row["word"])


def _ms(moment: datetime) -> int:
    return round((moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment).timestamp() * 1000)
