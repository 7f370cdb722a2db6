"""Control commands: requests to a running application, and reset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.pipelines.cli.options import AppArgument, DebugOption, DirOption, YesOption, confirm, load_settings
from weir.pipelines.cli.render import console, notices

if TYPE_CHECKING:
    from weir.infra.control.rows import RequestKind
    from weir.infra.settings import Settings


def _ask(settings: Settings, application: str, kind: RequestKind, arguments: Mapping[str, str] | None = None) -> str:
    from weir.pipelines.operations.control import ask

    with notices.status(f"{kind}: waiting for the driver of {application}"):
        return ask(settings, application, kind, arguments, reason="command line")


def _ask_for_tasks(application: str, tasks: str | None, kind: RequestKind, directory: Path | None) -> None:
    """Ask about those tasks, or about all if none are named, and print the answer."""
    arguments = {"tasks": tasks} if tasks else None
    answer = _ask(load_settings(directory, writes=True), application, kind, arguments)
    console.print(f"{application}: {answer}", markup=False)


def commit(application: AppArgument, directory: DirOption = None, debug: DebugOption = False) -> None:
    """Make a running application commit now."""
    console.print(f"{application}: {_ask(load_settings(directory, writes=True), application, 'commit')}", markup=False)


TasksArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[TASK]",
        help="Only this task, such as 0_1, or those of a sub-topology, such as 0; by their stored names, too.",
    ),
]


def pause(
    application: AppArgument, tasks: TasksArgument = None, directory: DirOption = None, debug: DebugOption = False
) -> None:
    """Make a running application commit and stop reading until it is resumed, or until its driver ends."""
    _ask_for_tasks(application, tasks, "pause", directory)


def resume(
    application: AppArgument, tasks: TasksArgument = None, directory: DirOption = None, debug: DebugOption = False
) -> None:
    """Let a paused application continue."""
    _ask_for_tasks(application, tasks, "resume", directory)


def scale(
    application: AppArgument,
    slots: Annotated[int, typer.Option("--slots", help="How many tasks run at the same time.", min=1)],
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Make a running application have more slots, or fewer, until its driver ends; tasks move with their stores.

    The setting `slots` says how many the next run begins with.
    """
    settings = load_settings(directory, writes=True)
    console.print(f"{application}: {_ask(settings, application, 'slots', {'slots': str(slots)})}", markup=False)


def snapshot(application: AppArgument, directory: DirOption = None, debug: DebugOption = False) -> None:
    """Make the tasks of a running application publish snapshots, so that a later restore is faster."""
    console.print(
        f"{application}: {_ask(load_settings(directory, writes=True), application, 'snapshot')}", markup=False
    )


def restore(
    application: AppArgument,
    task: Annotated[
        str,
        typer.Argument(metavar="TASK", help="The task: 0_1, or its stored name, both as `weir verify APP` shows them."),
    ],
    from_changelog: Annotated[
        bool, typer.Option("--from-changelog", help="Read the whole changelog and drop the task's snapshot.")
    ] = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Quarantine a task's local state and rebuild it while the other tasks of the application continue."""
    arguments = {"task": task, "source": "changelog" if from_changelog else "snapshot"}
    console.print(
        f"{application}: {_ask(load_settings(directory, writes=True), application, 'restore', arguments)}", markup=False
    )


def stop(
    application: AppArgument,
    drain: Annotated[
        bool,
        typer.Option("--drain", help="First read on until no rows wait between tasks, before the program changes."),
    ] = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Make a running application finish its epoch, commit and exit; returns once it has ended.

    Rows that wait between tasks for records of other partitions are committed too, and the next run takes them. With
    --drain, those partitions are first read up to the time of the rows, so that none wait.
    """
    from weir.pipelines.operations.control import wait_for_end

    settings = load_settings(directory, writes=True)
    answer = _ask(settings, application, "stop", {"drain": "yes"} if drain else None)
    with notices.status(f"stop: {answer}"):
        if drain:
            wait_for_end(settings, application, limit_s=None)
        else:
            wait_for_end(settings, application)
    console.print(f"{application}: stopped", markup=False)


def reset(
    application: AppArgument,
    yes: YesOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Delete an application's state and tables, so that its next run starts from the beginning.

    Topics stay as they are. Stop a running application first.
    """
    from weir.pipelines.operations import reset as operation

    settings = load_settings(directory, writes=True)
    state, tables = operation.folders(settings, application)
    if not yes:
        confirm(f"Delete {application}'s tables in {tables} and its state in {state}?", f"weir reset {application}")
    operation.reset(settings, application)
    console.print(f"{application}: tables and state deleted; its next run starts from the beginning", markup=False)
