"""``weir sink``: an application's sinks outside the warehouse, and the rows that they refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weir.pipelines.cli.options import (
    AppArgument,
    DebugOption,
    DirOption,
    JsonOption,
    YesOption,
    confirm,
    load_settings,
)
from weir.pipelines.cli.render import console, notices, print_json, print_table
from weir.pipelines.operations.text import counted

if TYPE_CHECKING:
    from weir.pipelines.publishing.state import Action, SinkState

sink = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    epilog="Example: weir sink list shop",
    help="List an application's sinks outside the warehouse, and decide about rows that they refuse.",
)
SinkArgument = Annotated[str, typer.Argument(metavar="SINK", help="The sink, as `weir sink list APP` shows it.")]


def list_sinks(
    application: AppArgument,
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """List the sinks: where their rows go, what waits and for how long, which rows they refuse, why one waits.

    Rows leave for a sink once they are committed. A sink that does not answer is tried again until it does; a row that
    it will never take waits for `weir sink skip`. If the application is not running, the list is as of its end.
    """
    import time

    import msgspec
    import polars as pl

    from weir.pipelines.operations.sinks import known_sinks

    settings = load_settings(directory)
    found = known_sinks(settings, application)
    if as_json:
        print_json([msgspec.to_builtins(each) for each in found])
        return
    if not found:
        notices.print(f"{application} has no sinks outside the warehouse", markup=False, soft_wrap=True)
        return
    now_s = time.time()
    print_table(
        pl.DataFrame(
            [
                {
                    "sink": each.sink,
                    "target": each.target,
                    "up to epoch": each.epoch,
                    "waiting rows": each.waiting_rows,
                    "waiting MB": each.waiting_bytes / 1e6,
                    "waiting s": each.lag_s(now_s),
                    "refused rows": each.refused_rows,
                    "state": shown_state(each),
                }
                for each in found
            ]
        )
    )
    for each in found:
        if each.awaits == "skip":
            console.print(f"{each.sink}: {skipping(application, each.sink)}", markup=False, soft_wrap=True)
        print_refusals(each, f"{each.sink}: ")


def skipping(application: str, sink: str) -> str:
    """The way out where a sink waits for somebody to skip a row."""
    return f"see `weir sink skip {application} {sink}`"


def shown_state(state: SinkState) -> str:
    """What a sink is doing, without the reason that a line of ``print_refusals`` has."""
    is_listed = any(each.reason in state.refused_reason for each in state.refused)  # a failed retry names the row, too
    return state.doing if is_listed else state.summary


def print_refusals(state: SinkState, prefix: str) -> None:
    """The first of a sink's rows that are aside, a line for each refusal."""
    for each in state.refused:
        console.print(f"{prefix}refused: {each}", markup=False, soft_wrap=True)
    if more := state.refused_rows - sum(each.rows for each in state.refused):
        console.print(f"{prefix}refused: {counted(more, 'row')} more", markup=False, soft_wrap=True)


def retry(
    application: AppArgument, sink: SinkArgument, directory: DirOption = None, debug: DebugOption = False
) -> None:
    """Send the rows again that a sink of a running application has refused, in the order of their refusal.

    They come after rows that were published since. The first that is refused once more ends it, with exit code 1:
    correct that at the sink and try again, or delete what is left with `weir sink discard`. A sink that does not
    answer within 30 s gets them when it does.
    """
    from weir.pipelines.operations.sinks import retry

    settings = load_settings(directory, writes=True)
    with notices.status(f"retry: waiting for the driver of {application}"):
        outcome, is_refused = retry(settings, application, sink)
    console.print(f"{application}: sink {sink}: {outcome}", markup=False, soft_wrap=True)
    if is_refused:
        raise typer.Exit(1)


def skip(application: AppArgument, sink: SinkArgument, directory: DirOption = None, debug: DebugOption = False) -> None:
    """Put the row aside for which a sink of a running application waits, and let the rows after it go on.

    It is kept for `weir sink retry`.
    """
    _decide(application, sink, "skip", directory)


def resume(
    application: AppArgument, sink: SinkArgument, directory: DirOption = None, debug: DebugOption = False
) -> None:
    """Let a sink publish the rows that wait for it, although its target may already have some of them.

    A sink asks for this when its target was made anew, or when the mark is gone that says how far it has come.
    """
    _decide(application, sink, "resume", directory)


def discard(
    application: AppArgument,
    sink: SinkArgument,
    yes: YesOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Delete the rows that a sink has refused."""
    from weir.pipelines.operations.sinks import discard, require_aside

    settings = load_settings(directory, writes=True)
    if not yes:
        rows = require_aside(settings, application, sink)
        confirm(
            f"Delete the {counted(rows, 'row')} of {application} that the sink {sink} has refused?",
            f"weir sink discard {application} {sink}",
        )
    rows = discard(settings, application, sink)
    console.print(f"{application}: deleted {counted(rows, 'refused row')} of the sink {sink}", markup=False)


def _decide(application: str, sink: str, action: Action, directory: DirOption) -> None:
    from weir.pipelines.operations.sinks import decide

    settings = load_settings(directory, writes=True)
    with notices.status(f"{action}: waiting for the driver of {application}"):
        answer = decide(settings, application, sink, action)
    console.print(f"{application}: sink {sink}: {answer}", markup=False, soft_wrap=True)


sink.command("list", epilog="Example: weir sink list shop --json")(list_sinks)
sink.command("retry", epilog="Example: weir sink retry shop orders")(retry)
sink.command("skip", epilog="Example: weir sink skip shop orders")(skip)
sink.command("resume", epilog="Example: weir sink resume shop orders")(resume)
sink.command("discard", epilog="Example: weir sink discard shop orders --yes")(discard)
