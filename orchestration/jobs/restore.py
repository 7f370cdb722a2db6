"""Restores one task of a running application: asks the driver, then follows the restore to its end."""

import time
from collections.abc import Sequence

import dagster as dg
from pydantic import Field

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.orchestration.advice import in_dagster
from weir.orchestration.assets.partitions import tasks_of
from weir.orchestration.jobs.requests import RequestConfig, ask_driver
from weir.orchestration.jobs.shared import chosen, chosen_part, job_of
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import TASKS, Supervised
from weir.pipelines.operations.status import task_sizes
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.storage.places import folder_at

RESTORE, RESTORE_OP = "weir_restore", "weir_ask_restore"
"""The job, and its op, under which a run's configuration addresses it."""
FOLLOW_EVERY_S = 0.2
LOG_EVERY_S = 5.0
"""Between two lines about the same restore: each is a row in Dagster's database."""


class RestoreConfig(RequestConfig):
    """How to restore the task that the run's partition names."""

    from_changelog: bool = Field(default=False, description="Read the whole changelog and drop the task's snapshot.")


def restore_job(applications: Sequence[Supervised]) -> dg.JobDefinition:
    """``weir_restore``, with one partition per task."""

    @dg.op(name=RESTORE_OP, description="Ask the driver to restore the task, and follow the restore.")
    def restore(context: dg.OpExecutionContext, config: RestoreConfig, weir: WeirResource) -> None:
        task = chosen_part(context, "task")
        supervised, settings = chosen(context, applications), weir.settings()
        newest = newest_commit(folder_at(settings.warehouse), supervised.id)
        began_s = time.monotonic()
        ask_driver(
            context,
            supervised,
            settings,
            "restore",
            config.reason,
            {"task": task, "source": "changelog" if config.from_changelog else "snapshot"},
        )
        _follow(context, supervised.id, settings, task)
        if newest is not None:
            seconds = round(time.monotonic() - began_s, 3)
            context.log_event(
                _materialization(
                    supervised, settings, newest, task, from_changelog=config.from_changelog, seconds=seconds
                )
            )

    return job_of(
        applications,
        RESTORE,
        restore,
        TASKS,
        "Set a task's local state aside and rebuild it, while the other tasks keep running.",
    )


def _materialization(
    supervised: Supervised,
    settings: Settings,
    newest: CommitRecord,
    task: str,
    *,
    from_changelog: bool,
    seconds: float,
) -> dg.AssetMaterialization:
    """What the task holds now, if that is on this host, and what it was restored from, as ``newest`` had it before."""
    name = next((name for name, found in tasks_of(supervised, newest).items() if str(found) == task), "")
    has_snapshot = bool(name and newest.tasks[name].snapshot)
    sizes = task_sizes(settings, supervised.id, name) if name else {}
    return dg.AssetMaterialization(
        supervised.checkpoints,
        partition=task,
        description=f"restored as of commit {newest.state_id}",
        metadata={
            "kind": "restore",
            "source": "snapshot" if has_snapshot and not from_changelog else "changelog",
            "seconds": seconds,
            **(
                {
                    "rows": sum(size.rows for size in sizes.values()),
                    "bytes": sum(size.bytes for size in sizes.values()),
                }
                if sizes
                else {}
            ),
        },
    )


def _follow(context: dg.OpExecutionContext, application: str, settings: Settings, task: str) -> None:
    """Log the progress of the restore until the task takes part in epochs again."""
    database, logged, logged_s = ControlDatabase(settings.control_database_url), "", -LOG_EVERY_S
    while (status := database.application_status(application)) is not None and not status.has_ended:
        row = next((row for row in status.tasks if row.task == task), None)
        if row is not None and row.status == "corrupted":
            raise dg.Failure(in_dagster(f"task {task} is corrupted: {row.reason}", application), allow_retries=False)
        if row is None or row.status != "restoring":
            return
        if row.reason != logged and time.monotonic() - logged_s >= LOG_EVERY_S:
            logged, logged_s = row.reason, time.monotonic()
            context.log.info("task %s: %s", task, logged)
        time.sleep(FOLLOW_EVERY_S)
    raise dg.Failure(
        f"the driver of {application} ended while task {task} was restoring; the next start restores it",
        allow_retries=False,
    )
