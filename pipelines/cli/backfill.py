"""``weir backfill``: days of an application's outputs, or all of it with its stores, computed anew from history, and
swapped in or discarded."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
from weir.pipelines.cli.render import console, notices, print_json, print_table
from weir.pipelines.operations.errors import OperationError

if TYPE_CHECKING:
    from weir.infra.settings import Settings
    from weir.pipelines.backfill.shadow import Days

ProgramArgument = Annotated[
    str,
    typer.Argument(
        metavar="APP", help="The id of an application that ran in DIR, or MODULE:APP for another program of it."
    ),
]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The backfill, as `weir backfill list` shows it.")]


def run(
    application: ProgramArgument,
    first: Annotated[
        str | None, typer.Argument(metavar="FIRST", show_default=False, help="The first day, UTC, as 2013-01-08.")
    ] = None,
    end: Annotated[
        str | None, typer.Argument(metavar="END", show_default="the day after FIRST", help="The day after the last.")
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--everything",
            help="In place of days the whole history, running totals and stores included; swapped in "
            "while the application is at rest.",
        ),
    ] = False,
    swap: Annotated[bool, typer.Option("--swap", help="Swap it in when it is complete.")] = False,
    margin_hours: Annotated[
        float | None,
        typer.Option(
            "--margin-hours",
            min=0,
            show_default="the longest window and its grace",
            help="Begin reading so long before the first day.",
        ),
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="[TOPIC=]PATH",
            help="Read a Delta table or Parquet files in the topic's place; once for each topic.",
        ),
    ] = None,
    time_column: Annotated[
        str, typer.Option(metavar="COLUMN", help="The time of a record in such a table or file.")
    ] = "_ts",
    bootstrap_servers: ServersOption = None,
    assignments: SetOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Compute days of event time anew from the application's topics, or from tables and files, beside it and unseen.

    With --everything it is the whole history, and its swap brings the stores too: so state goes on under another
    topology.

    The program is the one that ran last, as it is now, unless MODULE:APP names another. Ctrl-C ends it and leaves
    nothing.
    """
    from weir.pipelines.cli.progress import TerminalWarnings, following
    from weir.pipelines.operations.backfill import BackfillInput, make_backfill

    if everything and (first is not None or sources or margin_hours is not None):
        raise OperationError(
            "--everything reads the topics from their beginning; leave days, --from and --margin-hours "
            "out, or leave out --everything"
        )
    days = _days(first, end, everything=everything)
    settings = load_settings(directory, parse_assignments(assignments or []), bootstrap_servers=bootstrap_servers)
    reference = _reference(settings, application)
    source = BackfillInput(
        paths=_paths(reference, sources or []),
        time_column=time_column,
        margin_ms=None if margin_hours is None else round(margin_hours * 3_600_000),
    )
    with following(f"backfill of {application}") as on_progress:
        made = make_backfill(
            settings,
            reference,
            days,
            source,
            owner="weir backfill",
            on_progress=on_progress,
            console=TerminalWarnings(),
        )
    if made is None:
        console.print(f"the backfill of {application} was stopped; nothing of it is left", markup=False)
        raise typer.Exit(1)
    shadow, completion = made
    console.print(
        f"backfill {shadow.id} of {shadow.application}, {days}: {completion.records_in:,} records in "
        f"{completion.seconds:.1f} s",
        markup=False,
        soft_wrap=True,
    )
    for table, reason in shadow.backfill.left_out.items():
        console.print(f"{table} is left out: {reason}", markup=False, soft_wrap=True)
    if swap:
        _swap_in(settings, application, shadow.id)
    else:
        notices.print(f"swap it in with `weir backfill swap {application} {shadow.id}`", markup=False, soft_wrap=True)


