"""``weir status``: shows the state of every application in the folder.

What is committed comes from the commit log, whether and how it runs from the control database, what is in quarantine
from the state folder.
"""

from __future__ import annotations

from typing import Any

from weir.pipelines.cli.options import DebugOption, DirOption, JsonOption, load_settings
from weir.pipelines.cli.render import console, print_json, print_table


def status(as_json: JsonOption = False, directory: DirOption = None, debug: DebugOption = False) -> None:
    """Show every application in the folder: state, commits, lag, open windows, late records, quarantine, tasks."""
    from weir.infra.control import ControlDatabase
    from weir.pipelines.operations.registry import applications
    from weir.pipelines.operations.status import application_status

    settings = load_settings(directory)
    database = ControlDatabase(settings.control_database_url)
    found = [application_status(settings, database, application) for application in applications(settings)]
    if as_json:
        print_json({"applications": found})
    elif not found:
        console.print(
            f"nothing has run in {settings.dir} yet; start with `weir demo` or `weir run MODULE:APP`",
            markup=False,
            soft_wrap=True,
        )
    for entry in found if not as_json else []:
        _print_application(entry)


def _print_application(entry: dict[str, Any]) -> None:
    import polars as pl

    where = f" (process {entry['pid']} on {entry['host']})" if entry["is_running"] else ""
    console.print(f"[bold]{entry['application']}[/bold]  {entry['state']}{where}", soft_wrap=True)
    if entry["error"]:
        console.print(f"  error: {entry['error']}", markup=False, soft_wrap=True)
    if entry["quarantine"]["folders"]:
        _print_quarantine(entry["quarantine"])
    if entry["committed_epoch"] is None:
        console.print("  nothing committed yet")
        return
    pace = f", {entry['records_per_s']:,.0f} records/s" if entry["records_per_s"] else ""
    lag = f", lag {entry['lag']:,}" if entry["lag"] is not None else ""
    console.print(
        f"  committed: epoch {entry['committed_epoch']} of generation {entry['generation']}, "
        f"{entry['committed_at']:%Y-%m-%d %H:%M:%S} UTC{lag}{pace}\n"
        f"  records in: {entry['records_in']:,}, open windows: {entry['open_windows']:,}, "
        f"late records: {entry['late_records']:,} (counted once per window)",
        soft_wrap=True,
    )
    if entry["is_running"] and entry["commits_per_s"]:
        console.print(
            f"  commits: {entry['commits_per_s']:.1f} per second, {entry['commit_ms_avg']:.0f} ms on average, "
            f"at most {entry['commit_ms_max']:.0f} ms",
            soft_wrap=True,
        )
    if entry["tasks"]:
        columns = (
            "task",
            "slot",
            "status",
            "state",
            "lag",
            "records_in",
            "open_windows",
            "late_records",
            "uncommitted_records",
            "reason",
        )
        rows = pl.DataFrame(
            [{name: task[name] for name in columns} for task in entry["tasks"]], infer_schema_length=None
        )
        print_table(rows if entry["is_running"] else rows.with_columns(status=pl.lit(entry["state"])))


def _print_quarantine(quarantine: dict[str, Any]) -> None:
    from weir.pipelines.operations.quarantine import days
    from weir.pipelines.operations.text import counted, megabytes

    console.print(
        f"  quarantine: {counted(quarantine['folders'], 'folder')}, {megabytes(quarantine['size_bytes'])}, the oldest "
        f"{days(quarantine['oldest_age'].total_seconds())} old, in {quarantine['path']}",
        markup=False,
        soft_wrap=True,
    )
    if quarantine["over_limit"]:
        console.print(f"  {quarantine['over_limit']}", markup=False, soft_wrap=True)
