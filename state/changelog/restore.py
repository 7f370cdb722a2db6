"""Rebuild a task's local store from its changelogs: newest row a key, sorted, loaded in bulk (PROTOCOL 20, 21).

Choosing the instance and pausing the task belong to the driver; compaction is a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from state.changelog.rows import changelog_spec
from state.commit.files import stored_schema
from state.commit.record import TaskCommit
from state.commit.tables import file_actions
from state.engine.task_store import LONG_KEYS, TASK_STORE, TaskStore
from state.stores.codec import KeyCodec, RowCodec
from state.stores.long_keys import shortened
from state.types import StateId, StoreSpec


@dataclass(frozen=True, kw_only=True)
class RestoreProgress:
    """How far a restore has come; reported after every store."""

    task: str
    store: str
    rows: int
    """Loaded so far, over all stores."""
    bytes_read: int
    bytes_total: int
    """Of the changelog files to read."""

    @property
    def per_cent(self) -> float:
        return 100.0 * self.bytes_read / self.bytes_total if self.bytes_total else 100.0


def restore_task(app_folder: Path, folder: Path, task_id: str, specs: Sequence[StoreSpec], commit: TaskCommit,
                 through: StateId, *, generation: int, task_rows: Sequence[tuple[bytes, bytes]],
                 on_progress: Callable[[RestoreProgress], None] = lambda progress: None) -> TaskStore:
    """Build a new instance in ``folder`` that holds the task's state as of a commit, and return it open.

    ``through`` is the commit's id: rows of later epochs are left out. ``commit`` is the task's part of it, and
    ``task_rows`` the positions and stream times for the ``_task`` store, sorted by key.

    The changelogs must have all of the commit, as they do once a driver has claimed the application.

    Raises:
        FileExistsError: ``folder`` exists.
    """
    files = {spec.name: _files(app_folder, spec, task_id, through) for spec in specs}
    bytes_total = sum(int(of_store["size_bytes"].sum()) for of_store in files.values())
    bytes_read = rows = 0
    long_keys: dict[bytes, bytes] = {}

    def load(spec: StoreSpec) -> Iterator[tuple[bytes, bytes]]:
        nonlocal bytes_read, rows
        keys, values = _newest_rows(app_folder, spec, files[spec.name], through)
        held, long = shortened(spec.name, keys)
        long_keys.update(long)
        loaded = sorted(zip(held, values, strict=True))
        yield from loaded
        rows += len(loaded)
        bytes_read += int(files[spec.name]["size_bytes"].sum())
        on_progress(RestoreProgress(task=task_id, store=spec.name, rows=rows, bytes_read=bytes_read,
                                    bytes_total=bytes_total))

    store = TaskStore.create(folder, task_id, [spec.name for spec in specs])
    try:
        loads = {spec.name: load(spec) for spec in specs}
        store.bulk_load({**loads, TASK_STORE: task_rows, LONG_KEYS: _sorted_later(long_keys)}, state=commit.state,
                        generation=generation)
    except BaseException:
        store.close()
        raise
    return store


def _files(app_folder: Path, spec: StoreSpec, task_id: str, through: StateId) -> pl.DataFrame:
    """The changelog's files of one task that may hold epochs up to the commit."""
    table = changelog_spec(spec)
    delta = DeltaTable(app_folder / table.name)
    files = file_actions(delta)
    if files.is_empty():
        return pl.DataFrame(schema={"path": pl.String, "size_bytes": pl.Int64})
    first_epoch = pl.col("min._epoch") if "min._epoch" in files.columns else pl.lit(None, pl.Int64)
    return files.filter((pl.col("partition.task") == task_id)
                        & (first_epoch.is_null() | (first_epoch <= through.epoch))).select("path", "size_bytes")


def _sorted_later(rows: dict[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
    """What ``rows`` holds once the stores before it are loaded."""
    yield from sorted(rows.items())


def _newest_rows(app_folder: Path, spec: StoreSpec, files: pl.DataFrame,
                 through: StateId) -> tuple[list[bytes], list[bytes]]:
    """Whole keys and values of one store, deleted keys left out."""
    if files.is_empty():
        return [], []
    folder = app_folder / changelog_spec(spec).name
    columns = [name for name in stored_schema(changelog_spec(spec)) if name not in ("task", "segment")]
    rows = pl.read_parquet([folder / path for path in files["path"]], columns=columns, hive_partitioning=False)
    newest = (rows.filter(pl.col("_epoch") <= through.epoch).sort("_epoch")
              .unique(list(spec.key), keep="last").filter(~pl.col("_deleted")))
    newest = newest.with_columns(pl.col("_ts").dt.timestamp("ms"))
    keys = KeyCodec(spec.key, spec.kind).encode(newest)
    return keys, RowCodec(spec.value).encode(newest)
