"""Rebuild a task's local store from its changelogs: newest row a key, sorted, loaded in bulk (PROTOCOL 20, 21).

Choosing the instance and pausing the task belong to the driver, reading the files to ``state.changelog.reading``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from state.changelog.reading import TaskChangelog, encoded
from state.commit.record import TaskCommit
from state.engine.task_store import LONG_KEYS, TASK_STORE, Batch, TaskStore
from state.types import StateId, StoreSpec


@dataclass(frozen=True, kw_only=True)
class RestoreProgress:
    """How far a restore has come; reported after every batch of rows."""

    task: str
    rows: int
    """Loaded so far, over all stores."""
    bytes_read: int
    bytes_total: int
    """Of the files to read."""
    seconds: float
    """Since it began."""

    @property
    def per_cent(self) -> float:
        return 100.0 * self.bytes_read / self.bytes_total if self.bytes_total else 100.0

    @property
    def seconds_left(self) -> float | None:
        """At the pace so far; None before anything was read."""
        return self.seconds * (self.bytes_total / self.bytes_read - 1) if self.bytes_read else None

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", {self.seconds_left:.0f} s left"
        return (f"{self.rows:,} rows, {self.bytes_read / 1e6:,.1f} of {self.bytes_total / 1e6:,.1f} MB "
                f"({self.per_cent:.0f} %){left}")


OnProgress = Callable[[RestoreProgress], None]


def restore_task(app_folder: Path, folder: Path, task_id: str, specs: Sequence[StoreSpec], commit: TaskCommit,
                 through: StateId, *, generation: int, task_rows: Sequence[tuple[bytes, bytes]],
                 on_progress: OnProgress = lambda progress: None) -> TaskStore:
    """Build a new instance in ``folder`` that holds the task's state as of a commit, and return it open.

    ``through`` is the commit's id: rows of later epochs are left out. ``commit`` is the task's part of it, and
    ``task_rows`` the positions and stream times for the ``_task`` store, sorted by key.

    The changelogs must have all of the commit, as they do once a driver has claimed the application.

    Raises:
        FileExistsError: ``folder`` exists.
    """
    changelogs = [TaskChangelog.of(app_folder, spec, task_id, through=through.epoch) for spec in specs]
    report = _Report(task_id, sum(changelog.size_bytes for changelog in changelogs), on_progress)
    long_keys: dict[bytes, bytes] = {}

    def load(changelog: TaskChangelog) -> Iterator[Batch]:
        rows = changelog.newest_rows().filter(~pl.col("_deleted"))
        for part in encoded(changelog.spec, rows):
            long_keys.update(part.long_keys)
            yield part.keys, part.values  # type: ignore[misc]  # nothing is deleted
            report.add(len(part.keys), changelog.size_bytes * len(part.keys) // rows.height)
        report.finish(changelog.size_bytes)

    store = TaskStore.create(folder, task_id, [spec.name for spec in specs])
    try:
        store.bulk_load({**{changelog.spec.name: load(changelog) for changelog in changelogs},
                         TASK_STORE: [_batch(dict(task_rows))], LONG_KEYS: _later(long_keys)},
                        state=commit.state, generation=generation)
    except BaseException:
        store.close()
        raise
    return store


class _Report:
    """Adds up what was loaded and tells it."""

    def __init__(self, task_id: str, bytes_total: int, on_progress: OnProgress) -> None:
        self._task_id, self._bytes_total, self._on_progress = task_id, bytes_total, on_progress
        self._started = time.monotonic()
        self._rows = self._bytes_finished = self._bytes_of_store = 0

    def add(self, rows: int, read_bytes: int) -> None:
        self._rows, self._bytes_of_store = self._rows + rows, self._bytes_of_store + read_bytes
        self._tell()

    def finish(self, size_bytes: int) -> None:
        """A store is loaded, whatever its batches added up to."""
        self._bytes_finished, self._bytes_of_store = self._bytes_finished + size_bytes, 0
        self._tell()

    def _tell(self) -> None:
        self._on_progress(RestoreProgress(
            task=self._task_id, rows=self._rows, bytes_read=self._bytes_finished + self._bytes_of_store,
            bytes_total=self._bytes_total, seconds=time.monotonic() - self._started))


def _batch(rows: dict[bytes, bytes]) -> Batch:
    keys = sorted(rows)
    return keys, [rows[key] for key in keys]


def _later(rows: dict[bytes, bytes]) -> Iterator[Batch]:
    """What ``rows`` holds once the stores before it are loaded."""
    yield _batch(rows)
