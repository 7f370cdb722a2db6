"""``weir state``: an application's stores, and those of earlier programs that are kept aside."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from weir.pipelines.cli.options import AppArgument, DebugOption, DirOption, JsonOption, load_settings
from weir.pipelines.cli.render import console, print_json, print_table

state = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    epilog="Example: weir state list flights",
    help="List an application's stores, and remove those that no program has any more.",
)


def list_stores(
    application: AppArgument,
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """List the stores of the newest commit, and those of earlier programs that are kept aside.

    Rows and bytes are those of the changelogs, older updates included that compaction has not merged yet.
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
                    "state": f"kept aside since {each.since}" if each.since else "in use",
                    "rows": each.rows,
                    "MB": each.size_bytes / 1e6,
                }
                for each in found
            ]
        )
    )


def remove(
    application: AppArgument,
    store: Annotated[str, typer.Argument(metavar="STORE", help="A store that is kept aside.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Delete a store that the program no longer has, with its changelog; the application must be at rest.

    Until then a program that has the store again goes on with its rows.
    """
    from weir.pipelines.operations.aside import remove_store

    if not yes:
        typer.confirm(f"Delete the store {store} of {application}, with its changelog?", abort=True)
    removed = remove_store(load_settings(directory), application, store)
    console.print(
        f"{application}: removed the store {store} ({removed.rows:,} rows, {removed.size_bytes / 1e6:,.1f} MB)",
        markup=False,
        soft_wrap=True,
    )


state.command("list", epilog="Example: weir state list flights --json")(list_stores)
state.command("remove", epilog="Example: weir state remove flights by_carrier --yes")(remove)
