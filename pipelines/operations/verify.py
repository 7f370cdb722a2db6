"""Checks whether the stores on this host are what their changelogs and the commit log say, and whether the output
tables have their files."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.pipelines.application import Application
from weir.pipelines.operations.errors import OtherProgramError
from weir.pipelines.operations.tables import readable_tables
from weir.pipelines.tasks.epoch import task_rows
from weir.pipelines.topology.changes import sub_topology_of
from weir.state.changelog.verify import Agreement, StateDifferenceError, verify_task
from weir.state.commit.protocol import newest_commit
from weir.state.commit.table_files import TableFiles, check_table
from weir.state.storage.places import folder_at

LOOK_AGAIN_S = 2.0


def verify_application(
    settings: Settings, application: Application, *, sample: int | None = None
) -> Iterator[Agreement]:
    """Compare every task's stores on this host with what is durable, one task after another; with ``sample``, only
    that many tasks, chosen at random.

    The application may be running: each task is compared at a separate commit. Where a running driver is in the
    middle of something, such as a commit whose tables are being appended to, a difference counts only if a second look
    finds it too.

    Raises:
        StateDifferenceError: The first difference.
        OtherProgramError: The newest commit belongs to another topology.
    """
    newest = newest_commit(folder_at(settings.warehouse), application.id)
    application = application.over(newest)
    known = application.topology.committed_form.stores
    other = [task for task in newest.tasks if sub_topology_of(task) not in known] if newest is not None else []
    if other:
        raise OtherProgramError(application.id, other[0])
    tasks = list(newest.tasks) if newest else []
    for task in tasks if sample is None else random.sample(tasks, min(sample, len(tasks))):
        try:
            agreement = _compare(settings, application, task)
        except StateDifferenceError as error:
            if not ControlDatabase(settings.control_database_url).is_running(application.id):
                raise _named(error, application) from None
            time.sleep(LOOK_AGAIN_S)
            try:
                agreement = _compare(settings, application, task)
            except StateDifferenceError as still:
                raise _named(still, application) from None
        yield agreement


def verify_outputs(settings: Settings, application: str, *, reads: bool) -> Iterator[TableFiles]:
    """Look for the files of every output table and of the dead letters, one table after another; ``reads`` also reads
    all their rows. The application may be running.

    Raises:
        TableFileError: The first file that is gone, of another size, or not readable.
        DamagedFileError: The Delta log of a table cannot be read.
    """
    folder = folder_at(settings.warehouse) / application
    for table in readable_tables(folder):
        yield check_table(folder, application, table, reads=reads)


def _named(error: StateDifferenceError, application: Application) -> StateDifferenceError:
    return error.of(application.id, str(application.topology.task_of(error.task)))


def _compare(settings: Settings, application: Application, task: str) -> Agreement:
    stores = application.topology.sub_topology(application.topology.task_of(task).sub_topology).stores
    return verify_task(
        folder_at(settings.warehouse),
        application.id,
        settings.state_dir / application.id / task,
        stores,
        lambda commit: task_rows(commit.positions, commit.clocks),
    )
