"""``weir verify``: are the stores on this host what their changelogs and the commit log say?"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from weir.pipelines.cli.options import AppArgument, DebugOption, DirOption, JsonOption, load_settings
from weir.pipelines.cli.render import console, notices, print_json

if TYPE_CHECKING:
    from weir.infra.settings import Settings
    from weir.pipelines.application import Application
    from weir.state.changelog.verify import Agreement

LOOK_AGAIN_S = 2.0


def verify_application(
    settings: Settings, application: Application, *, sample: int | None = None
) -> Iterator[Agreement]:
    """Compare every task's stores on this host with what is durable, one task after another; or those of so many tasks
    as ``sample`` says, picked by chance.

    The application may run: each task is compared at a commit of its own. What a running driver has half done, as a
    commit whose tables are being appended to, is looked at a second time before it counts.

    Raises:
        StateDifferenceError: The first difference.
        TopologyChangedError: What is committed is another topology's.
    """
    from weir.infra.control import ControlDatabase
    from weir.pipelines.spark.errors import TopologyChangedError
    from weir.pipelines.topology.changes import sub_topology_of
    from weir.state.changelog.verify import StateDifferenceError
    from weir.state.commit.protocol import newest_commit

    newest = newest_commit(settings.warehouse, application.id)
    known = application.topology.committed_form.stores
    other = [task for task in newest.tasks if sub_topology_of(task) not in known] if newest is not None else []
    if other:
        raise TopologyChangedError(application.id, f"this program does not have its task {other[0]}")
    tasks = list(newest.tasks) if newest else []
    for task in tasks if sample is None else random.sample(tasks, min(sample, len(tasks))):
        try:
            agreement = _compare(settings, application, task)
        except StateDifferenceError:
            if not ControlDatabase(settings.control_database_url).is_running(application.id):
                raise
            time.sleep(LOOK_AGAIN_S)
            agreement = _compare(settings, application, task)
        yield agreement


def _compare(settings: Settings, application: Application, task: str) -> Agreement:
    from weir.pipelines.tasks.epoch import task_rows
    from weir.state.changelog.verify import verify_task

    stores = application.topology.sub_topologies[application.topology.task_of(task).sub_topology].stores
    return verify_task(
        settings.warehouse,
        application.id,
        settings.state_dir / application.id / task,
        stores,
        lambda commit: task_rows(commit.positions, commit.clocks),
    )


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
    from weir.pipelines.cli.registry import registered_application

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
