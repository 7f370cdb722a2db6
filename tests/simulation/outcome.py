"""What a world has left: outputs as the model has them, and stores that hold what their changelogs say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tests.pipelines.order.description import Program
from tests.pipelines.order.running import Result, rows_of
from tests.simulation.delta_log import transactions
from tests.simulation.place import SimulatedPlace
from weir.state.changelog.reading import TaskChangelog, encoded
from weir.state.commit.protocol import newest_commit
from weir.state.engine.instances import current_instance
from weir.state.engine.views import open_reader
from weir.state.types import IsolationLevel, TaskId


class DifferenceError(AssertionError):
    """What is there is not what should be."""


def require_equal(wanted: Result, program: Program, place: SimulatedPlace) -> None:
    """Raise ``DifferenceError`` if outputs differ from the model, or stores from their changelogs."""
    warehouse = place.warehouse / place.application.id
    for sink in program.facts():
        _same(f"facts out{sink}", Counter(_rows(warehouse / f"out{sink}")), wanted.facts[sink])
    for sink in program.updates():
        found = {key: (value, ts) for key, value, ts in _rows(warehouse / f"out{sink}")}
        _same(f"standing rows of out{sink}", found, wanted.standing[sink])
    commit = newest_commit(place.warehouse, place.application.id)
    assert commit is not None
    late = sum(task.totals.get("late_records", 0) for task in commit.tasks.values())
    _same("late records", late, wanted.late_records)
    for table, version in commit.table_versions.items():
        _same(f"the version of table {table}", transactions(warehouse / table, place.application.id)[-1:], [version])
    _require_stores(place, commit.epoch)


def _rows(table: Path) -> list[Any]:
    try:
        return rows_of(table)
    except OSError as error:
        raise DifferenceError(f"{table.name} cannot be read: {error}") from error


def _require_stores(place: SimulatedPlace, epoch: int) -> None:
    """Each store has the rows of its changelog, byte by byte."""
    topology, folder = place.application.topology, place.warehouse / place.application.id
    counts = topology.partition_counts(place.topics.partition_counts())
    for task in (TaskId(index, partition) for index, count in counts.items() for partition in range(count)):
        name = topology.task_name(task)
        with open_reader(current_instance(place.state_folder / name), IsolationLevel.READ_COMMITTED) as reader:
            for store in topology.sub_topology(task.sub_topology).stores:
                rows = TaskChangelog.of(folder, store, name, through=epoch).newest_rows()
                wanted = {
                    key: value
                    for part in encoded(store, rows)
                    for key, value in zip(part.keys, part.values, strict=True)
                    if value is not None
                }
                _same(f"store {store.name} of task {name}", dict(reader.scan(store.name)), wanted)


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise DifferenceError(f"{what}: {found}, and not {wanted}")
