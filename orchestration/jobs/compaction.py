"""Compaction as a job: the same call as ``weir compact``. What it merges and how is in
``weir.state.changelog.compaction``."""

import time
from collections.abc import Iterator, Sequence

import dagster as dg
from pydantic import Field

from weir.infra.settings import Settings
from weir.orchestration.assets.materializations import table_materializations
from weir.orchestration.jobs.shared import by_application, chosen, job_of, refused
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.orchestration.thresholds import size_text
from weir.pipelines.operations.compaction import append_only_sentence, compact_application
from weir.pipelines.operations.engines import Engine
from weir.pipelines.operations.errors import says_what_to_do
from weir.pipelines.operations.quarantine import cleaned_sentence
from weir.pipelines.topology.naming import names_over, stored_table
from weir.state.changelog.compaction import TableReport
from weir.state.commit.protocol import newest_commit
from weir.state.storage.places import folder_at

COMPACTION = "weir_compaction"
"""The name of the job, and of the pool that keeps a second compaction waiting; the sensor sets its limit to one."""
SHOWN = ("files_before", "files_after", "rows_before", "rows_after", "bytes_before", "bytes_after", "files_deleted")


class CompactionConfig(dg.Config):
    """What to compact."""

    store: str | None = Field(default=None, description="Only this store's changelog; everything when left out.")
    engine: Engine | None = Field(
        default=None,
        description="What merges updates: process, or spark, which suits tens of millions of keys; by the number of "
        "keys when left out.",
    )
    dry_run: bool = Field(default=False, description="Show what would change; change nothing.")


def compaction_job(applications: Sequence[Supervised]) -> dg.JobDefinition:
    """``weir_compaction``: merges files of changelogs, outputs and the commit log, vacuums, and cleans the
    quarantine."""

    @dg.op(
        name="weir_compact",
        pool=COMPACTION,
        description="Merge small files into large ones, delete files that nothing refers to any more, and clean the "
        "quarantine.",
    )
    def compact(context: dg.OpExecutionContext, config: CompactionConfig, weir: WeirResource) -> None:
        supervised, settings, logged = chosen(context, applications), weir.settings(), ""
        began_s = time.monotonic()

        def on_progress(done: int, total: int, table: str) -> None:
            nonlocal logged
            if table != logged:
                logged = table
                context.log.info("%s: %d rows to merge", table, total)

        try:
            compacted = compact_application(
                settings,
                supervised.id,
                store=config.store,
                engine=config.engine,
                is_dry_run=config.dry_run,
                on_progress=on_progress,
                on_spark=lambda table, keys: context.log.info("%s: about %d keys, merged by Spark", table, keys),
            )
        except Exception as error:
            if not says_what_to_do(error):
                raise
            raise refused(error, supervised) from None
        removed, kept = compacted.quarantine.removed, compacted.quarantine.kept
        if config.store is None:
            context.log.info(cleaned_sentence(compacted.quarantine, is_dry_run=config.dry_run))
        for folder in kept:
            context.log.warning("%s stays in quarantine: %s", folder.folder.path, folder.why)
        for report in compacted.reports:
            if report.is_append_only:
                context.log.warning(append_only_sentence(report))
        context.add_output_metadata(
            {
                "is_dry_run": config.dry_run,
                "is_running": compacted.is_running,
                "quarantine_removed": [str(folder.path) for folder in removed],
                "quarantine_removed_bytes": sum(folder.size_bytes for folder in removed),
                "quarantine_kept": [f"{folder.folder.path}: {folder.why}" for folder in kept],
                "tables": dg.MetadataValue.table([_record(report) for report in compacted.reports]),
            }
        )
        if not config.dry_run:
            for event in _materializations(supervised, settings, compacted.reports, time.monotonic() - began_s):
                context.log_event(event)

    return job_of(
        applications,
        COMPACTION,
        compact,
        by_application(applications),
        "Merge the files of changelogs, outputs and the commit log, and clean the quarantine; safe next to "
        "a running driver.",
    )


def _materializations(
    supervised: Supervised, settings: Settings, reports: Sequence[TableReport], seconds: float
) -> Iterator[dg.AssetMaterialization]:
    """One of each table whose files have changed, as the newest commit has left it, and one of the compaction, with the
    sums over all tables. All figures are numbers, of which Dagster makes plots."""
    newest = newest_commit(folder_at(settings.warehouse), supervised.id)
    if newest is None:  # removed meanwhile
        return
    names = names_over(supervised.application.topology, newest)
    tables = {stored_table(table, names): table for table in supervised.tables}
    for report in reports:
        if report.table in tables and _has_changed(report):
            words = f"compacted as of commit {newest.state_id}"
            for event in table_materializations(
                supervised, newest, settings, [tables[report.table]], description=words
            ):
                figures = {name: getattr(report, name) for name in (*SHOWN, "seconds")}
                yield event.with_metadata({**event.metadata, **figures})
    yield dg.AssetMaterialization(
        supervised.compaction,
        metadata={
            "tables": len(reports),
            **{name: sum(getattr(report, name) for report in reports) for name in SHOWN},
            "seconds": round(seconds, 3),
        },
    )


def _has_changed(report: TableReport) -> bool:
    before = report.files_before, report.rows_before, report.bytes_before
    return before != (report.files_after, report.rows_after, report.bytes_after) or report.files_deleted > 0


def _record(report: TableReport) -> dg.TableRecord:
    return dg.TableRecord(
        {
            "table": report.table,
            **{
                name.replace("bytes", "size"): size_text(getattr(report, name))
                if "bytes" in name
                else getattr(report, name)
                for name in SHOWN
            },
        }
    )
