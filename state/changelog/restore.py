"""Rebuild a task's local store: from a standby or its snapshot and the changelogs' rows since, or from these alone.

The newest row of each key is loaded in bulk, in key order (PROTOCOL 20, 21); the steps are those of "A restore" in
docs/protocol.md. Choosing the instance and pausing the task belong to the driver, reading changelogs to
``weir.state.changelog.reading``, snapshots to ``weir.state.changelog.snapshot``.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import cast

import polars as pl

from weir.state.changelog.expiries import expiry_changes
from weir.state.changelog.reading import BATCH_ROWS, TaskChangelog, encoded
from weir.state.changelog.snapshot import SnapshotError, fetch_snapshot, has_snapshots
from weir.state.commit.log import COMMITS, time_of
from weir.state.commit.record import SnapshotRef, TaskCommit
from weir.state.engine.backing import suppliers_of
from weir.state.engine.contract import StateView
from weir.state.engine.standby import Left, StandbyError, reached_by, standby_of
from weir.state.engine.task_store import EXPIRIES, LONG_KEYS, TASK_STORE, Batch, Changes, TaskStore
from weir.state.storage.places import Place
from weir.state.stores.expiry import ExpiryIndex, expiry_times, has_index, index_rows
from weir.state.stores.long_keys import long_key_hashes
from weir.state.types import IsolationLevel, StateId, StoreKind, StoreSpec

_STANDBY_WAIT_S = 5.0
"""How long a restore waits for whoever is at a standby; without it, it takes longer."""


@dataclass(frozen=True, kw_only=True)
class RestoreProgress:
    """A restore's progress, reported after every batch of rows."""

    task: str
    source: str
    """What the state is rebuilt from, in words: a snapshot, or the changelog and why there is no snapshot."""
    from_snapshot: bool
    rows: int
    """Loaded from the changelogs so far, over all stores."""
    bytes_read: int
    bytes_total: int
    """Total size of the files to read."""
    seconds: float
    """Since the restore began."""
    computed: str = ""
    """The store that is being computed again from its topic; ``rows`` are then the records read, and the bytes are
    zero."""
    records_total: int = 0
    """How many records that store needs."""

    @property
    def _done(self) -> tuple[int, int]:
        return (self.rows, self.records_total) if self.computed else (self.bytes_read, self.bytes_total)

    @property
    def per_cent(self) -> float:
        done, total = self._done
        return 100.0 * done / total if total else 100.0

    @property
    def seconds_left(self) -> float | None:
        """Estimated from the pace so far; None before anything was read."""
        done, total = self._done
        return self.seconds * (total / done - 1) if done else None

    @property
    def rows_left(self) -> int:
        """Estimated number of rows still to be loaded, from the bytes still to be read; or of records to be read."""
        done, total = self._done
        return round(self.rows * (total / done - 1)) if done else 0

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", {self.seconds_left:.0f} s left"
        if self.computed:
            return (
                f"{self.computed} is computed again: {self.rows:,} of {self.records_total:,} records "
                f"({self.per_cent:.0f} %){left}"
            )
        return (
            f"{self.rows:,} rows, {self.bytes_read / 1e6:,.1f} of {self.bytes_total / 1e6:,.1f} MB "
            f"({self.per_cent:.0f} %){left}"
        )


OnProgress = Callable[[RestoreProgress], None]


