"""Lists the newest dead letters, records that could not be read or processed or that a sink refuses, and has them
processed, or sent, again, or deleted."""

from collections.abc import Sequence

import dagster as dg
from pydantic import Field

from weir.orchestration.advice import in_dagster
from weir.orchestration.drivers.dagster_run import owner_of
from weir.orchestration.jobs.shared import by_application, chosen, job_of, refused
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.dead_letters import discard, replay
from weir.pipelines.operations.deliveries import undelivered
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.rows import as_dictionaries
from weir.pipelines.operations.tables import newest_rows
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS


class DeadLettersConfig(dg.Config):
    """How many to show."""

    limit: int = Field(default=20, ge=1, le=1000, description="Show at most this many, the newest.")


class ReplayConfig(dg.Config):
    """Which dead letters to process again."""

    ids: list[str] = Field(default=[], description="The ids of the letters, as the list shows them; all without one.")


class DiscardConfig(dg.Config):
    """Which dead letters to delete."""

    ids: list[str] = Field(default=[], description="The ids of the letters, as the list shows them.")
    everything: bool = Field(default=False, description="Delete all of them; without it, ids are needed.")


def dead_letters_job(applications: Sequence[Supervised]) -> dg.JobDefinition:
    """``weir_dead_letters``."""

    @dg.op(name="weir_list_dead_letters", description="Read the newest rows of the dead letters.")
    def list_dead_letters(context: dg.OpExecutionContext, config: DeadLettersConfig, weir: WeirResource) -> None:
        supervised, settings = chosen(context, applications), weir.settings()
        try:
            rows = newest_rows(settings, supervised.id, DEAD_LETTERS.name)
        except OperationError as error:
            raise refused(error, supervised) from None
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
        aside = undelivered(settings, supervised.id).drop("number")
        rows_of_sinks = [
            dg.TableRecord({name: _cell(value) for name, value in row.items()}) for row in as_dictionaries(aside)
        ]
        of_sinks = dg.TableSchema(columns=[dg.TableColumn(name, "string") for name in aside.columns])
        context.add_output_metadata(
            {
                "dagster/row_count": rows.height,
                "newest": dg.MetadataValue.table(records, schema),
                "refused_by_sinks": dg.MetadataValue.table(rows_of_sinks[-config.limit :], of_sinks),
            }
        )

    return job_of(
        applications,
        "weir_dead_letters",
        list_dead_letters,
        by_application(applications),
        "List the newest records that could not be read or processed, with the reason.",
    )


def replay_job(applications: Sequence[Supervised]) -> dg.JobDefinition:
    """``weir_replay_dead_letters``."""

    @dg.op(name="weir_ask_replay", description="Ask the driver, and wait for the commit.")
    def ask_replay(context: dg.OpExecutionContext, config: ReplayConfig, weir: WeirResource) -> None:
        supervised = chosen(context, applications)
        try:
            replayed = replay(weir.settings(), supervised.id, config.ids, by=owner_of(context.run_id))
        except OperationError as error:
            raise refused(error, supervised) from None
        outcome = in_dagster(str(replayed), supervised.id)
        context.log.info("%s: %s", supervised.id, outcome)
        context.add_output_metadata({"outcome": outcome})
        context.log_event(
            dg.AssetObservation(
                supervised.tables[DEAD_LETTERS.name], description=outcome, metadata={"ids": config.ids or "all"}
            )
        )

    return job_of(
        applications,
        "weir_replay_dead_letters",
        ask_replay,
        by_application(applications),
        "Let the running application, with its program corrected, process dead letters again, each once.",
    )


def discard_job(applications: Sequence[Supervised]) -> dg.JobDefinition:
    """``weir_discard_dead_letters``."""

    @dg.op(name="weir_delete_dead_letters", description="Delete dead letters; a driver goes on meanwhile.")
    def delete(context: dg.OpExecutionContext, config: DiscardConfig, weir: WeirResource) -> None:
        supervised = chosen(context, applications)
        if bool(config.ids) == config.everything:
            raise dg.Failure("name the ids of the letters, or say everything: true", allow_retries=False)
        try:
            deleted = discard(weir.settings(), supervised.id, config.ids or None)
        except OperationError as error:
            raise refused(error, supervised) from None
        context.log.info("%s: %d dead letters were deleted", supervised.id, deleted)
        context.add_output_metadata({"deleted": deleted})

    return job_of(
        applications,
        "weir_discard_dead_letters",
        delete,
        by_application(applications),
        "Delete dead letters by their ids, or all of them.",
    )


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "backslashreplace")