def swap(
    application: ProgramArgument,
    backfill: IdArgument,
    bootstrap_servers: ServersOption = None,
    assignments: SetOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Put a complete backfill in the place of what the outputs hold for its days, in one commit.

    The application's driver does it if one runs, else this command. One of everything wants the application stopped;
    it first reads what has come since it was made.
    """
    settings = load_settings(directory, parse_assignments(assignments or []), bootstrap_servers=bootstrap_servers)
    _swap_in(settings, application, backfill)


def _reference(settings: Settings, application: str) -> str:
    """``module:attribute`` of a program that is given so, or by the id of its application."""
    from weir.pipelines.operations.registry import load_reference, registered_reference, require

    if ":" not in application:
        return registered_reference(settings, application)
    require(settings, load_reference(application).id)
    return application


def _days(first: str | None, end: str | None, *, everything: bool) -> Days:
    from weir.pipelines.backfill.shadow import EVERYTHING, Days

    if everything:
        return EVERYTHING
    if first is None:
        raise OperationError("name the FIRST day, as 2013-01-08, or give --everything")
    first_day = _day("FIRST", first)
    days = Days(first=first_day, end=first_day + timedelta(days=1) if end is None else _day("END", end))
    if days.end <= days.first:
        raise OperationError(f"END {days.end} is not after FIRST {days.first}; END is the day after the last one")
    return days


def _day(name: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise OperationError(f"{name} is a day, as 2013-01-08, and {text!r} is none") from None


def _paths(reference: str, sources: list[str]) -> dict[str, str]:
    """``PATH`` or ``TOPIC=PATH``, by topic; paths as absolute ones."""
    from weir.pipelines.operations.registry import load_reference

    topics, found = load_reference(reference).topology.topics(), {}
    for source in sources:
        topic, equals, path = source.partition("=")
        if not equals and len(topics) == 1:
            topic, path = topics[0], source
        if topic not in topics or not path:
            raise OperationError(f"--from {source} names none of the topics {', '.join(topics)}; write TOPIC=PATH")
        found[topic] = str(Path(path).absolute())
    return found


def _swap_in(settings: Settings, application: str, backfill: str) -> None:
    from weir.pipelines.cli.progress import TerminalWarnings, following
    from weir.pipelines.operations.backfill import swap_in

    with following(f"swap of {backfill}") as on_progress:
        done = swap_in(
            settings,
            _reference(settings, application),
            backfill,
            reason="command line",
            on_progress=on_progress,
            console=TerminalWarnings(),
        )
    console.print(f"{application}: {done}", markup=False, soft_wrap=True)


def discard(
    application: AppArgument,
    backfill: Annotated[str | None, typer.Argument(metavar="[ID]", help="One backfill.")] = None,
    abandoned: Annotated[
        bool, typer.Option("--abandoned", help="All that broke off and have been still for a day.")
    ] = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Remove a backfill that nobody wants to swap in. The outputs stay as they are."""
    from weir.pipelines.operations.backfills import discard as discard_one
    from weir.pipelines.operations.backfills import discard_abandoned
    from weir.pipelines.operations.registry import require

    settings = load_settings(directory)
    if abandoned == (backfill is not None):
        raise OperationError("name one backfill, or give --abandoned; `weir backfill list` shows all")
    if backfill is not None:
        discard_one(settings, application, backfill)
        console.print(f"{application}: {backfill} is discarded", markup=False)
        return
    gone = discard_abandoned(settings, require(settings, application))
    console.print(f"{application}: {', '.join(gone) or 'nothing'} discarded", markup=False, soft_wrap=True)


def show(
    application: AppArgument, as_json: JsonOption = False, directory: DirOption = None, debug: DebugOption = False
) -> None:
    """Show an application's backfills: running, broken off, complete, and the newest that were swapped in."""
    import polars as pl

    from weir.pipelines.operations.backfills import backfills

    rows = list(backfills(load_settings(directory), application))
    if as_json:
        print_json([asdict(row) for row in rows])
    elif not rows:
        console.print(f"{application} has no backfills", markup=False)
    else:
        print_table(
            pl.DataFrame(
                [
                    {
                        "backfill": row.id,
                        "days": row.days,
                        "from": row.source,
                        "state": row.state,
                        "records": row.records_in,
                        "epoch": row.epoch,
                        "began": None if row.at_ms is None else datetime.fromtimestamp(row.at_ms / 1000, UTC),
                    }
                    for row in rows
                ],
                schema_overrides={"records": pl.Int64, "began": pl.Datetime("ms", "UTC")},
                infer_schema_length=None,
            )
        )


backfill = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    epilog="Example: weir backfill run flights 2013-01-08 2013-01-15 --swap",
    help="Compute days of an application's outputs, or all of it, anew from history, and swap that in.",
)
for name, command, example in (
    ("run", run, "flights 2013-01-08 2013-01-15 --swap, or weir backfill run flights --everything"),
    ("swap", swap, "flights 20130108-20130115-3f9a1c"),
    ("discard", discard, "flights 20130108-20130115-3f9a1c"),
    ("list", show, "flights --json"),
):
    backfill.command(name, epilog=f"Example: weir backfill {name} {example}")(command)
