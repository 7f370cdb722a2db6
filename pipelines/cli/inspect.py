"""Commands that only look: the topology, what runs, its log, its tables and its state."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.pipelines.cli.options import (
    AppArgument,
    CommandError,
    DebugOption,
    DirOption,
    JsonOption,
    ReferenceArgument,
    load_settings,
)
from weir.pipelines.cli.render import as_dictionaries, console, notices, print_json, print_table, without_bookkeeping

if TYPE_CHECKING:
    import polars as pl

    from weir.infra.settings import Settings

FOLLOW_EVERY_S = 0.3


def describe(reference: ReferenceArgument, directory: DirOption = None, debug: DebugOption = False) -> None:
    """Print an application's sub-topologies: sources, processors, stores and sinks."""
    from weir.pipelines.cli.registry import load_reference

    console.print(load_reference(reference).topology.describe(), markup=False, soft_wrap=True)


def logs(
    application: AppArgument,
    lines: Annotated[int, typer.Option(min=1, help="How many of the newest lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")] = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Print the newest log lines of an application."""
    from weir.pipelines.cli.log_files import log_file
    from weir.pipelines.cli.registry import require

    settings = load_settings(directory)
    path = log_file(settings.logs, require(settings, application))
    if not path.exists():
        raise CommandError(f"{application} has written no log in {settings.logs} yet; `weir run` makes it")
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in deque(file, maxlen=lines):
            console.file.write(line)
        while follow:
            console.file.write(file.read())
            console.file.flush()
            time.sleep(FOLLOW_EVERY_S)


def output_tables(folder: Path) -> list[str]:
    """Names of the output tables below an application's warehouse folder, sorted."""
    return sorted(path.parent.name for path in folder.glob("*/_delta_log") if not path.parent.name.startswith("_"))


def newest_rows(settings: Settings, application: str, table: str) -> pl.DataFrame:
    """The rows of an output, or of ``_dead_letters``, that stand, newest first, without Weir's own columns.

    Raises:
        CommandError: The folder does not know the application, or that has no such table.
    """
    from weir.pipelines.cli.registry import require
    from weir.pipelines.tasks.dead_letters import DEAD_LETTERS
    from weir.state.commit.tables import read_table

    folder = settings.warehouse / require(settings, application)
    if not (folder / table / "_delta_log").is_dir():
        has_dead_letters = (folder / DEAD_LETTERS.name / "_delta_log").is_dir()
        tables = [*output_tables(folder), *[DEAD_LETTERS.name] * has_dead_letters]
        known = ", ".join(tables) or "none yet: run the application first"
        raise CommandError(f"{application} has no table {table!r}; it has {known}")
    rows = read_table(folder / table)
    declared = without_bookkeeping(rows).columns
    newest = "_ts" if "_ts" in rows.columns else "_epoch"  # dead letters have no time of Weir's
    return rows.sort(newest, *declared, descending=[True, *[False] * len(declared)]).select(declared)


def show(
    application: AppArgument,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The name given to to_delta().")],
    limit: Annotated[int, typer.Option(min=0, help="At most so many rows; 0 for all.")] = 20,
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Print the current rows of an output, newest first: of a table the newest row of each key, of facts all."""
    settings = load_settings(directory)
    rows = newest_rows(settings, application, table)
    shown = rows.head(limit) if limit else rows
    if as_json:
        print_json(as_dictionaries(shown))
        return
    print_table(shown)
    notices.print(
        f"{shown.height:,} of {rows.height:,} rows of {settings.warehouse / application / table}", soft_wrap=True
    )
