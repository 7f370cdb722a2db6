"""``weir backfill``: recomputes days of an application's outputs, or everything including its stores, from history, and
swaps the result in or discards it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.pipelines.cli.advice import advised
from weir.pipelines.cli.options import (
    PROGRAM,
    AppArgument,
    DebugOption,
    DirOption,
    JsonOption,
    ServersOption,
    SetOption,
    load_settings,
    parse_assignments,
    remember,
)
from weir.pipelines.cli.render import console, notices, print_json, print_table
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.text import counted

if TYPE_CHECKING:
    from weir.infra.settings import Settings
    from weir.pipelines.backfill.shadow import Days

ProgramArgument = Annotated[
    str,
    typer.Argument(
        metavar="APP",
        callback=remember(PROGRAM),
        help="The id of an application that has run in DIR, or MODULE:APP to use another program for it.",
    ),
]
MaxChangeOption = Annotated[
    float | None,
    typer.Option(
        "--max-change",
        min=0,
        max=1,
        metavar="SHARE",
        show_default="0.01",
        help="Refuse to swap if more than this share of a table's rows would be removed or changed.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Swap it in however much changes.")]
PublishOption = Annotated[
    bool,
    typer.Option(
        "--publish",
        help="Also publish its rows to sinks outside the warehouse, after all that they got before.",
    ),
]
IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The backfill's id, as `weir backfill list APP` shows it.")
]


def run(
    context: typer.Context,
    application: ProgramArgument,
    first: Annotated[
        str | None,
        typer.Argument(metavar="FIRST", show_default=False, help="The first day, UTC, for example 2013-01-08."),
    ] = None,
    end: Annotated[
        str | None,
        typer.Argument(metavar="END", show_default="the day after FIRST", help="The day after the last one."),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--everything",
            help="Recompute the whole history instead of days, including running totals and stores; "
            "swapped in while the application is stopped.",
        ),
    ] = False,
    swap: Annotated[bool, typer.Option("--swap", help="Swap it in once it is complete.")] = False,
    publish: PublishOption = False,
    max_change: MaxChangeOption = None,
    yes: YesOption = False,
    margin_hours: Annotated[
        float | None,
        typer.Option(
            "--margin-hours",
            min=0,
            show_default="the longest window plus its grace period",
            help="How long before the first day to start reading.",
        ),
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="[TOPIC=]PATH",
            help="Read a Delta table or Parquet files instead of the topic; repeat for each topic.",
        ),
    ] = None,
    time_column: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column with a record's time in such a table or file.")
    ] = "_ts",
    wall_clock: Annotated[
        bool,
        typer.Option("--wall-clock", help="Call what processors do by the wall clock, as it passes meanwhile."),
    ] = False,
    bootstrap_servers: ServersOption = None,
    assignments: SetOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Recompute days of event time from the application's topics, or from tables and files; its outputs do not change.

    With --everything it recomputes the whole history, and the swap replaces the stores too: this is how state
    continues under another topology.

    Rows of global tables are those that their topics hold as it begins.

    The program is the one that ran last, in its current version, unless MODULE:APP names another. Ctrl-C stops the
    backfill and removes its files.
    """
    from weir.pipelines.cli.progress import TerminalWarnings, following
    from weir.pipelines.operations.backfill import BackfillInput, make_backfill

    if everything and (first is not None or sources or margin_hours is not None):
        raise OperationError(
            "--everything reads the topics from the beginning; leave out the days, --from and --margin-hours, "
            "or leave out --everything"
        )
    if publish and not swap:
        raise OperationError("--publish belongs to the swap; add --swap, or leave it to the command that swaps")
    days = _days(first, end, everything=everything)
    settings = load_settings(
        directory, parse_assignments(assignments or []), bootstrap_servers=bootstrap_servers, writes=True
    )
    reference = _reference(settings, application)
    source = BackfillInput(
        paths=_paths(settings, reference, sources or []),
        time_column=time_column,
        margin_ms=None if margin_hours is None else round(margin_hours * 3_600_000),
    )
    with following(f"backfill of {application}") as on_progress:
        made = make_backfill(
            settings,
            reference,
            days,
            source,
            passes_wall_clock=wall_clock,
            owner="weir backfill",
            on_progress=on_progress,
            console=TerminalWarnings(),
        )
    if made is None:
        console.print(f"the backfill of {application} was stopped; its files were removed", markup=False)
        raise typer.Exit(1)
    shadow, completion = made
    console.print(
        f"backfill {shadow.id} of {shadow.application}, {days}: {counted(completion.records_in, 'record')} in "
        f"{completion.seconds:.1f} s",
        markup=False,
        soft_wrap=True,
    )
    if completion.records_in == 0:
        console.print(
            f"there was no record to read: once it is swapped in, the outputs hold nothing for {days}",
            markup=False,
            soft_wrap=True,
        )
    if shadow.backfill.global_note:
        console.print(shadow.backfill.global_note, markup=False, soft_wrap=True)
    for table, reason in shadow.backfill.left_out.items():
        if publish and table in shadow.backfill.published:
            continue
        console.print(f"{table} is not included: {reason}", markup=False, soft_wrap=True)
    if swap:
        _swap_in(settings, application, shadow.id, max_change=max_change, yes=yes, publish=publish)
    else:
        told = f"swap it in with `weir backfill swap {application} {shadow.id}`"
        notices.print(advised(told, context), markup=False, soft_wrap=True)


