"""Commands that only read: ``weir describe``, ``logs`` and ``show``."""

from __future__ import annotations

import time
from collections import deque
from typing import Annotated

import typer

from weir.pipelines.cli.options import (
    AppArgument,
    DebugOption,
    DirOption,
    JsonOption,
    ReferenceArgument,
    load_settings,
)
from weir.pipelines.cli.render import console, notices, print_json, print_table
from weir.pipelines.operations.errors import OperationError

FOLLOW_EVERY_S = 0.3


def describe(reference: ReferenceArgument, directory: DirOption = None, debug: DebugOption = False) -> None:
    """Print an application's sub-topologies: sources, processors, stores and sinks."""
    from weir.pipelines.operations.registry import load_reference

    console.print(load_reference(reference).topology.describe(), markup=False, soft_wrap=True)


def logs(
    application: AppArgument,
    lines: Annotated[int, typer.Option(min=1, help="How many of the newest lines to print.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines until Ctrl-C.")] = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Print the newest log lines of an application."""
    from weir.pipelines.operations.log_files import log_file
    from weir.pipelines.operations.registry import require

    settings = load_settings(directory)
    path = log_file(settings.logs, require(settings, application))
    if not path.exists():
        raise OperationError(f"{application} has no log in {settings.logs} yet; `weir run MODULE:APP` writes one")
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in deque(file, maxlen=lines):
            console.file.write(line)
        while follow:
            console.file.write(file.read())
            console.file.flush()
            time.sleep(FOLLOW_EVERY_S)


def show(
    application: AppArgument,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The name given to to_delta(), or _dead_letters.")],
    limit: Annotated[int, typer.Option(min=0, help="Print at most this many rows; 0 for all.")] = 20,
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Print the current rows of an output, newest first: for a table the newest row of each key, for facts all rows."""

    from weir.pipelines.operations.rows import as_dictionaries
    from weir.pipelines.operations.tables import newest_rows
    from weir.state.storage.places import folder_at

    settings = load_settings(directory)
    rows = newest_rows(settings, application, table)
    shown = rows.head(limit) if limit else rows
    if as_json:
        print_json(as_dictionaries(shown))
        return
    print_table(shown)
    notices.print(
        f"{shown.height:,} of {rows.height:,} rows of {folder_at(settings.warehouse) / application / table}",
        soft_wrap=True,
    )
