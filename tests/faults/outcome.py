"""What a run left behind: outputs, changelogs and stores, to compare two runs, and what a dead one left unfinished."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import DeltaTable

from tests.faults.applications import FACTS, STORES, TABLES, app
from weir.state.commit.log import COMMITS, newest_commit
from weir.state.commit.tables import AppendTable
from weir.state.engine.instances import current_instance
from weir.state.engine.views import open_reader
from weir.state.types import IsolationLevel, StateId


@dataclass(frozen=True)
class Unfinished:
    """What a dead driver left unfinished."""

    generation: int
    """The driver's generation."""
    states: dict[str, StateId]
    """By task, uncommitted state with rows to roll back."""
    tables: set[str]
    """Tables that lack the newest commit."""

    @property
    def is_its_own(self) -> bool:
        """Whether this driver left something, not one before it: a start completes the tables before anything else."""
        return bool(self.tables) or any(state.generation == self.generation for state in self.states.values())


def unfinished(warehouse: Path, state_folder: Path) -> Unfinished:
    """Compare what is on disk with the newest row of the commit log."""
    folder, commit, states = warehouse / app.id, newest_commit(warehouse, app.id), {}
    for task in state_folder.iterdir() if state_folder.exists() else ():
        if not current_instance(task).exists():  # lost: there is nothing to roll back
            continue
        with open_reader(current_instance(task), IsolationLevel.READ_UNCOMMITTED) as reader:
            meta = reader._meta
        if meta.uncommitted.records and meta.current != (commit.tasks[task.name].state if commit else None):
            states[task.name] = meta.current
    wanted = commit.table_versions if commit else {}
    behind = {table for table, version in wanted.items() if _version(folder / table) < version}
    return Unfinished(_version(folder / COMMITS.name) >> 32, states, behind)


def outcome(application_folder: Path, state_folder: Path) -> dict[str, Any]:
    """Facts as multisets, tables and changelogs as newest rows, stores byte for byte; epochs left out."""
    found: dict[str, Any] = {}
    for name in FACTS:
        found[name] = _sorted(_rows(application_folder / name).drop("_epoch", "_seq"))
    for name in TABLES:
        found[name] = _newest(_rows(application_folder / name), ["_epoch", "_seq"], 1)
    for store in STORES:
        key_count = {"sums": 1, "windows": 3, "by_kind": 1}[store]
        found[f"_changelog/{store}"] = _newest(
            _rows(application_folder / "_changelog" / store).drop("segment"), ["_epoch"], key_count
        )
    for task in sorted(path for path in state_folder.iterdir() if path.is_dir()):
        with open_reader(current_instance(task), IsolationLevel.READ_COMMITTED) as reader:
            stores = STORES[2:] if task.name.startswith(STORES[2]) else STORES[:2]
            found[f"store {task.name}"] = {store: list(reader.scan(store)) for store in stores}
    return found


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Fail naming the first part that differs."""
    assert found.keys() == wanted.keys()
    for part, rows in wanted.items():
        assert found[part] == rows, f"{part} differs from the undisturbed run"


def _version(table: Path) -> int:
    """The application's transaction version in a table."""
    return AppendTable(table, table.name, app.id).version


def _rows(folder: Path) -> pl.DataFrame:
    return pl.DataFrame(DeltaTable(folder).to_pyarrow_table())


def _newest(frame: pl.DataFrame, order: list[str], key_count: int) -> list[tuple]:
    keys = frame.columns[:key_count]
    newest = frame.sort(order, maintain_order=True).unique(keys, keep="last").drop(order)
    return _sorted(newest.filter(~pl.col("_deleted")))


def _sorted(frame: pl.DataFrame) -> list[tuple]:
    return sorted(frame.rows(), key=repr)
