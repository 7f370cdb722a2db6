"""``weir verify``: are the stores on this host what their changelogs and the commit log say?"""

from __future__ import annotations

from typing import Annotated

import typer

from weir.pipelines.cli.options import AppArgument, DebugOption, DirOption, JsonOption, load_settings
from weir.pipelines.cli.render import console, notices, print_json


def verify(
    application: AppArgument,
    sample: Annotated[
        int | None, typer.Option(min=1, metavar="TASKS", help="Only so many tasks, picked by chance.")
    ] = None,
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Compare every store with its changelog and with the commit log; ends with code 1 at the first difference.

    The application may be running. Takes as much room on the disk as the largest task's state, for as long as it runs.
    """
    from weir.pipelines.operations.registry import registered_application
    from weir.pipelines.operations.verify import verify_application

    settings = load_settings(directory)
    program, found = registered_application(settings, application), []
    with notices.status(f"verifying {application}"):
        for agreement in verify_application(settings, program, sample=sample):
            found.append(agreement)
            if not as_json:
                at = "has no commit yet" if agreement.state is None else f"agrees at {agreement.state}"
                console.print(f"task {agreement.task} {at}: {agreement.rows:,} rows", markup=False, soft_wrap=True)
    if as_json:
        print_json(
            {
                "application": application,
                "tasks": [
                    {
                        "task": agreement.task,
                        "state": str(agreement.state) if agreement.state else None,
                        "rows": agreement.rows,
                    }
                    for agreement in found
                ],
            }
        )
    elif not found:
        console.print(f"{application} has no commit yet: nothing to compare", markup=False, soft_wrap=True)
