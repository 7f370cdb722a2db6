"""Jobs by which people steer a running application, each the same call as the command of that name.

A request goes to the driver through the control database; the run's metadata holds the driver's answer.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import dagster as dg
from pydantic import Field

from weir.infra.control import ControlDatabase
from weir.infra.control.rows import RequestKind
from weir.infra.settings import Settings
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.errors import OperationError

FOLLOW_EVERY_S = 0.2
TELL_EVERY_S = 5.0
"""Between two lines about the same restore: each is a row in Dagster's database."""


class RequestConfig(dg.Config):
    """What the driver and its log are told, beside the run that asks."""

    reason: str = Field(default="", description="Why, for the driver's log and the observation of the ingest.")


class RestoreConfig(RequestConfig):
    """How to restore the task that the run's partition names."""

    from_changelog: bool = Field(default=False, description="Read the whole changelog and drop the task's snapshot.")


class DeadLettersConfig(dg.Config):
    """How much to show."""

    limit: int = Field(default=20, ge=1, le=1000, description="At most so many of the newest ones.")


def steering_jobs(supervised: Supervised) -> list[dg.JobDefinition]:
    """``<app>_commit_now``, ``<app>_pause``, ``<app>_resume``, ``<app>_stop`` and ``<app>_dead_letters``."""
    return [
        _request_job(supervised, "commit_now", "commit", "Make the running application commit now."),
        _request_job(supervised, "pause", "pause", "Make the running application commit and read no more."),
        _request_job(supervised, "resume", "resume", "Let the paused application go on."),
        _request_job(supervised, "stop", "stop", "Make the running application finish its epoch, commit and end."),
        _dead_letters_job(supervised),
    ]


def _request_job(supervised: Supervised, name: str, kind: RequestKind, description: str) -> dg.JobDefinition:
    @dg.op(name=f"{supervised.name}_ask_{name}", description="Ask the driver and wait for its answer.")
    def request(context: dg.OpExecutionContext, config: RequestConfig, weir: WeirResource) -> None:
        _ask(context, supervised, weir.settings(), kind, config.reason)

    @dg.job(name=f"{supervised.name}_{name}", description=description, tags=supervised.tags)
    def job() -> None:
        request()

    return job


def restore_op(supervised: Supervised) -> str:
    """The name of the restore job's op, by which a run's configuration finds it."""
    return f"{supervised.name}_ask_restore"


def restore_job(supervised: Supervised) -> dg.JobDefinition:
    """``<app>_restore``, a partition a task."""

    @dg.op(name=restore_op(supervised), description="Ask the driver to restore the task, and follow it to the end.")
    def restore(context: dg.OpExecutionContext, config: RestoreConfig, weir: WeirResource) -> None:
        settings, task = weir.settings(), context.partition_key
        _ask(
            context,
            supervised,
            settings,
            "restore",
            config.reason,
            {"task": task, "source": "changelog" if config.from_changelog else "snapshot"},
        )
        _follow_restore(context, supervised.id, settings, task)

    @dg.job(
        name=f"{supervised.name}_restore",
        partitions_def=supervised.task_partitions,
        tags=supervised.tags,
        description="Put a task's local state aside and build it anew, while the other tasks go on.",
    )
    def job() -> None:
        restore()

    return job


def _dead_letters_job(supervised: Supervised) -> dg.JobDefinition:
    @dg.op(name=f"{supervised.name}_list_dead_letters", description="Read the newest rows of the dead letters.")
    def list_dead_letters(context: dg.OpExecutionContext, config: DeadLettersConfig, weir: WeirResource) -> None:
        from weir.pipelines.operations.rows import as_dictionaries
        from weir.pipelines.operations.tables import newest_rows
        from weir.pipelines.tasks.dead_letters import DEAD_LETTERS

        with _one_sentence():
            rows = newest_rows(weir.settings(), supervised.id, DEAD_LETTERS.name)
        columns = [name for name in rows.columns if name not in ("key", "value")]
        records = [
            dg.TableRecord(
                {
                    **{name: _cell(row[name]) for name in columns},
                    **{name: _text(row[name]) for name in ("key", "value")},
                }
            )
            for row in as_dictionaries(rows.head(config.limit))
        ]
        schema = dg.TableSchema(columns=[dg.TableColumn(name, "string") for name in (*columns, "key", "value")])
        context.add_output_metadata(
            {"dagster/row_count": rows.height, "newest": dg.MetadataValue.table(records, schema)}
        )

    @dg.job(
        name=f"{supervised.name}_dead_letters",
        tags=supervised.tags,
        description="List the newest records that could not be read, with the reason.",
    )
    def job() -> None:
        list_dead_letters()

    return job


def _ask(
    context: dg.OpExecutionContext,
    supervised: Supervised,
    settings: Settings,
    kind: RequestKind,
    reason: str,
    arguments: Mapping[str, str] | None = None,
) -> None:
    from weir.pipelines.operations.control import ask

    with _one_sentence():
        answer = ask(settings, supervised.id, kind, arguments, by=f"dagster run {context.run_id}", reason=reason)
    context.log.info("%s: %s", supervised.id, answer)
    context.add_output_metadata({"answer": answer})
    context.log_event(
        dg.AssetObservation(
            supervised.ingest,
            description=answer,
            metadata={"request": kind, **({"reason": reason} if reason else {}), **(arguments or {})},
        )
    )


def _follow_restore(context: dg.OpExecutionContext, application: str, settings: Settings, task: str) -> None:
    """Log how far the restore has come, until the task takes part in epochs again."""
    database, told, told_s = ControlDatabase(settings.control_database_url), "", -TELL_EVERY_S
    while (status := database.application_status(application)) is not None and status.is_running:
        row = next((row for row in status.tasks if row.task == task), None)
        if row is None or row.status != "restoring":
            return
        if row.reason != told and time.monotonic() - told_s >= TELL_EVERY_S:
            told, told_s = row.reason, time.monotonic()
            context.log.info("task %s: %s", task, told)
        time.sleep(FOLLOW_EVERY_S)
    raise dg.Failure(
        f"the driver of {application} ended while task {task} was restoring; its next start restores it",
        allow_retries=False,
    )


@contextmanager
def _one_sentence() -> Iterator[None]:
    """A command's refusal fails the run with its own words and no stack trace."""
    try:
        yield
    except OperationError as error:
        raise dg.Failure(str(error), allow_retries=False) from None


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "backslashreplace")
