"""Restores one task of a running application: asks the driver, then follows the restore to its end."""

import time

import dagster as dg
from pydantic import Field

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.orchestration.jobs.one_op import job_of
from weir.orchestration.jobs.requests import RequestConfig, ask_driver
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised

FOLLOW_EVERY_S = 0.2
LOG_EVERY_S = 5.0
"""Between two lines about the same restore: each is a row in Dagster's database."""


class RestoreConfig(RequestConfig):
    """How to restore the task that the run's partition names."""

    from_changelog: bool = Field(default=False, description="Read the whole changelog and drop the task's snapshot.")


def restore_name(supervised: Supervised) -> str:
    """The name of the restore job."""
    return f"{supervised.name}_restore"


def restore_op(supervised: Supervised) -> str:
    """The name of the restore job's op, under which a run's configuration addresses it."""
    return f"{supervised.name}_ask_restore"


def restore_job(supervised: Supervised) -> dg.JobDefinition:
    """``<app>_restore``, with one partition per task."""

    @dg.op(name=restore_op(supervised), description="Ask the driver to restore the task, and follow the restore.")
    def restore(context: dg.OpExecutionContext, config: RestoreConfig, weir: WeirResource) -> None:
        settings, task = weir.settings(), context.partition_key
        ask_driver(
            context,
            supervised,
            settings,
            "restore",
            config.reason,
            {"task": task, "source": "changelog" if config.from_changelog else "snapshot"},
        )
        _follow(context, supervised.id, settings, task)

    return job_of(
        restore,
        supervised,
        restore_name(supervised),
        "Set a task's local state aside and rebuild it, while the other tasks keep running.",
        partitions=supervised.task_partitions,
    )


def _follow(context: dg.OpExecutionContext, application: str, settings: Settings, task: str) -> None:
    """Log the progress of the restore until the task takes part in epochs again."""
    database, logged, logged_s = ControlDatabase(settings.control_database_url), "", -LOG_EVERY_S
    while (status := database.application_status(application)) is not None and not status.has_ended:
        row = next((row for row in status.tasks if row.task == task), None)
        if row is not None and row.status == "in doubt":
            raise dg.Failure(f"task {task} is in doubt: {row.reason}", allow_retries=False)
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
