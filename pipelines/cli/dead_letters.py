"""``weir dead-letters``: records that could not be read or processed, or that a sink refuses, and were put aside."""

from __future__ import annotations

from typing import Annotated

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
from weir.state.printable import printable

dead_letters = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    epilog="Example: weir dead-letters list shop",
    help="List the records that an application has put aside, look at one, process them again, and delete them.",
)
LISTED = ("id", "timestamp", "stage", "operator", "reason", "replayed")


def list_letters(
    application: AppArgument,
    limit: Annotated[int, typer.Option(min=0, help="Print at most this many letters; 0 for all.")] = 20,
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Count the dead letters by reason, those left out that were replayed, and list the newest.

    What sinks have refused is listed after the others, with the stage `delivery` and the sink as operator.
    """

    import polars as pl

    from weir.pipelines.operations.dead_letters import dead_letters_of
    from weir.pipelines.operations.deliveries import undelivered
    from weir.pipelines.operations.rows import as_dictionaries
    from weir.pipelines.tasks.dead_letter_files import KIND_OF_REASON

    settings = load_settings(directory)
    letters, aside = dead_letters_of(settings, application), undelivered(settings, application).reverse()
    counts, shown = letters.count_by_reason(), letters.newest(LISTED, limit or None)
    if aside.height:
        refused = aside.group_by("stage", "operator", KIND_OF_REASON, maintain_order=True).agg(letters=pl.len())
        counts = pl.concat([counts, refused], how="vertical_relaxed")
        listed = aside.head(limit or aside.height).with_columns(replayed=pl.lit(None, pl.String())).select(LISTED)
        shown = pl.concat([shown, listed], how="vertical_relaxed")
    if as_json:
        print_json({"counts": as_dictionaries(counts), "letters": as_dictionaries(shown)})
        return
    if shown.is_empty():
        notices.print(f"{application} has no dead letters", markup=False, soft_wrap=True)
        return
    print_table(counts)
    print_table(shown)
    kept, waiting = letters.count() + aside.height, counts["letters"].sum()
    notices.print(
        f"{shown.height:,} of {counted(kept, 'dead letter')}; {waiting:,} wait{'s' * (waiting == 1)}", soft_wrap=True
    )


def show(
    application: AppArgument,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id, as the list shows it.")],
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Print one dead letter: where it comes from, its key and value, and the error with its trace."""

    from weir.pipelines.operations.dead_letters import dead_letter
    from weir.pipelines.operations.deliveries import of_ids, undelivered, undelivered_letter
    from weir.pipelines.operations.rows import as_dictionaries

    settings = load_settings(directory)
    if aside := as_dictionaries(of_ids(undelivered(settings, application), [id])):
        letter = undelivered_letter(settings, application, aside[0])
    else:
        (letter,) = as_dictionaries(dead_letter(settings, application, id).drop("_epoch"))
    if as_json:
        print_json(letter)
        return
    for name, value in letter.items():
        if name == "headers" and value:
            value = ", ".join(f"{each['key']}={_text(each['value'])}" for each in value)
        text = _text(value)
        console.print(f"{name}: {text}", markup=False, soft_wrap=True)


def _text(value: object) -> str:
    if value is None:
        return "-"
    return printable(value.decode(errors="replace") if isinstance(value, bytes) else str(value), kept="\n\t")


def replay(
    application: AppArgument,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Which; without one, all that wait.")
    ] = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Let a running application process dead letters again, once its program is corrected.

    Each is taken once, after everything that its task has taken so far, and in one commit with what comes of it. One
    that fails becomes a dead letter again. With one of the stage `delivery`, its sink sends all that it has put aside,
    in order, up to the first row that is refused once more, as `weir sink retry` does. The exit code is 1 if a record
    failed again.
    """
    from weir.pipelines.operations.dead_letters import replay

    outcome = replay(load_settings(directory, writes=True), application, ids or ())
    console.print(f"{application}: {outcome}", markup=False, soft_wrap=True)
    if outcome.failed:
        raise typer.Exit(1)


def discard(
    application: AppArgument,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Which; without one, all.")] = None,
    yes: YesOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Delete dead letters; the application may be running."""
    from weir.pipelines.operations.dead_letters import discard

    if not yes:
        which = " ".join(ids or ())
        named = f"the dead letter{'s' * (len(ids) > 1)} {which}" if ids else "all dead letters"
        confirm(
            f"Delete {named} of {application}?",
            f"weir dead-letters discard {application}{f' {which}' if ids else ''}",
        )
    number = discard(load_settings(directory, writes=True), application, ids or None)
    console.print(f"{application}: deleted {counted(number, 'dead letter')}", markup=False)


dead_letters.command("list", epilog="Example: weir dead-letters list shop --json")(list_letters)
dead_letters.command("show", epilog="Example: weir dead-letters show shop orders-0-41-7")(show)
dead_letters.command("replay", epilog="Example: weir dead-letters replay shop orders-0-41-7")(replay)
dead_letters.command("discard", epilog="Example: weir dead-letters discard shop --yes")(discard)
