"""``weir verify``: do the stores on this host match their changelogs and the commit log, and have the output tables
their files?"""

from __future__ import annotations

from typing import Annotated

import typer

from weir.pipelines.cli.options import AppArgument, DebugOption, DirOption, JsonOption, load_settings
from weir.pipelines.cli.render import console, notices, print_json
from weir.pipelines.operations.text import counted


def verify(
    application: AppArgument,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="TASKS",
            help="Only this many tasks, chosen at random, and only the sizes of the tables' files.",
        ),
    ] = None,
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Compare every store with its changelog and the commit log, and read all files of the output tables.

    Stops at the first difference or damaged file, with exit code 1. A task whose store differs processes nothing until
    it is restored, which a run does by itself. The application may be running. While it runs, the command needs as much
    disk space as the largest task's state.
    """
    from weir.pipelines.operations.registry import registered_application
    from weir.pipelines.operations.verify import verify_application, verify_outputs

    settings = load_settings(directory)
    program, found, tables = registered_application(settings, application), [], []
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
        for table in verify_outputs(settings, application, reads=sample is None):
            tables.append(table)
            if not as_json:
                what = "all there" if sample else "all there and readable"
                console.print(
                    f"table {table.table}: {counted(table.files, 'file')}, {table.size_bytes:,} bytes, {what}",
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
                "tables": [{"table": table.table, "files": table.files, "bytes": table.size_bytes} for table in tables],
            }
        )
    elif not found:
        console.print(f"{application} has no commit yet: there is nothing to compare", markup=False, soft_wrap=True)
