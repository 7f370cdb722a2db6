"""``weir compact``: merges the many files of an application's tables into few and cleans its quarantine, whether it is
running or not."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.pipelines.cli.options import AppArgument, DebugOption, DirOption, JsonOption, load_settings
from weir.pipelines.cli.render import notices, print_json, print_table
from weir.pipelines.operations.engines import Engine

if TYPE_CHECKING:
    from weir.state.engine.quarantine import QuarantineCleaning


def compact(
    application: AppArgument,
    store: Annotated[str | None, typer.Option(metavar="STORE", help="Only this store's changelog.")] = None,
    engine: Annotated[
        Engine | None,
        typer.Option(
            show_default="by the number of keys",
            help="What merges updates: this process, or a Spark job, for tens of millions of keys.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change; change nothing.")] = False,
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Merge the files of changelogs, outputs and the commit log, and clean the quarantine.

    The application may be running. Changelogs and tables of updates keep the newest row of each key; facts keep all
    rows. While the application is running, the newest thousand epochs of its changelogs stay as they are. Deletion
    markers are dropped after `tombstone_retention_hours` (24), and replaced files are deleted from disk after a day.

    A changelog's part of a task, or an output, with more than `spark_compaction_keys` (10 million) keys is merged by a
    Spark job, anything smaller by this process; `--engine` says which in any case.

    Folders in quarantine are deleted after `quarantine_max_days` (7), and earlier, the oldest first, if they take more
    than `quarantine_max_bytes` (10 GB) on disk; the newest of each task stays for an hour in any case.
    """
    import polars as pl

    from weir.pipelines.cli.progress import counting
    from weir.pipelines.operations.compaction import append_only_sentence, compact_application
    from weir.pipelines.operations.quarantine import cleaned_sentence

    settings = load_settings(directory, writes=True)
    with counting(f"compacting {application}") as show:
        done = compact_application(
            settings,
            application,
            store=store,
            engine=engine,
            is_dry_run=dry_run,
            on_progress=show,
            on_spark=lambda table, keys: notices.print(
                f"{table}: about {keys:,} keys, merged by Spark", markup=False, soft_wrap=True
            ),
        )
    reports = done.reports
    if as_json:
        print_json({"tables": [asdict(report) for report in reports], "quarantine": _plain(done.quarantine)})
        return
    rows = pl.DataFrame(
        [
            {
                "table": report.table,
                "files": report.files_before,
                "now": report.files_after,
                "rows": report.rows_before,
                "rows now": report.rows_after,
                "MB": report.bytes_before / 1e6,
                "MB now": report.bytes_after / 1e6,
                "deleted from disk": report.files_deleted,
            }
            for report in reports
        ]
    )
    if dry_run:
        rows = rows.rename({"now": "would be"}).drop("rows now", "MB now", "deleted from disk")
    print_table(rows)
    for report in reports:
        if report.is_append_only:
            notices.print(append_only_sentence(report), markup=False, soft_wrap=True)
    kept = "; it is running, so the newest epochs of its changelogs stay as they are" if done.is_running else ""
    notices.print(
        f"{application}: {'nothing was changed (--dry-run)' if dry_run else 'compacted'}{kept}",
        markup=False,
        soft_wrap=True,
    )
    if store is None:
        notices.print(
            f"{application}: {cleaned_sentence(done.quarantine, is_dry_run=dry_run)}", markup=False, soft_wrap=True
        )
    for stays in done.quarantine.kept:
        notices.print(
            f"{application}: {stays.folder.path} stays in quarantine: {stays.why}", markup=False, soft_wrap=True
        )


def _plain(cleaning: QuarantineCleaning) -> dict[str, Any]:
    """The cleaning as values for JSON."""
    return {
        "removed": [{"path": str(folder.path), "bytes": folder.size_bytes} for folder in cleaning.removed],
        "kept": [{"path": str(kept.folder.path), "why": kept.why} for kept in cleaning.kept],
    }
