"""What a world has left: outputs as the model has them, and stores that hold what their changelogs say.

Outputs and changelogs are read without the code under test, but for the bytes that a store has for a row.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl

from tests.pipelines.order.description import Program
from tests.pipelines.order.running import Result, of_rows
from tests.simulation.delta_log import live_files, read_file, transactions
from tests.simulation.place import SimulatedPlace
from weir.state.changelog.reading import encoded
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.engine.instances import current_instance
from weir.state.engine.views import open_reader
from weir.state.types import CHANGELOG_FOLDER, IsolationLevel, StoreSpec, TaskId


class DifferenceError(AssertionError):
    """What is there is not what should be."""


def require_equal(wanted: Result, program: Program, place: SimulatedPlace) -> None:
    """Raise ``DifferenceError`` if outputs differ from the model, or stores from their changelogs."""
    warehouse = place.warehouse / place.application.id
    for sink in program.facts():
        _same(f"facts out{sink}", Counter(of_rows(_rows(warehouse / f"out{sink}"))), wanted.facts[sink])
    for sink in program.updates():
        found = _standing(_rows(warehouse / f"out{sink}"))
        _same(f"standing rows of out{sink}", found, wanted.standing[sink])
    commit = newest_commit(place.warehouse, place.application.id)
    assert commit is not None
    late = sum(task.totals.get("late_records", 0) for task in commit.tasks.values())
    _same("late records", late, wanted.late_records)
    for table, version in commit.table_versions.items():
        _same(f"the version of table {table}", transactions(warehouse / table, place.application.id)[-1:], [version])
    _require_stores(place, commit)


def _rows(table: Path) -> list[dict[str, Any]]:
    """The rows of an output, in the order of their epochs; none if there is no table."""
    try:
        frames = [read_file(table, path) for path in live_files(table)] if table.exists() else []
    except OSError as error:
        raise DifferenceError(f"{table.name} cannot be read: {error}") from error
    return sorted((row for frame in frames for row in frame.to_dicts()), key=_place)


def _place(row: dict[str, Any]) -> tuple[int, int]:
    return row["_epoch"], row.get("_seq", 0)


def _standing(rows: list[dict[str, Any]]) -> dict[Any, Any]:
    """What stands of updates: the newest row of each key that is not deleted."""
    newest = {tuple(row.get(name) for name in ("key", "window_start", "window_end")): row for row in rows}
    standing = of_rows(row for row in newest.values() if not row["_deleted"])
    return {key: (value, ts) for key, value, ts in standing}


def _require_stores(place: SimulatedPlace, commit: CommitRecord) -> None:
    """Each store has the rows of its changelog, byte by byte."""
    topology = place.application.over(commit, place.topics.topics()).topology
    folder = place.warehouse / place.application.id
    counts = topology.partition_counts(place.topics.partition_counts())
    stores = [store for sub_topology in topology.sub_topologies for store in sub_topology.stores]
    changelogs = {store.name: _changelog(folder, store, commit.epoch) for store in stores}
    for task in (TaskId(index, partition) for index, count in counts.items() for partition in range(count)):
        name = topology.task_name(task)
        with open_reader(current_instance(place.state_folder / name), IsolationLevel.READ_COMMITTED) as reader:
            for store in topology.sub_topology(task.sub_topology).stores:
                wanted = changelogs[store.name].get(str(task.partition), {})
                _same(f"store {store.name} of task {name}", dict(reader.scan(store.name)), wanted)


def _changelog(folder: Path, store: StoreSpec, epoch: int) -> dict[str, dict[bytes, bytes]]:
    """What the stores of each partition have to hold after ``epoch``."""
    table, found = folder / CHANGELOG_FOLDER / store.name, dict[str, list[pl.DataFrame]]()
    for path, values in live_files(table).items():
        found.setdefault(str(values["task"]).rpartition("_")[2], []).append(read_file(table, path))
    return {partition: _held(store, pl.concat(frames, how="diagonal"), epoch) for partition, frames in found.items()}


def _held(store: StoreSpec, rows: pl.DataFrame, epoch: int) -> dict[bytes, bytes]:
    rows = rows.filter(pl.col("_epoch") <= epoch).sort("_epoch", maintain_order=True)
    newest = rows.unique([*store.key], keep="last").with_columns(pl.col("_ts").dt.timestamp("ms"))
    parts = encoded(store, newest)
    return {
        key: value for part in parts for key, value in zip(part.keys, part.values, strict=True) if value is not None
    }


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise DifferenceError(f"{what}: {found}, and not {wanted}")
