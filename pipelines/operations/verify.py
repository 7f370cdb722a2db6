"""Checks whether the stores on this host are what their changelogs and the commit log say, and whether the output
tables have their files.

A store that differs puts its task in doubt, until a restore has succeeded (PROTOCOL 41).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from weir.infra.control import ControlDatabase, ControlDatabaseError
from weir.infra.settings import Settings
from weir.pipelines.application import Application
from weir.pipelines.operations.doubts import InDoubtError, doubts
from weir.pipelines.operations.errors import OtherProgramError
from weir.pipelines.operations.tables import readable_tables
from weir.pipelines.tasks.epoch import task_rows
from weir.pipelines.topology.changes import sub_topology_of
from weir.state.changelog.verify import Agreement, StateDifferenceError, verify_task
from weir.state.commit.protocol import newest_commit
from weir.state.commit.table_files import TableFiles, check_table
from weir.state.engine.doubts import Doubt, put_in_doubt
from weir.state.storage.places import folder_at

LOOK_AGAIN_S = 2.0


def verify_application(
    settings: Settings, application: Application, *, sample: int | None = None, found_by: str = "weir verify"
) -> Iterator[Agreement]:
    """Compare every task's stores on this host with what is durable, one task after another; with ``sample``, only
    that many tasks, chosen at random.

    The application may be running: each task is compared at a separate commit, from a copy of its stores as of that
    commit. A difference counts only if a second look finds it too, or comes to a newer commit: by then the task may
    have counted on from a wrong row, so that its changelog agrees with it. A store that differs puts its task in doubt;
    ``found_by`` says who found that.

    Raises:
        InDoubtError: A difference that was found before, and is not restored yet.
        StateDifferenceError: The first difference.
        OtherProgramError: The newest commit belongs to another topology.
    """
    for doubt in doubts(settings, application.id):
        raise InDoubtError(doubt)
    newest = newest_commit(folder_at(settings.warehouse), application.id)
    application = application.over(newest)
    known = application.topology.committed_form.stores
    other = [task for task in newest.tasks if sub_topology_of(task) not in known] if newest is not None else []
    if other:
        raise OtherProgramError(application.id, other[0])
    tasks = list(newest.tasks) if newest else []
    for task in tasks if sample is None else random.sample(tasks, min(sample, len(tasks))):
        try:
            agreement = _confirmed(settings, application, task)
        except StateDifferenceError as error:
            raise _kept(error.of(application.id, str(application.topology.task_of(error.task))), found_by) from None
        yield agreement


def verify_outputs(settings: Settings, application: str, *, reads: bool) -> Iterator[TableFiles]:
    """Look for the files of every output table and of the dead letters, one table after another; ``reads`` also reads
    all their rows. The application may be running.

    Raises:
        TableFileError: The first file that is gone, of another size, not readable, or of other types.
        DamagedFileError: The Delta log of a table cannot be read.
    """
    folder = folder_at(settings.warehouse) / application
    for table in readable_tables(folder):
        yield check_table(folder, application, table, reads=reads)


def _confirmed(settings: Settings, application: Application, task: str) -> Agreement:
    """What two looks at a task say, the second one only if the first finds a difference.

    Where a running driver is in the middle of something, such as a commit whose tables are being appended to, that is
    over after a moment. Rows are looked at again at once: each moment gives the task time to count on from a wrong one.
    """
    try:
        return _compare(settings, application, task)
    except StateDifferenceError as first:
        if _has_ended(settings, application.id):
            raise
        if first.state is None:
            time.sleep(LOOK_AGAIN_S)
        agreement = _compare(settings, application, task)
        if first.state not in (None, agreement.state):
            raise
        return agreement


def _has_ended(settings: Settings, application: str) -> bool:
    """Whether no driver is left; unless the control database says so, one may be."""
    try:
        return ControlDatabase(settings.control_database_url).has_ended(application)
    except ControlDatabaseError:
        return False


def _kept(error: StateDifferenceError, found_by: str) -> StateDifferenceError:
    """``error``, once the instance that it is about is in doubt."""
    if error.instance is not None:
        put_in_doubt(
            error.instance,
            Doubt(
                task=error.task_id,
                store=error.store,
                difference=str(error),
                found_at_s=time.time(),
                found_by=found_by,
            ),
        )
    return error


def _compare(settings: Settings, application: Application, task: str) -> Agreement:
    stores = application.topology.sub_topology(application.topology.task_of(task).sub_topology).stores
    return verify_task(
        folder_at(settings.warehouse),
        application.id,
        settings.state_dir / application.id / task,
        stores,
        lambda commit: task_rows(commit.positions, commit.clocks),
    )
