"""``weir dead-letters``: records that could not be read or processed and were put aside."""

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
from weir.pipelines.operations.rows import as_dictionaries
from weir.pipelines.operations.text import counted

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
    """Count the dead letters by reason, those left out that were replayed, and list the newest."""
    from weir.pipelines.operations.dead_letters import dead_letters_of

    letters = dead_letters_of(load_settings(directory), application)
    counts, shown = letters.count_by_reason(), letters.newest(LISTED, limit or None)
    if as_json:
        print_json({"counts": as_dictionaries(counts), "letters": as_dictionaries(shown)})
        return
    if shown.is_empty():
        notices.print(f"{application} has no dead letters", markup=False, soft_wrap=True)
        return
    print_table(counts)
    print_table(shown)
    notices.print(f"{shown.height:,} of {counted(letters.count(), 'dead letter')}", soft_wrap=True)


def show(
    application: AppArgument,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id, as the list shows it.")],
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Print one dead letter: where it comes from, its key and value, and the error with its trace."""
    from weir.pipelines.operations.dead_letters import dead_letter

    (letter,) = as_dictionaries(dead_letter(load_settings(directory), application, id).drop("_epoch"))
    if as_json:
        print_json(letter)
        return
    for name, value in letter.items():
        if name == "headers" and value:
            value = ", ".join(f"{each['key']}={_text(each['value'])}" for each in value)
        text = _text(value)
        console.print(f"{name}: {text}", markup=False, soft_wrap=True)


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else "-" if value is None else str(value)


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
    that fails becomes a dead letter again.
    """
    from weir.pipelines.operations.dead_letters import replay

    outcome = replay(load_settings(directory, writes=True), application, ids or ())
    console.print(f"{application}: {outcome}", markup=False, soft_wrap=True)


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
        confirm(
            f"Delete {f'the dead letters {which}' if ids else 'all dead letters'} of {application}?",
            f"weir dead-letters discard {application}{f' {which}' if ids else ''}",
        )
    number = discard(load_settings(directory, writes=True), application, ids or None)
    console.print(f"{application}: deleted {counted(number, 'dead letter')}", markup=False)


dead_letters.command("list", epilog="Example: weir dead-letters list shop --json")(list_letters)
dead_letters.command("show", epilog="Example: weir dead-letters show shop orders-0-41-7")(show)
dead_letters.command("replay", epilog="Example: weir dead-letters replay shop orders-0-41-7")(replay)
dead_letters.command("discard", epilog="Example: weir dead-letters discard shop --yes")(discard)