def restore_task(
    app_folder: Place,
    folder: Path,
    task_id: str,
    specs: Sequence[StoreSpec],
    commit: TaskCommit,
    through: StateId,
    *,
    generation: int,
    task_rows: Sequence[tuple[bytes, bytes]],
    take_snapshot: bool = False,
    standby: Path | None = None,
    standby_only: bool = False,
    left: Left | None = None,
    before: int | None = None,
    rebuilt: Mapping[str, StateView] | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> TaskStore:
    """Build a new instance in ``folder`` that holds the task's state as of a commit, and return it open.

    ``through`` is the commit's id: rows of later epochs are left out. ``commit`` is the task's part of that commit. The
    instance is built from the snapshot that it lists and the changelogs' rows since, or from the changelogs alone if
    there is no snapshot, or it is missing, damaged or too old. Stores whose rows are not in their changelogs
    (``TaskCommit.unlogged``) begin empty, unless ``rebuilt`` has a view with nothing but their rows. ``task_rows`` are
    the positions and stream times for the ``_task`` store, sorted by key. With ``take_snapshot`` the snapshot's file
    itself becomes the instance if possible, and is then gone. ``standby`` is a task's folder that may have a standby of
    ``generation``: if so, it becomes the instance, or else the instance that is ``left`` there, if one is; with
    ``standby_only`` nothing else may. One of the generation ``before`` will do as well if this one ``continues`` it.

    The changelogs must already have all of the commit, which they do once a driver has claimed the application.

    Raises:
        FileExistsError: ``folder`` exists.
        StandbyError: There is no standby that could be used, and nothing else may be.
    """

    def changelogs(above: int = -1) -> list[TaskChangelog]:
        return [
            TaskChangelog.of(app_folder, spec, task_id, through=through.epoch, above=above)
            for spec in specs
            if spec.name not in commit.unlogged
        ]

    finish = partial(
        caught_up,
        task_id=task_id,
        state=commit.state,
        generation=generation,
        task_rows=dict(task_rows),
        rebuilt=rebuilt or {},
        on_progress=on_progress,
    )
    # 3. The source chosen
    if (
        standby is not None
        and (
            found := _promoted(
                standby,
                folder,
                task_id,
                specs,
                through,
                generation,
                left,
                lambda task: before if continues(task, app_folder, before, commit.instance) else None,
            )
        )
        is not None
    ):
        base = found.base
        assert base is not None
        tails = changelogs(above=base.epoch)
        if all(tail.has_deletions_since(base.epoch) for tail in tails):
            return finish(found, tails, is_begun=True, source=f"standby of {base} and the changelog since")
        found.close()
        shutil.rmtree(folder)
    if standby_only:
        raise StandbyError(f"task {task_id} has no standby that could be used in {standby}")
    unused = ""
    if commit.snapshot is not None and has_snapshots(specs):
        try:
            tails = changelogs(above=commit.snapshot.state.epoch)
            _require_deletions_since(tails, commit.snapshot)
            store = fetch_snapshot(app_folder, commit.snapshot, folder, task_id, take=take_snapshot)
            _require_indexes(store, specs, commit.snapshot)
        except SnapshotError as error:
            unused = f"; {error}"
        else:
            return finish(
                store,
                tails,
                is_begun=True,
                source=f"snapshot of {commit.snapshot.state} and the changelog since",
            )
    store = TaskStore.create(folder, task_id, [spec.name for spec in specs], suppliers_of(specs))
    return finish(store, changelogs(), is_begun=False, source=f"changelog{unused}")


def _promoted(
    task: Path,
    folder: Path,
    task_id: str,
    specs: Sequence[StoreSpec],
    through: StateId,
    generation: int,
    left: Left | None,
    trusted: Callable[[Path], int | None],
) -> TaskStore | None:
    """The standby in a task's folder as the instance in ``folder``; None if there is none to be used. ``trusted`` says
    of which other generation it may be."""
    names = [spec.name for spec in specs]
    try:
        with standby_of(task, _STANDBY_WAIT_S) as standby:
            if left is not None:
                standby.remove()  # of before the task was here
            store = standby.opened(task_id, names, generation, through, left, trusted(task))
            if store is None:
                return None
            store.close()
            standby.take(folder)
    except StandbyError:
        return None
    return TaskStore.open(folder, task_id, names)


def continues(task: Path, app_folder: Place, before: int | None, instance: str) -> bool:
    """Whether the standby in a task's folder belongs to this commit log, and to the task as the generation ``before``
    has left it, in ``instance``; without one before there is none to go on with."""
    reached = reached_by(task)
    return (
        reached is not None
        and (reached.commit.generation, reached.instance) == (before, instance)
        and time_of(app_folder / COMMITS.name, reached.commit) == reached.at_ms
    )


def caught_up(
    store: TaskStore,
    changelogs: Sequence[TaskChangelog],
    *,
    is_begun: bool,
    task_id: str,
    state: StateId | None,
    generation: int,
    task_rows: dict[bytes, bytes | None],
    rebuilt: Mapping[str, StateView],
    source: str,
    on_progress: OnProgress,
) -> TaskStore:
    """Load what the changelogs have into ``store``, which is then returned, or closed if that fails; ``is_begun`` is
    whether it has an older state already."""
    size_bytes = sum(changelog.size_bytes for changelog in changelogs)
    report = _Report(task_id, source, is_begun, size_bytes, on_progress)
    long_keys: dict[bytes, bytes | None] = {}
    expiries: dict[bytes, bytes | None] = {}

    def load(changelog: TaskChangelog) -> Iterator[Changes]:
        rows, spec = changelog.newest_rows(), changelog.spec
        if not is_begun:
            rows = rows.filter(~pl.col("_deleted"))
            expires = expiry_times(spec, rows)
        else:
            with store.reader(IsolationLevel.READ_COMMITTED) as view:
                expiries.update(expiry_changes(spec, view, rows))
            expires = pl.repeat(None, rows.height, dtype=pl.Int64(), eager=True)
        for part in encoded(spec, rows.with_columns(expires.alias("_expires"))):
            if part.long_keys:
                gone = set(
                    long_key_hashes([key for key, value in zip(part.keys, part.values, strict=True) if value is None])
                )
                long_keys.update({digest: None if digest in gone else key for digest, key in part.long_keys.items()})
            expiries.update(index_rows(spec, part.keys, part.rows["_expires"]))
            yield part.keys, part.values
            report.add(len(part.keys), changelog.size_bytes * len(part.keys) // rows.height)
        report.finish(changelog.size_bytes)

    def take_over(store: str, view: StateView) -> Iterator[Changes]:
        rows = view.scan(store)
        while part := list(islice(rows, BATCH_ROWS)):
            yield [key for key, _ in part], [value for _, value in part]
        long_keys.update(view.scan(LONG_KEYS))
        expiries.update(view.scan(EXPIRIES))

    batches: dict[str, Iterable[Changes]] = {
        **{store: take_over(store, view) for store, view in rebuilt.items()},
        **{changelog.spec.name: load(changelog) for changelog in changelogs},
        TASK_STORE: _later(task_rows),
        LONG_KEYS: _later(long_keys),
        EXPIRIES: _later(expiries),
    }
    # 4. Rows loaded
    try:
        if not is_begun:
            store.bulk_load(cast(dict[str, Iterable[Batch]], batches), state=state, generation=generation)
        else:
            store.catch_up(batches, state=state, generation=generation)
    except BaseException:
        store.close()
        raise
    return store


def _require_indexes(store: TaskStore, specs: Iterable[StoreSpec], snapshot: SnapshotRef) -> None:
    """Raise ``SnapshotError``, and remove the instance, if rows that expire now did not when the snapshot was made."""
    with store.reader(IsolationLevel.READ_COMMITTED) as view:
        lacking = [
            spec.name
            for spec in specs
            if spec.name in store.stores
            and has_index(spec)
            and spec.kind is not StoreKind.VERSIONED  # whose newest versions have no entry
            and view.count(spec.name)
            and ExpiryIndex(spec, view).oldest_ms() is None
        ]
    if lacking:
        store.close()
        shutil.rmtree(store.folder)
        raise SnapshotError(snapshot.path, f"is of a time when rows of {lacking[0]!r} did not expire")


def _require_deletions_since(changelogs: Iterable[TaskChangelog], snapshot: SnapshotRef) -> None:
    """Raise ``SnapshotError`` if a changelog has dropped deletions that the snapshot still needs."""
    for changelog in changelogs:
        if not changelog.has_deletions_since(snapshot.state.epoch):
            raise SnapshotError(
                snapshot.path,
                f"is of epoch {snapshot.state.epoch}, and the changelog of "
                f"{changelog.spec.name!r} has dropped deletions up to epoch "
                f"{changelog.horizon}",
            )


class _Report:
    """Adds up what was loaded and reports it."""

    def __init__(
        self, task_id: str, source: str, from_snapshot: bool, bytes_total: int, on_progress: OnProgress
    ) -> None:
        self._task_id, self._source, self._from_snapshot = task_id, source, from_snapshot
        self._bytes_total, self._on_progress = bytes_total, on_progress
        self._started = time.monotonic()
        self._rows = self._bytes_finished = self._bytes_of_store = 0
        self._tell()

    def add(self, rows: int, read_bytes: int) -> None:
        self._rows, self._bytes_of_store = self._rows + rows, self._bytes_of_store + read_bytes
        self._tell()

    def finish(self, size_bytes: int) -> None:
        """A store is loaded: count its bytes in full, whatever its batches added up to."""
        self._bytes_finished, self._bytes_of_store = self._bytes_finished + size_bytes, 0
        self._tell()

    def _tell(self) -> None:
        self._on_progress(
            RestoreProgress(
                task=self._task_id,
                source=self._source,
                from_snapshot=self._from_snapshot,
                rows=self._rows,
                bytes_read=self._bytes_finished + self._bytes_of_store,
                bytes_total=self._bytes_total,
                seconds=time.monotonic() - self._started,
            )
        )


def _later(rows: dict[bytes, bytes | None]) -> Iterator[Changes]:
    """One batch of all ``rows``; read late, since loading the other stores adds to them."""
    keys = sorted(rows)
    yield keys, [rows[key] for key in keys]
