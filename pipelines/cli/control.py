"""Commands that steer: requests to a running application, removing what one left, and the folder's broker."""

from __future__ import annotations

import getpass
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.pipelines.cli.options import AppArgument, CommandError, DebugOption, DirOption, load_settings
from weir.pipelines.cli.render import console, notices

if TYPE_CHECKING:
    from weir.infra.control import ControlDatabase
    from weir.infra.control.rows import RequestKind
    from weir.infra.settings import Settings

ANSWER_LIMIT_S = 60.0
END_LIMIT_S = 30.0
LOOK_EVERY_S = 1.0
RESET_TTL_S = 600.0


def ask(
    settings: Settings,
    application: str,
    kind: RequestKind,
    arguments: Mapping[str, str] | None = None,
    *,
    by: str | None = None,
    reason: str = "command line",
) -> str:
    """Leave a request for the application's driver and wait until it has been followed; returns the driver's answer.

    ``by`` is who asks, the user of this process when left out.

    Raises:
        CommandError: The ``task`` that ``arguments`` name is not there, no driver runs, it did not answer within a
            minute, or it could not do what was asked.
    """
    from weir.infra.control import ControlDatabase, this_host
    from weir.pipelines.cli.registry import require

    require(settings, application)
    database = ControlDatabase(settings.control_database_url)
    if arguments and "task" in arguments:
        _require_task(settings, database, application, arguments["task"])
    if not database.is_running(application):
        raise CommandError(f"{application} is not running; start it with `weir run MODULE:APP`")
    request = database.request(
        application, kind, by=by or f"{getpass.getuser()}@{this_host()}", reason=reason, arguments=arguments
    )
    until = time.monotonic() + ANSWER_LIMIT_S
    with notices.status(f"{kind}: waiting for the driver of {application}"):
        while (answer := database.wait_request(request, LOOK_EVERY_S)).state == "pending":
            if not database.is_running(application):
                if (answer := database.wait_request(request, 0)).state != "pending":
                    break
                database.finish_request(request, "its driver ended first", failed=True)  # not for the next driver
                if kind == "stop":
                    return "has ended"
                raise CommandError(
                    f"the driver of {application} ended before it could {kind}; `weir logs {application}` says why"
                )
            if time.monotonic() > until:
                raise CommandError(
                    f"the driver of {application} has not answered within {ANSWER_LIMIT_S:.0f} s; "
                    f"`weir logs {application}` shows what it is doing, and the request stands"
                )
    if answer.state == "failed":
        raise CommandError(f"{kind} of {application} failed: {answer.result}")
    return answer.result


def _require_task(settings: Settings, database: ControlDatabase, application: str, task: str) -> None:
    """A task goes by its id or by its name in the commit log; while none has reported yet, the driver decides."""
    from weir.state.commit.protocol import newest_commit

    status = database.application_status(application)
    ids = [row.task for row in status.tasks] if status else []
    if not ids or task in ids:
        return
    newest = newest_commit(settings.warehouse, application)
    if newest is None or task not in newest.tasks:
        raise CommandError(f"{application} has no task {task!r}; its tasks are {', '.join(ids)}")


def commit(application: AppArgument, directory: DirOption = None, debug: DebugOption = False) -> None:
    """Make a running application commit now."""
    console.print(f"{application}: {ask(load_settings(directory), application, 'commit')}", markup=False)


def pause(application: AppArgument, directory: DirOption = None, debug: DebugOption = False) -> None:
    """Make a running application commit and read no more until it is resumed."""
    console.print(f"{application}: {ask(load_settings(directory), application, 'pause')}", markup=False)


def resume(application: AppArgument, directory: DirOption = None, debug: DebugOption = False) -> None:
    """Let a paused application go on."""
    console.print(f"{application}: {ask(load_settings(directory), application, 'resume')}", markup=False)


def snapshot(application: AppArgument, directory: DirOption = None, debug: DebugOption = False) -> None:
    """Make the tasks of a running application publish snapshots, by which they would restore sooner."""
    console.print(f"{application}: {ask(load_settings(directory), application, 'snapshot')}", markup=False)


