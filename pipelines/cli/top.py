"""``weir top``: shows what an application does, live. The screen itself is ``weir.pipelines.cli.top_screen``."""

from __future__ import annotations

from typing import Annotated

import typer

from weir.pipelines.cli.options import AppArgument, DebugOption, DirOption, load_settings
from weir.pipelines.cli.render import console
from weir.pipelines.operations.errors import OperationError


def top(
    application: AppArgument,
    every_s: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.1, help="How often to look for a new report.")
    ] = 1.0,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Show live what a running application does, by task and by operator: rates, lag, where the time goes, and state.

    Everything is over the last minute, as the driver reports it every two seconds. Keys: r, l, b, n sort by rate, lag,
    busy time and name, once more turns the order round; o shows operators, t tasks; q quits.
    """
    from weir.infra.control import ControlDatabase
    from weir.pipelines.cli.top_screen import TopScreen
    from weir.pipelines.operations.registry import require
    from weir.pipelines.operations.top import application_activity

    settings = load_settings(directory)
    name = require(settings, application)
    database = ControlDatabase(settings.control_database_url)
    report = application_activity(database, name)
    if not console.is_terminal:
        raise OperationError(f"what is live needs a terminal; `weir tasks {name}` prints the tasks once")
    TopScreen(report, lambda: application_activity(database, name), every_s).run()
