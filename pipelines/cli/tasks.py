"""``weir tasks``: shows the tasks of an application as Kafka's tools show the members of a consumer group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from weir.infra.settings import Settings


SHOWN, SHOWN_MOVES, SHOWN_TASKS = 5, 20, 8
"""How many assignments are shown, moves of one, and tasks of an executor by their names."""


def tasks(
    context: typer.Context,
    application: AppArgument,
    past: Annotated[
        bool,
        typer.Option(
            "--assignments",
            help="Instead, show the newest times that tasks or standbys got other places: when, how long that took, "
            "what each executor has and had, and why each moved.",
        ),
    ] = False,
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

    if past:
        _show_assignments(load_settings(directory), application, as_json=as_json)
        return
    settings = load_settings(directory, parse_assignments(assignments or ()), bootstrap_servers=bootstrap_servers)
    found = application_tasks(settings, ControlDatabase(settings.control_database_url), require(settings, application))
    if as_json:
        print_json(found)
    else:
        _print_tasks(found, context)


def _show_assignments(settings: Settings, application: str, *, as_json: bool) -> None:
    from weir.infra.control import ControlDatabase
    from weir.pipelines.operations.assignments import application_assignments
    from weir.pipelines.operations.registry import require

    found = application_assignments(ControlDatabase(settings.control_database_url), require(settings, application))
    if as_json:
        print_json(found)
        return
    import polars as pl

    for each in found["assignments"][-SHOWN:]:
        took = f"took {1000 * each['seconds']:.1f} ms"
        console.print(f"[bold]{utc_text(each['at'])}[/bold]  {each['reason']}; {took}", soft_wrap=True)
        rows = [
            {"executor": id, **{name: _short(value) for name, value in of_it.items()}}
            for id, of_it in each["executors"].items()
        ]
        print_table(pl.DataFrame(rows, infer_schema_length=None))
        for move in each["moves"][:SHOWN_MOVES]:
            where = " -> ".join(filter(None, (move["source"], move["target"])))
            text = f"  {move['task']} {move['role']} {where}: {move['reason']}"
            console.print(text, markup=False, soft_wrap=True)
        if len(each["moves"]) > SHOWN_MOVES:
            console.print(f"  and {len(each['moves']) - SHOWN_MOVES} more moves; --json has all", markup=False)


def _short(value: int | list[str]) -> int | str:
    """Of many tasks, how many."""
    if isinstance(value, int):
        return value
    return ", ".join(value) if len(value) <= SHOWN_TASKS else f"{len(value)} tasks"


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
