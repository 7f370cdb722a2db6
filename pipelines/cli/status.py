"""``weir status``: shows the state of every application in the folder, or of one in detail.

What is committed comes from the commit log, whether and how it runs from the control database, what is in quarantine
from the state folder.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from weir.pipelines.cli.advice import advised
from weir.pipelines.cli.options import PROGRAM, DebugOption, DirOption, JsonOption, load_settings, remember
from weir.pipelines.cli.render import console, print_json, print_table
from weir.pipelines.operations.text import duration, utc_text


def status(
    context: typer.Context,
    application: Annotated[
        str | None,
        typer.Argument(metavar="[APP]", callback=remember(PROGRAM), help="Show this application alone, in detail."),
    ] = None,
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Show every application in the folder: state, commits, lag, open windows, late records, expectations, quarantine,
    tasks.

    With APP also its stores, the snapshots and stored names of its tasks, the rows that wait between them, and the
    restores under way.
    """
    from weir.infra.control import ControlDatabase
    from weir.pipelines.operations.registry import applications, require
    from weir.pipelines.operations.status import application_detail, application_status

    settings = load_settings(directory)
    database = ControlDatabase(settings.control_database_url)
    if application is not None:
        detail = application_detail(settings, database, require(settings, application))
        if as_json:
            print_json(detail)
        else:
            _print_application(detail, context)
        return
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
        _print_application(entry, context)


def _print_application(entry: dict[str, Any], context: typer.Context) -> None:
    import polars as pl

    where = f" (process {entry['pid']} on {entry['host']})" if entry["is_running"] else ""
    console.print(f"[bold]{entry['application']}[/bold]  {entry['state']}{where}", soft_wrap=True)
    if entry["error"]:
        console.print(f"  error: {advised(entry['error'], context)}", markup=False, soft_wrap=True)
    if entry["waits_for"]:
        console.print(f"  waits: {entry['waits_for']}", markup=False, soft_wrap=True)
    if entry["full_disk"] and entry["full_disk"] not in (entry["waits_for"] or ""):
        console.print(f"  disk: {entry['full_disk']}", markup=False, soft_wrap=True)
    if entry["unwatched"]:
        console.print(f"  unwatched: {entry['unwatched']}", markup=False, soft_wrap=True)
    for doubt in entry["in_doubt"]:
        console.print(
            f"  in doubt: {doubt['difference']}; found at {utc_text(doubt['found_at'])} by {doubt['found_by']}; until "
            "it is restored, the task processes nothing",
            markup=False,
            soft_wrap=True,
        )
    if entry["quarantine"]["folders"]:
        _print_quarantine(entry["quarantine"])
    if entry["committed_epoch"] is None:
        console.print("  nothing committed yet")
        _print_sinks(entry)
        return
    reason = f" ({entry['commit_reason']})" if entry.get("commit_reason") else ""
    pace = f", {entry['records_per_s']:,.0f} records/s" if entry["records_per_s"] else ""
    lag = f", lag {entry['lag']:,}" if entry["lag"] is not None else ""
    if lag and not entry["is_running"]:
        lag += f" at {utc_text(entry['reported_at'])}"
    console.print(
        f"  committed: epoch {entry['committed_epoch']} of generation {entry['generation']}, "
        f"{utc_text(entry['committed_at'])}{reason}{lag}{pace}\n"
        f"  records in: {entry['records_in']:,}, open windows: {entry['open_windows']:,}, "
        f"late records: {entry['late_records']:,} (counted once per window)"
        + "".join(
            f", {name}: {entry[field]:,}{note}"
            for name, field, note in (
                (
                    "dead letters so far",
                    "dead_letters",
                    f" (each failed replay counts again; `weir dead-letters list {entry['application']}` shows which "
                    "wait)",
                ),
                ("records left out", "failed_records", ""),
            )
            if entry[field]
        ),
        markup=False,
        soft_wrap=True,
    )
    for found in entry["expectations"]:
        dropped = f", {found['dropped']:,} of them dropped" if found["dropped"] else ""
        console.print(
            f"  expectation {found['expectation']}: {found['passed']:,} passed, {found['failed']:,} failed "
            f"({found['failed_share']:.2%}){dropped}",
            soft_wrap=True,
        )
    if entry["is_running"] and entry["commits_per_s"]:
        console.print(
            f"  commits: {entry['commits_per_s']:.1f} per second, {entry['commit_ms_avg']:.0f} ms on average, "
            f"at most {entry['commit_ms_max']:.0f} ms"
            + (f", {entry['commit_interval_ms']:.0f} ms apart" if entry["commit_interval_ms"] else ""),
            soft_wrap=True,
        )
    if entry["freshness_p50_ms"] is not None:
        console.print(
            "  freshness: half of the last minute's records were committed within "
            f"{duration(entry['freshness_p50_ms'])} of their time, 99% within {duration(entry['freshness_p99_ms'])}",
            soft_wrap=True,
        )
    if entry.get("rows_between_tasks"):
        console.print(f"  committed rows that wait between tasks: {entry['rows_between_tasks']:,}", soft_wrap=True)
    _print_sinks(entry)
    for action in entry["actions"]:
        console.print(
            f"  {action['by']} at {utc_text(action['at'])}: {action['measured']}; {action['did'] or 'asked'}; "
            f"{action['brought']}",
            markup=False,
            soft_wrap=True,
        )
    for restore in entry.get("restores", ()):
        console.print(f"  restore under way: task {restore['task']}: {restore['reason']}", markup=False, soft_wrap=True)
    if entry.get("stores"):
        print_table(pl.DataFrame(entry["stores"], infer_schema_length=None), title="stores on this host")
    if entry["tasks"]:
        columns = (
            "task",
            *(("name", "committed_state", "snapshot", "rows_since_snapshot") if "stores" in entry else ()),
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


def _print_sinks(entry: dict[str, Any]) -> None:
    for sink in entry["sinks"]:
        _print_sink(sink, entry["application"])


def _print_sink(plain: dict[str, Any], application: str) -> None:
    import time

    import msgspec

    from weir.pipelines.cli.sink import print_refusals, shown_state, skipping
    from weir.pipelines.operations.text import counted, megabytes
    from weir.pipelines.publishing.state import SinkState

    sink = msgspec.convert(plain, SinkState)
    waits = ""
    if sink.waiting_rows:
        waits = (
            f"; {counted(sink.waiting_rows, 'row')} wait{'s' * (sink.waiting_rows == 1)} "
            f"({megabytes(sink.waiting_bytes)}, for {sink.lag_s(time.time()):,.1f} s)"
        )
    aside = f"; {counted(sink.refused_rows, 'refused row')} aside" if sink.refused_rows else ""
    decide = f"; {skipping(application, sink.sink)}" if sink.awaits == "skip" else ""
    console.print(
        f"  sink {sink.sink} ({sink.target}): {shown_state(sink)}{decide}{waits}{aside}", markup=False, soft_wrap=True
    )
    print_refusals(sink, "    ")


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