def swap(
    application: ProgramArgument,
    backfill: IdArgument,
    publish: PublishOption = False,
    max_change: MaxChangeOption = None,
    yes: YesOption = False,
    bootstrap_servers: ServersOption = None,
    assignments: SetOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Replace what the outputs hold for a backfill's days with the complete backfill, in one commit.

    First it shows how many rows of each table are removed, changed and added; --max-change 0 shows it without swapping,
    unless nothing is removed or changed.

    If the application is running, its driver does it, otherwise this command. A backfill of everything needs the
    application stopped, and first reads what has arrived since it was made.
    """
    settings = load_settings(
        directory, parse_assignments(assignments or []), bootstrap_servers=bootstrap_servers, writes=True
    )
    _swap_in(settings, application, backfill, max_change=max_change, yes=yes, publish=publish)


def _reference(settings: Settings, application: str) -> str:
    """``module:attribute`` of a program that is given as such, or by the id of its application."""
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
        raise OperationError("name the FIRST day, for example 2013-01-08, or give --everything")
    first_day = _day("FIRST", first)
    days = Days(first=first_day, end=first_day + timedelta(days=1) if end is None else _day("END", end))
    if days.end <= days.first:
        raise OperationError(f"END {days.end} is not after FIRST {days.first}; END is the day after the last one")
    return days


def _day(name: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise OperationError(f"{name}: {text!r} is not a day; write it like 2013-01-08") from None


def _paths(settings: Settings, reference: str, sources: list[str]) -> dict[str, str]:
    """Absolute paths by topic, from ``PATH`` or ``TOPIC=PATH``."""

    from weir.pipelines.operations.registry import load_reference
    from weir.state.commit.protocol import newest_commit
    from weir.state.storage.places import folder_at

    program = load_reference(reference)
    topics, found = program.over(newest_commit(folder_at(settings.warehouse), program.id)).topology.topics(), {}
    for source in sources:
        topic, equals, path = source.partition("=")
        if not equals and len(topics) == 1:
            topic, path = topics[0], source
        if topic not in topics or not path:
            raise OperationError(
                f"--from {source} does not name one of the topics {', '.join(topics)}; write TOPIC=PATH"
            )
        found[topic] = str(Path(path).absolute())
    return found


def _swap_in(
    settings: Settings, application: str, backfill: str, *, max_change: float | None, yes: bool, publish: bool
) -> None:
    from weir.pipelines.backfill.differences import MAX_CHANGE, TableDifference
    from weir.pipelines.cli.progress import TerminalWarnings, following
    from weir.pipelines.operations.backfill import swap_in

    def show(differences: Sequence[TableDifference]) -> None:
        for each in differences:
            notices.print(str(each), markup=False, soft_wrap=True)

    with following(f"swap of {backfill}") as on_progress:
        done = swap_in(
            settings,
            _reference(settings, application),
            backfill,
            reason="command line",
            max_change=None if yes else MAX_CHANGE if max_change is None else max_change,
            publish=publish,
            on_count=show,
            on_progress=on_progress,
            console=TerminalWarnings(),
        )
    console.print(f"{application}: {done}", markup=False, soft_wrap=True)


def discard(
    application: AppArgument,
    backfill: Annotated[str | None, typer.Argument(metavar="[ID]", help="The backfill's id.")] = None,
    abandoned: Annotated[
        bool, typer.Option("--abandoned", help="All that were interrupted and have been idle for a day.")
    ] = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Remove a backfill that will not be swapped in. The outputs stay as they are."""
    from weir.pipelines.operations.backfills import discard as discard_one
    from weir.pipelines.operations.backfills import discard_abandoned
    from weir.pipelines.operations.registry import require

    settings = load_settings(directory, writes=True)
    if abandoned == (backfill is not None):
        raise OperationError(f"name one backfill, or give --abandoned; `weir backfill list {application}` shows all")
    if backfill is not None:
        discard_one(settings, application, backfill)
        console.print(f"{application}: {backfill} discarded", markup=False)
        return
    gone = discard_abandoned(settings, require(settings, application))
    console.print(f"{application}: {', '.join(gone) or 'nothing'} discarded", markup=False, soft_wrap=True)


def show(
    application: AppArgument, as_json: JsonOption = False, directory: DirOption = None, debug: DebugOption = False
) -> None:
    """List an application's backfills: running, interrupted, complete, and the most recently swapped in."""
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
    rich_markup_mode="markdown",
    epilog="Example: weir backfill run flights 2013-01-08 2013-01-15 --swap",
    help="Recompute days of an application's outputs, or everything, from history, and swap the result in.",
)
for name, command, example in (
    ("run", run, "flights 2013-01-08 2013-01-15 --swap, or weir backfill run flights --everything"),
    ("swap", swap, "flights 20130108-20130115-3f9a1c"),
    ("discard", discard, "flights 20130108-20130115-3f9a1c"),
    ("list", show, "flights --json"),
):
    backfill.command(name, epilog=f"Example: weir backfill {name} {example}")(command)
