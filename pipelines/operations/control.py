"""Asks a running driver to commit, pause, resume, restore, swap or stop, and waits for its answer."""

from __future__ import annotations

import getpass
import time
from collections.abc import Mapping

from weir.infra.control import ControlDatabase, this_host
from weir.infra.control.rows import RequestKind
from weir.infra.settings import Settings
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.registry import require
from weir.state.commit.protocol import newest_commit
from weir.state.storage.places import folder_at

ANSWER_LIMIT_S = 60.0
END_LIMIT_S = 30.0
LOOK_EVERY_S = 1.0
END_LOOK_EVERY_S = 0.1


def ask(
    settings: Settings,
    application: str,
    kind: RequestKind,
    arguments: Mapping[str, str] | None = None,
    *,
    by: str | None = None,
    reason: str,
) -> str:
    """Send a request to the application's driver, wait until it has been carried out, and return the driver's answer.

    ``by`` names who asks; by default the user of this process.

    Raises:
        OperationError: The ``task`` in ``arguments`` does not exist, no driver runs, it did not answer within a minute,
            or it could not do what was asked.
    """
    require(settings, application)
    database = ControlDatabase(settings.control_database_url)
    if arguments and "task" in arguments:
        _require_task(settings, database, application, arguments["task"])
    if database.has_ended(application):
        way_out = "" if kind == "stop" else "; start it with `weir run MODULE:APP`"
        raise OperationError(f"{application} is not running{way_out}")
    request = database.request(
        application, kind, by=by or f"{getpass.getuser()}@{this_host()}", reason=reason, arguments=arguments
    )
    until = time.monotonic() + ANSWER_LIMIT_S
    while (answer := database.wait_request(request, LOOK_EVERY_S)).state == "pending":
        if database.has_ended(application):
            if (answer := database.wait_request(request, 0)).state != "pending":
                break
            database.finish_request(request, "its driver ended first", failed=True)  # not for the next driver
            if kind == "stop":
                return "has ended"
            raise OperationError(
                f"the driver of {application} ended before it could {kind}; `weir logs {application}` says why"
            )
        if time.monotonic() > until:
            raise OperationError(
                f"the driver of {application} has not answered within {ANSWER_LIMIT_S:.0f} s; "
                f"`weir logs {application}` shows what it did last, and the request stays pending"
            )
    if answer.state == "failed":
        what = application if kind == "sink" else f"{kind} of {application} failed"  # the answer names the sink
        raise OperationError(f"{what}: {answer.result}")
    return answer.result


def _require_task(settings: Settings, database: ControlDatabase, application: str, task: str) -> None:
    """A task is named by its id or by its name in the commit log; until one has reported, the driver decides."""
    status = database.application_status(application)
    ids = [row.task for row in status.tasks] if status else []
    if not ids or task in ids:
        return
    newest = newest_commit(folder_at(settings.warehouse), application)
    if newest is None or task not in newest.tasks:
        raise OperationError(f"{application} has no task {task!r}; its tasks are {', '.join(ids)}")


def wait_for_end(settings: Settings, application: str, *, limit_s: float | None = END_LIMIT_S) -> None:
    """Return once the driver, which has been asked to stop, has ended.

    Raises:
        OperationError: It is still running after ``limit_s``.
    """
    database, began = ControlDatabase(settings.control_database_url), time.monotonic()
    while not database.has_ended(application):
        if limit_s is not None and time.monotonic() - began > limit_s:
            raise OperationError(
                f"{application} is still stopping after {limit_s:.0f} s; "
                f"`weir logs {application}` shows what it did last"
            )
        time.sleep(END_LOOK_EVERY_S)
