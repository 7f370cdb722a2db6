"""``weir compact``: few files in place of many in an application's tables, whether it runs or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from weir.pipelines.cli.options import AppArgument, CommandError, DebugOption, DirOption, JsonOption, load_settings
from weir.pipelines.cli.render import notices, print_json, print_table

if TYPE_CHECKING:
    from weir.infra.settings import Settings
    from weir.state.changelog.compaction import Compaction, TableReport


def _chosen(compaction: Compaction, application: str, store: str | None) -> list[str]:
    from weir.state.changelog.rows import CHANGELOG_FOLDER

    tables = compaction.tables()
    if store is None:
        return tables
    if (wanted := f"{CHANGELOG_FOLDER}/{store}") not in tables:
        stores = [name.removeprefix(f"{CHANGELOG_FOLDER}/") for name in tables if name.startswith(CHANGELOG_FOLDER)]
        raise CommandError(
            f"{application} has no store {store!r} with a changelog; "
            f"it has {', '.join(stores) or 'none yet: run the application first'}"
        )
    return [wanted]


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """What a compaction did to an application's tables, or would do."""

    reports: list[TableReport]
    is_running: bool
    """Whether a driver ran, so that the newest epochs of changelogs stayed as they are."""


def compact_application(
    settings: Settings,
    application: str,
    *,
    store: str | None = None,
    is_dry_run: bool = False,
    on_progress: Callable[[int, int, str], None] = lambda done, total, table: None,
) -> Compacted:
    """Compact all tables, or one store's changelog; ``on_progress`` gets rows read, rows to read and the table.

    Raises:
        CommandError: The folder does not know the application or the store, or nothing is committed yet.
    """
    from weir.infra.control import ControlDatabase
    from weir.pipelines.cli.drive_backfill import discard_abandoned
    from weir.pipelines.cli.registry import require
    from weir.state.changelog.compaction import Compaction
    from weir.state.commit.protocol import newest_commit

    if newest_commit(settings.warehouse, require(settings, application)) is None:
        raise CommandError(f"{application} has committed nothing yet; run it first")
    is_running = ControlDatabase(settings.control_database_url).is_running(application)
    compaction = Compaction(
        settings.warehouse,
        application,
        is_whole=not is_running,
        tombstone_retention_ms=int(settings.tombstone_retention_hours * 3_600_000),
        on_progress=on_progress,
    )
    tables = _chosen(compaction, application, store)
    if not is_dry_run:
        discard_abandoned(settings, application)
    reports = compaction.plan(tables) if is_dry_run else list(compaction.run(tables))
    return Compacted(reports=reports, is_running=is_running)


def compact(
    application: AppArgument,
    store: Annotated[str | None, typer.Option(metavar="STORE", help="Only this store's changelog.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change; change nothing.")] = False,
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Merge the files of changelogs, outputs and the commit log; the application may run meanwhile.

    Changelogs and tables of updates keep the newest row of each key, facts keep all rows. While the application runs,
    the newest thousand epochs of changelogs stay as they are. Deletions are forgotten after
    `tombstone_retention_hours` (24), replaced files leave the disk after a day.
    """
    import polars as pl

    from weir.pipelines.cli.progress import counting

    settings = load_settings(directory)
    with counting(f"compacting {application}") as show:
        done = compact_application(settings, application, store=store, is_dry_run=dry_run, on_progress=show)
    reports = done.reports
    if as_json:
        print_json([asdict(report) for report in reports])
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
    kept = "; it runs, so the newest epochs of its changelogs stay as they are" if done.is_running else ""
    notices.print(
        f"{application}: {'nothing was changed (--dry-run)' if dry_run else 'compacted'}{kept}",
        markup=False,
        soft_wrap=True,
    )
