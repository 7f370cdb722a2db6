"""An application's stores, and those of earlier programs, which are kept aside until they are removed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import polars as pl

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.pipelines.operations.at_rest import at_rest
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.registry import require
from weir.state.commit.log import COMMITS, commit_times
from weir.state.commit.protocol import Committer, newest_commit
from weir.state.commit.record import CommitRecord, CommittedTopology
from weir.state.commit.removal import remove_tables, table_id
from weir.state.commit.tables import file_actions
from weir.state.storage.places import Place, folder_at, is_table, table_at
from weir.state.types import CHANGELOG_FOLDER


@dataclass(frozen=True, kw_only=True)
class StoreInfo:
    """A store of the newest commit."""

    store: str
    since_epoch: int | None
    """The epoch of the last commit with it, since which it is kept aside; None for a store of the program."""
    since: datetime | None
    """When that commit was made."""
    changelog_rows: int
    """Every update and deletion that compaction has not merged; not the number of keys."""
    changelog_bytes: int
    is_logged: bool = True
    """Whether its rows are in its changelog; those of a store without one are in local stores only."""


def stores_of(settings: Settings, application: str) -> list[StoreInfo]:
    """The stores of an application's newest commit, then those kept aside.

    Raises:
        OperationError: It has committed nothing.
    """
    newest, app_folder = _newest(settings, application), folder_at(settings.warehouse) / application
    form = _form(newest)
    unlogged = {store for task in newest.tasks.values() for store in task.unlogged}
    commits = commit_times(table_at(app_folder / COMMITS.name)).filter(pl.col("kind") == "commit")
    times = dict(commits.select("epoch", "at").iter_rows())
    return [
        *(
            replace(_info(app_folder, store), is_logged=store not in unlogged)
            for stores in form.stores.values()
            for store in stores
        ),
        *(
            _info(app_folder, store, kept.since_epoch, times.get(kept.since_epoch))
            for store, kept in sorted(form.aside.items())
        ),
    ]


def require_removable(settings: Settings, application: str, store: str) -> None:
    """Raise what ``remove_store`` raises, unless the store can be removed or its removal was interrupted."""
    newest = _newest(settings, application)
    if f"{CHANGELOG_FOLDER}/{store}" not in newest.removed_tables:
        _require_aside(application, newest, store)


def remove_store(
    settings: Settings, application: str, store: str, on_step: Callable[[str], None] = lambda step: None
) -> StoreInfo:
    """Give up a store that is kept aside, and delete its changelog; what it was.

    A store of that name begins empty from then on. If this is interrupted, call it again, or the next start goes on.

    Raises:
        OperationError: There is no such store, or the program has it.
        LeaseHeldError: The application is running.
        FencedError: Another driver has taken over; the store is as it was.
    """
    app_folder = folder_at(settings.warehouse) / application
    with at_rest(ControlDatabase(settings.control_database_url), application):
        newest, table = _newest(settings, application), f"{CHANGELOG_FOLDER}/{store}"
        found, ids = _info(app_folder, store), newest.removed_tables
        if table not in ids or table_id(app_folder / table) != ids[table]:  # else the call that removed it was killed
            _require_aside(application, newest, store)
            ids = _commit(settings, newest.fingerprint, application, store)
        on_step("committed")
        remove_tables(app_folder, ids)
    return found


def _require_aside(application: str, newest: CommitRecord, store: str) -> None:
    form = _form(newest)
    if any(store in stores for stores in form.stores.values()):
        raise OperationError(
            f"{application} has the store {store!r} in its program; only stores that are kept aside can be "
            "removed: take it out of the program, run that, and remove it then"
        )
    if store not in form.aside:
        raise OperationError(
            f"{application} keeps no store {store!r} aside; it keeps {', '.join(sorted(form.aside)) or 'none'}"
        )


def _commit(settings: Settings, fingerprint: str, application: str, store: str) -> Mapping[str, str]:
    """Commit that the store is given up; returns the id of its changelog, by name."""
    table = f"{CHANGELOG_FOLDER}/{store}"
    committer = Committer(folder_at(settings.warehouse), application, (), fingerprint=fingerprint)
    try:
        claim = committer.claim()
        newest = claim.newest
        assert newest is not None
        _require_aside(application, newest, store)  # again, now under the claim
        there = table_id(folder_at(settings.warehouse) / application / table)
        ids = {} if there is None else {table: there}
        committer.forget_table(table)
        committer.commit(
            replace(
                newest,
                generation=claim.generation,
                epoch=newest.epoch + 1,
                at_ms=time.time_ns() // 1_000_000,
                reason=f"store {store} removed",
                files=(),
                swaps=(),
                removed_tables=ids,
                topology=_without(_form(newest), store),
            )
        )
        return ids
    finally:
        committer.close()


def _without(form: CommittedTopology, store: str) -> CommittedTopology:
    return replace(
        form,
        aside={name: kept for name, kept in form.aside.items() if name != store},
        removed=(*form.removed, store),
    )


def _newest(settings: Settings, application: str) -> CommitRecord:
    newest = newest_commit(folder_at(settings.warehouse), require(settings, application))
    if newest is None:
        raise OperationError(
            f"{application} has committed nothing in {settings.dir}; start it with `weir run MODULE:APP` first"
        )
    return newest


def _form(newest: CommitRecord) -> CommittedTopology:
    return newest.topology or CommittedTopology(stores={}, outputs=())


def _info(app_folder: Place, store: str, since_epoch: int | None = None, since: datetime | None = None) -> StoreInfo:
    folder = app_folder / CHANGELOG_FOLDER / store
    files = file_actions(table_at(folder)) if is_table(folder) else None
    has_files = files is not None and files.height > 0
    return StoreInfo(
        store=store,
        since_epoch=since_epoch,
        since=since,
        changelog_rows=int(files["num_records"].sum()) if files is not None and has_files else 0,
        changelog_bytes=int(files["size_bytes"].sum()) if files is not None and has_files else 0,
    )
