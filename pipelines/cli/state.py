"""``weir state``: an application's stores, and those of earlier programs that are kept aside."""

from __future__ import annotations

from dataclasses import asdict
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
from weir.pipelines.cli.render import console, print_json, print_table
from weir.pipelines.operations.text import counted, megabytes, utc_text

if TYPE_CHECKING:
    from weir.pipelines.operations.aside import StoreInfo

state = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    epilog="Example: weir state list flights",
    help="List an application's stores, and remove those that its program no longer has.",
)


def list_stores(
    application: AppArgument,
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """List the stores of the newest commit, and those of earlier programs that are kept aside.

    A changelog has a row for every update and deletion that compaction has not merged yet, so it has more rows than the
    store has keys.
    """
    import polars as pl

    from weir.pipelines.operations.aside import stores_of

    found = stores_of(load_settings(directory), application)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    print_table(
        pl.DataFrame(
            [
                {
                    "store": each.store,
                    "state": _state(each),
                    "changelog rows": each.changelog_rows,
                    "changelog MB": each.changelog_bytes / 1e6,
                }
                for each in found
            ]
        )
    )


def _state(store: StoreInfo) -> str:
    if store.since_epoch is None:
        return "in use" if store.is_logged else "in use, without a changelog"
    at = f", {utc_text(store.since)}" if store.since else ""
    return f"kept aside since epoch {store.since_epoch}{at}"


def remove(
    application: AppArgument,
    store: Annotated[str, typer.Argument(metavar="STORE", help="A store that is kept aside.")],
    yes: YesOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Delete a store that the program no longer has, with its changelog; stop the application first.

    A program that has the store again later begins it empty. As long as it is kept aside, such a program continues
    with its rows.
    """
    from weir.pipelines.operations.aside import remove_store, require_removable

    settings = load_settings(directory)
    require_removable(settings, application, store)
    if not yes:
        confirm(
            f"Delete the store {store} of {application}, with its changelog?",
            f"weir state remove {application} {store}",
        )
    removed = remove_store(settings, application, store)
    console.print(
        f"{application}: removed the store {store} and its changelog ({counted(removed.changelog_rows, 'row')}, "
        f"{megabytes(removed.changelog_bytes)})",
        markup=False,
        soft_wrap=True,
    )


state.command("list", epilog="Example: weir state list flights --json")(list_stores)
state.command("remove", epilog="Example: weir state remove flights by_carrier --yes")(remove)
