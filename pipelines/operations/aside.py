"""An application's stores, and those of earlier programs, which are kept aside until they are removed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.pipelines.operations.at_rest import at_rest
from weir.pipelines.operations.errors import OperationError
from weir.state.changelog.forgetting import remove_changelogs
from weir.state.commit.log import COMMITS, commit_times
from weir.state.commit.protocol import Committer, newest_commit
from weir.state.commit.record import CommitRecord, CommittedTopology
from weir.state.commit.tables import file_actions
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


def stores_of(settings: Settings, application: str) -> list[StoreInfo]:
    """The stores of an application's newest commit, then those kept aside.

    Raises:
        OperationError: It has committed nothing.
    """
    newest, app_folder = _newest(settings, application), settings.warehouse / application
    form = _form(newest)
    commits = commit_times(DeltaTable(app_folder / COMMITS.name)).filter(pl.col("kind") == "commit")
    times = dict(commits.select("epoch", "at").iter_rows())
    return [
        *(_info(app_folder, store) for stores in form.stores.values() for store in stores),
        *(
            _info(app_folder, store, kept.since_epoch, times.get(kept.since_epoch))
            for store, kept in sorted(form.aside.items())
        ),
    ]


def remove_store(
    settings: Settings, application: str, store: str, on_step: Callable[[str], None] = lambda step: None
) -> StoreInfo:
    """Give up a store that is kept aside, and delete its changelog; what it was.

    A store of that name begins empty from then on. If this is interrupted, call it again.

    Raises:
        OperationError: There is no such store, or the program has it.
        LeaseHeldError: The application is running.
    """
    app_folder = settings.warehouse / application
    with at_rest(ControlDatabase(settings.control_database_url), application):
        newest = _newest(settings, application)
        form = _form(newest)
        if any(store in stores for stores in form.stores.values()):
            raise OperationError(
                f"{application} has the store {store!r} in its program; only stores that are kept aside can be "
                "removed: take it out of the program, run that, and remove it then"
            )
        is_half_removed = store in form.removed and (app_folder / CHANGELOG_FOLDER / store).exists()
        if store not in form.aside and not is_half_removed:
            raise OperationError(
                f"{application} keeps no store {store!r} aside; it keeps {', '.join(sorted(form.aside)) or 'none'}"
            )
        found = _info(app_folder, store)
        if store in form.aside:
            _commit(settings, newest, application, _without(form, store), store)
        on_step("committed")
        remove_changelogs(app_folder, [store])
    return found


def _commit(settings: Settings, newest: CommitRecord, application: str, form: CommittedTopology, store: str) -> None:
    committer = Committer(settings.warehouse, application, (), fingerprint=newest.fingerprint)
    try:
        claim = committer.claim()
        assert claim.newest is not None
        committer.forget_table(f"{CHANGELOG_FOLDER}/{store}")
        committer.commit(
            replace(
                claim.newest,
                generation=claim.generation,
                epoch=claim.newest.epoch + 1,
                at_ms=time.time_ns() // 1_000_000,
                reason=f"store {store} removed",
                files=(),
                swaps=(),
                topology=form,
            )
        )
    finally:
        committer.close()


def _without(form: CommittedTopology, store: str) -> CommittedTopology:
    return replace(
        form,
        aside={name: kept for name, kept in form.aside.items() if name != store},
        removed=(*form.removed, store),
    )


def _newest(settings: Settings, application: str) -> CommitRecord:
    newest = newest_commit(settings.warehouse, application)
    if newest is None:
        raise OperationError(
            f"{application} has committed nothing in {settings.dir}; start it with `weir run MODULE:APP` first"
        )
    return newest


def _form(newest: CommitRecord) -> CommittedTopology:
    return newest.topology or CommittedTopology(stores={}, outputs=())


def _info(app_folder: Path, store: str, since_epoch: int | None = None, since: datetime | None = None) -> StoreInfo:
    folder = app_folder / CHANGELOG_FOLDER / store
    files = file_actions(DeltaTable(folder)) if DeltaTable.is_deltatable(str(folder)) else None
    has_files = files is not None and files.height > 0
    return StoreInfo(
        store=store,
        since_epoch=since_epoch,
        since=since,
        changelog_rows=int(files["num_records"].sum()) if files is not None and has_files else 0,
        changelog_bytes=int(files["size_bytes"].sum()) if files is not None and has_files else 0,
    )