def restore(
    application: AppArgument,
    task: Annotated[str, typer.Argument(metavar="TASK", help="0_1, or the name that `weir verify` shows.")],
    from_changelog: Annotated[
        bool, typer.Option("--from-changelog", help="Read the whole changelog and drop the task's snapshot.")
    ] = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Put a task's local state aside and build it anew, while the other tasks of the application go on."""
    arguments = {"task": task, "source": "changelog" if from_changelog else "snapshot"}
    console.print(f"{application}: {ask(load_settings(directory), application, 'restore', arguments)}", markup=False)


def stop(application: AppArgument, directory: DirOption = None, debug: DebugOption = False) -> None:
    """Make a running application finish its epoch, commit and end; returns when it has ended."""
    from weir.infra.control import ControlDatabase

    settings = load_settings(directory)
    answer = ask(settings, application, "stop")
    database, until = ControlDatabase(settings.control_database_url), time.monotonic() + END_LIMIT_S
    with notices.status(f"stop: {answer}"):
        while database.is_running(application):
            if time.monotonic() > until:
                raise CommandError(
                    f"{application} is still ending after {END_LIMIT_S:.0f} s; "
                    f"`weir logs {application}` shows what it is doing"
                )
            time.sleep(0.1)
    console.print(f"{application}: stopped", markup=False)


def reset(
    application: AppArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Delete an application's state and tables, so that its next run starts from the beginning.

    Topics stay as they are. A running application has to be stopped first.
    """
    from weir.infra.control import ControlDatabase, this_host
    from weir.pipelines.cli.registry import forget, require

    settings = load_settings(directory)
    require(settings, application)
    state, tables = settings.state_dir / application, settings.warehouse / application
    if not yes:
        typer.confirm(f"Delete {application}'s tables in {tables} and its state in {state}?", abort=True, err=True)
    database = ControlDatabase(settings.control_database_url)
    database.acquire_lease(application, owner="weir reset", pid=os.getpid(), host=this_host(), ttl_s=RESET_TTL_S)
    # The state goes first: tables without local state are restored from, state without tables is not trusted.
    for folder in (state, tables):
        _remove(folder, settings.tmp)
    forget(settings, application)
    database.forget(application)
    console.print(f"{application}: tables and state are deleted; its next run starts from the beginning", markup=False)


def _remove(folder: Path, scratch: Path) -> None:
    """Take a folder away in one step, so that killed half-way nobody meets half of it, then delete it."""
    if not folder.exists():
        return
    scratch.mkdir(parents=True, exist_ok=True)
    aside = scratch / f"reset-{os.getpid()}-{folder.parent.name}-{folder.name}"
    folder.rename(aside)
    shutil.rmtree(aside)


def kafka_start(directory: DirOption = None, debug: DebugOption = False) -> None:
    """Start the embedded broker of the folder and keep it up until `weir kafka stop`."""
    from weir.infra.kafka.broker import EmbeddedBroker

    settings = load_settings(directory)
    with notices.status("starting Kafka"):
        bootstrap_servers = EmbeddedBroker(settings.kafka_dir).keep()
    console.print(f"Kafka is up at {bootstrap_servers}; `weir kafka stop` ends it", markup=False, soft_wrap=True)


def kafka_create(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    partitions: Annotated[int, typer.Option(min=1, help="How many partitions it has.")] = 4,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Create a topic in the embedded broker, which makes none on its own. What is there stays as it is."""
    from weir.infra.kafka.admin import KafkaAdmin
    from weir.infra.kafka.broker import EmbeddedBroker

    settings = load_settings(directory)
    with notices.status("starting Kafka"), EmbeddedBroker(settings.kafka_dir).used() as bootstrap_servers:
        admin = KafkaAdmin(bootstrap_servers)
        is_new = admin.create_topic(topic, partitions)
        count = admin.partition_count(topic)
    console.print(
        f"topic {topic!r} {'is created' if is_new else 'is there already'}, with {count} partitions at "
        f"{bootstrap_servers}",
        markup=False,
        soft_wrap=True,
    )


def kafka_stop(directory: DirOption = None, debug: DebugOption = False) -> None:
    """End the embedded broker of the folder, or let it end with the last command that uses it."""
    from weir.infra.kafka.broker import EmbeddedBroker

    settings = load_settings(directory)
    with notices.status("stopping Kafka"):
        ended = EmbeddedBroker(settings.kafka_dir).stop()
    console.print("Kafka is down" if ended else "Kafka ends when the commands that use it have ended")
