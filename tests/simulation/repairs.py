"""Rows of a world that go wrong on the disk, and the check that finds them (PROTOCOL 41).

A check says what it has found some time after it has looked, but before the next commit: what a task has committed
before that stays, as the rule says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import polars as pl
from deltalake.exceptions import DeltaError
from greenlet import greenlet

from tests.simulation.invariants import Invariants
from tests.simulation.outcome import DifferenceError
from tests.simulation.place import SimulatedPlace
from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.tasks.epoch import task_rows
from weir.state.changelog.reading import TaskChangelog, encoded
from weir.state.changelog.verify import StateDifferenceError, verify_task
from weir.state.engine.doubts import Doubt, instances_in_doubt, put_in_doubt
from weir.state.engine.instances import current_instance, instance_folder
from weir.state.errors import StateError
from weir.state.types import StoreSpec, TaskId

PATIENCE_S = 20.0
"""So long it waits for a commit."""
TRIES = 10
"""How often a row is looked for that can be damaged."""
UNREADABLE = OSError, DeltaError, StateError
"""How tables answer that nobody has mended since the power failed."""


@dataclass(frozen=True)
class Row:
    """A committed row of a store, as the file of an instance has it, and with another number."""

    task: TaskId
    name: str
    """The task's."""
    instance: Path
    store: StoreSpec
    right: bytes
    wrong: bytes


class Repairs:
    """What damages rows, and the check."""

    def __init__(self, place: SimulatedPlace, invariants: Invariants, rng: Random) -> None:
        self._place, self._invariants, self._rng = place, invariants, rng
        self._found: StateDifferenceError | None = None
        """What the check has found and not said yet."""
        self.is_on = False
        """Whether rows are damaged at all; then nobody publishes snapshots, which would keep them."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within the block a check says what it has found before the next commit at the latest."""
        confirm = Coordinator._confirm

        def confirming(coordinator: Coordinator, *arguments: Any) -> None:
            self._say()
            confirm(coordinator, *arguments)

        with patch.object(Coordinator, "_confirm", confirming):
            yield

    def live(self) -> None:
        """Damage some rows, one after another, and find each."""
        self._place.scheduler.wait(lambda: bool(self._invariants.commits), PATIENCE_S)
        for _ in range(self._rng.choice([1, 2])):
            for _ in range(TRIES):
                self._place.scheduler.sleep(self._rng.uniform(0.0, 0.5))
                if _at_once(self._damage):
                    break
            self._place.scheduler.sleep(self._rng.choice([0.0, 0.1, 1.0]))
            self._say()

    def require_restored(self) -> None:
        """Raise ``DifferenceError`` if a task is still in doubt."""
        for instance in instances_in_doubt(self._place.state_folder):
            raise DifferenceError(f"{instance.parent.name}/{instance.name} is still in doubt")

    def _say(self) -> None:
        found, self._found = self._found, None
        if found is not None and found.instance is not None:
            self._place.scheduler.note(f"the check says: {found}")
            put_in_doubt(
                found.instance,
                Doubt(
                    task=found.task_id, store=found.store, difference=str(found), found_at_s=0.0, found_by="the check"
                ),
            )

    def _damage(self) -> bool:
        """Whether a row is wrong now, and the check has seen it."""
        try:
            rows = next(filter(None, (rows() for rows in self._stores())), [])
        except UNREADABLE:
            return False
        if not rows:
            return False
        row = self._rng.choice(rows)
        places = _replace(row.instance, row.right, row.wrong)
        self._found = self._difference(row)
        if self._found is None:  # a rollback would take it back, so no check would find it
            _write(row.instance, dict.fromkeys(places, row.right))
        return self._found is not None

    def _stores(self) -> list[Callable[[], list[Row]]]:
        """What gives the rows that may be damaged, for each store of each task; in a random order, since to read all
        of them takes long."""
        place, spec = self._place, self._place.spec()
        commit, topology = spec.newest, spec.application.topology
        found = list[Callable[[], list[Row]]]()
        for task in spec.tasks if commit is not None else ():
            name = topology.task_name(task)
            instance = instance_folder(place.state_folder / name, commit.tasks[name].instance)
            if current_instance(place.state_folder / name) == instance and (instance / "data.mdb").exists():
                stores = topology.sub_topology(task.sub_topology).stores
                rows_of = partial(self._rows, task, name, instance, commit.epoch)
                found += [partial(rows_of, store) for store in stores if store.value.get("num") == pl.Int64()]
        self._rng.shuffle(found)
        return found

    def _rows(self, task: TaskId, name: str, instance: Path, epoch: int, store: StoreSpec) -> list[Row]:
        folder = self._place.warehouse / self._place.application.id
        rows = TaskChangelog.of(folder, store, name, through=epoch).newest_rows().filter(~pl.col("_deleted"))
        pairs = zip(_pairs(store, rows), _pairs(store, rows.with_columns(pl.col("num") + 1)), strict=True)
        data = _content(instance)
        return [
            Row(task, name, instance, store, right, wrong)
            for right, wrong in pairs
            if right != wrong and len(right) == len(wrong) and right in data
        ]

    def _difference(self, row: Row) -> StateDifferenceError | None:
        place = self._place
        topology = place.spec().application.topology
        try:
            verify_task(
                place.warehouse,
                place.application.id,
                place.state_folder / row.name,
                topology.sub_topology(row.task.sub_topology).stores,
                lambda commit: task_rows(commit.positions, commit.clocks),
            )
        except StateDifferenceError as found:
            return found.of(place.application.id, str(row.task)) if found.instance == row.instance else None
        except UNREADABLE:
            return None
        return None


def _at_once(work: Callable[[], bool]) -> bool:
    """Do it without handing over to other processes."""
    return bool(greenlet(work).switch())


def _pairs(store: StoreSpec, rows: pl.DataFrame) -> list[bytes]:
    """Keys and values as they follow each other in the file of an instance."""
    return [
        key + (value or b"") for part in encoded(store, rows) for key, value in zip(part.keys, part.values, strict=True)
    ]


def _replace(instance: Path, right: bytes, wrong: bytes) -> list[int]:
    """Replace a row wherever the file has it, and return where that is; whoever has the file mapped sees it at once."""
    data, places = _content(instance), list[int]()
    at = data.find(right)
    while at >= 0:
        places.append(at)
        at = data.find(right, at + len(right))
    _write(instance, dict.fromkeys(places, wrong))
    return places


def _content(instance: Path) -> bytes:
    """What the file of an instance has before its first hole; nearly all of it is one."""
    with (instance / "data.mdb").open("rb") as file:
        end = os.lseek(file.fileno(), 0, os.SEEK_HOLE)
        file.seek(0)
        return file.read(end)


def _write(instance: Path, rows: dict[int, bytes]) -> None:
    with (instance / "data.mdb").open("r+b") as file:
        for at, row in rows.items():
            file.seek(at)
            file.write(row)
