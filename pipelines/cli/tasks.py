"""``weir tasks``: shows the tasks of an application as Kafka's tools show the members of a consumer group."""

from __future__ import annotations

from typing import Any

import typer

from weir.pipelines.cli.advice import advised
from weir.pipelines.cli.options import (
    AppArgument,
    DebugOption,
    DirOption,
    JsonOption,
    ServersOption,
    SetOption,
    load_settings,
    parse_assignments,
)
from weir.pipelines.cli.render import console, print_json, print_table
from weir.pipelines.operations.text import duration, utc_text


def tasks(
    context: typer.Context,
    application: AppArgument,
    as_json: JsonOption = False,
    bootstrap_servers: ServersOption = None,
    assignments: SetOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Show each task of an application: slot, committed offsets, ends of its topics, lag, pace, stores, what is not
    committed.

    As `kafka-consumer-groups --describe` shows the members of a group: Weir assigns partitions itself, and no group
    knows of them. A committed offset is the next one to read. Brokers that do not run are not started.
    """
    from weir.infra.control import ControlDatabase
    from weir.pipelines.operations.registry import require
    from weir.pipelines.operations.tasks import application_tasks

    settings = load_settings(directory, parse_assignments(assignments or ()), bootstrap_servers=bootstrap_servers)
    found = application_tasks(settings, ControlDatabase(settings.control_database_url), require(settings, application))
    if as_json:
        print_json(found)
    else:
        _print_tasks(found, context)


def _print_tasks(found: dict[str, Any], context: typer.Context) -> None:
    import polars as pl

    from weir.infra.spark import DRIVER

    where = f" (process {found['pid']} on {found['host']})" if found["is_running"] else ""
    console.print(f"[bold]{found['application']}[/bold]  {found['state']}{where}", soft_wrap=True)
    rows = pl.DataFrame([_row(task) for task in found["tasks"]], infer_schema_length=None)
    is_on_cluster = any(task["executor"] not in (None, "", DRIVER) for task in found["tasks"])
    print_table(rows if is_on_cluster else rows.drop("executor", "standbys"))
    if found["ends_unknown"]:
        at = utc_text(found["reported_at"])
        told = f"ends unknown: {found['ends_unknown']}; lag is as the driver reported it at {at}"
        console.print(f"  {advised(told, context)}", markup=False, soft_wrap=True)


def _row(task: dict[str, Any]) -> dict[str, Any]:
    behind_s = task["seconds_behind"]
    return {
        "task": task["task"],
        "sub_topology": task["sub_topology"],
        "slot": task["slot"],
        "executor": task["executor"],
        "standbys": ", ".join(f"{executor} ({behind_s:.1f} s)" for executor, behind_s in task["standbys"].items()),
        "status": task["status"],
        "committed": ", ".join(map(_committed, task["partitions"])) or "rows of other tasks",
        "lag": task["lag"],
        "behind": None if behind_s is None else duration(1_000 * behind_s),
        "records_per_s": task["records_per_s"],
        "rows": task["rows"],
        "bytes": task["bytes"],
        "uncommitted_records": task["uncommitted_records"],
        "uncommitted_bytes": task["uncommitted_bytes"],
        "reason": task["reason"],
    }


def _committed(partition: dict[str, Any]) -> str:
    """``orders-3 at 1,200 of 1,207``."""
    offset, end = (
        "-" if each is None else f"{each:,}" for each in (partition["committed_offset"], partition["end_offset"])
    )
    return f"{partition['topic']}-{partition['partition']} at {offset} of {end}"
