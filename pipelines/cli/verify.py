"""``weir verify``: do the stores on this host match their changelogs and the commit log?"""

from __future__ import annotations

from typing import Annotated

import typer

from weir.pipelines.cli.options import AppArgument, DebugOption, DirOption, JsonOption, load_settings
from weir.pipelines.cli.render import console, notices, print_json
from weir.pipelines.operations.text import counted


def verify(
    application: AppArgument,
    sample: Annotated[
        int | None, typer.Option(min=1, metavar="TASKS", help="Only this many tasks, chosen at random.")
    ] = None,
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Compare every store with its changelog and the commit log; stops at the first difference, with exit code 1.

    The application may be running. While it runs, the command needs as much disk space as the largest task's state.
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
                console.print(
                    f"task {program.topology.task_of(agreement.task)} ({agreement.task}) {at}: "
                    f"{counted(agreement.rows, 'row')}",
                    markup=False,
                    soft_wrap=True,
                )
    if as_json:
        print_json(
            {
                "application": application,
                "tasks": [
                    {
                        "task": str(program.topology.task_of(agreement.task)),
                        "name": agreement.task,
                        "state": str(agreement.state) if agreement.state else None,
                        "rows": agreement.rows,
                    }
                    for agreement in found
                ],
            }
        )
    elif not found:
        console.print(f"{application} has no commit yet: there is nothing to compare", markup=False, soft_wrap=True)
