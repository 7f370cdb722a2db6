"""What a run left behind, in a form that two runs can be compared by: outputs, changelogs and stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from deltalake import DeltaTable

from state.engine.instances import current_instance
from state.engine.task_store import open_reader
from state.types import IsolationLevel
from tests.faults.applications import FACTS, STORES, TABLES, TOPIC


def outcome(application_folder: Path, state_folder: Path) -> dict[str, Any]:
    """Facts as multisets, tables and changelogs as newest rows, stores byte for byte; epochs left out."""
    found: dict[str, Any] = {}
    for name in FACTS:
        found[name] = _sorted(_rows(application_folder / name).drop("_epoch", "_seq"))
    for name in TABLES:
        found[name] = _newest(_rows(application_folder / name), ["_epoch", "_seq"], 1)
    for store in STORES:
        key_count = {"sums": 1, "windows": 3, "by_kind": 1}[store]
        found[f"_changelog/{store}"] = _newest(_rows(application_folder / "_changelog" / store).drop("segment"),
                                               ["_epoch"], key_count)
    for task in sorted(path for path in state_folder.iterdir() if path.is_dir()):
        with open_reader(current_instance(task), IsolationLevel.READ_COMMITTED) as reader:
            stores = STORES[:2] if task.name.startswith(f"{TOPIC}-") else STORES[2:]
            found[f"store {task.name}"] = {store: list(reader.scan(store)) for store in stores}
    return found


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Fail naming the first part that differs."""
    assert found.keys() == wanted.keys()
    for part, rows in wanted.items():
        assert found[part] == rows, f"{part} differs from the undisturbed run"


def _rows(folder: Path) -> pl.DataFrame:
    return pl.DataFrame(DeltaTable(folder).to_pyarrow_table())


def _newest(frame: pl.DataFrame, order: list[str], key_count: int) -> list[tuple]:
    keys = frame.columns[:key_count]
    newest = frame.sort(order, maintain_order=True).unique(keys, keep="last").drop(order)
    return _sorted(newest.filter(~pl.col("_deleted")))


def _sorted(frame: pl.DataFrame) -> list[tuple]:
    return sorted(frame.rows(), key=repr)
