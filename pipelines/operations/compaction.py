"""Merges the many files of an application's tables into few and cleans its quarantine, whether it runs or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.pipelines.backfill.shadow import BACKFILLS
from weir.pipelines.operations.backfills import discard_abandoned
from weir.pipelines.operations.engines import Engine
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.quarantine import clean_quarantine
from weir.pipelines.operations.registry import require
from weir.state.changelog.compaction import Compaction, TableReport
from weir.state.commit.protocol import newest_commit
from weir.state.engine.quarantine import QuarantineCleaning
from weir.state.full_disk import telling
from weir.state.storage.places import disks, folder_at
from weir.state.types import CHANGELOG_FOLDER


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """What a compaction did to an application's tables and quarantine, or would do."""

    reports: list[TableReport]
    quarantine: QuarantineCleaning
    """Empty for a compaction of one store."""
    is_running: bool
    """Whether a driver was running, so that the newest epochs of changelogs stayed as they are."""


def compact_application(
    settings: Settings,
    application: str,
    *,
    store: str | None = None,
    engine: Engine | None = None,
    is_dry_run: bool = False,
    on_progress: Callable[[int, int, str], None] = lambda done, total, table: None,
    on_spark: Callable[[str, int], None] = lambda table, keys: None,
) -> Compacted:
    """Clean the quarantine and compact all tables, or compact one store's changelog.

    Without an ``engine``, merges of more keys than the setting ``spark_compaction_keys`` are Spark's. ``on_progress``
    gets rows read, rows to read and the table; ``on_spark``, before each job, the table and about how many keys it has.

    Raises:
        OperationError: The folder does not know the application or the store, or nothing is committed yet.
        DiskFullError: There is no room for merged files; tables are as they were, or merged.
    """
    from weir.pipelines.spark.merging import SparkMerging

    if newest_commit(folder_at(settings.warehouse), require(settings, application)) is None:
        raise OperationError(f"{application} has committed nothing yet; run it first with `weir run MODULE:APP`")
    is_running = ControlDatabase(settings.control_database_url).is_running(application)
    merging = SparkMerging(settings, partial(_is_for_spark, engine, settings.spark_compaction_keys), on_spark)
    compaction = Compaction(
        folder_at(settings.warehouse),
        application,
        is_whole=not is_running,
        tombstone_retention_ms=int(settings.tombstone_retention_hours * 3_600_000),
        merge=merging,
        on_progress=on_progress,
    )
    tables = _chosen(compaction, application, store)
    if not is_dry_run:
        warehouse = folder_at(settings.warehouse)
        for folder in (warehouse, warehouse / application / BACKFILLS):
            folder.remove_leftovers()  # of resets, and of backfills that were discarded
        discard_abandoned(settings, application)
    # before the tables: merging them needs room on the disk
    cleaning = clean_quarantine(settings, application, is_dry_run=is_dry_run) if store is None else QuarantineCleaning()
    with merging, telling("the compaction", disks(folder_at(settings.warehouse))):
        reports = compaction.plan(tables) if is_dry_run else list(compaction.run(tables))
    return Compacted(reports=reports, quarantine=cleaning, is_running=is_running)


def append_only_sentence(report: TableReport) -> str:
    """Why the files of a table that ``is_append_only`` stay as they are, and what to do about it."""
    return (
        f"{report.table} keeps its files, since it is append-only (delta.appendOnly) and rows of it would be replaced; "
        "set that property to false, and compact again"
    )


def _is_for_spark(engine: Engine | None, limit: int, keys: int) -> bool:
    return keys > limit if engine is None else engine is Engine.SPARK


def _chosen(compaction: Compaction, application: str, store: str | None) -> list[str]:
    tables = compaction.tables()
    if store is None:
        return tables
    if (wanted := f"{CHANGELOG_FOLDER}/{store}") not in tables:
        stores = [name.removeprefix(f"{CHANGELOG_FOLDER}/") for name in tables if name.startswith(CHANGELOG_FOLDER)]
        raise OperationError(
            f"{application} has no store {store!r} with a changelog; "
            f"it has {', '.join(stores) or 'none yet: run the application first'}"
        )
    return [wanted]
