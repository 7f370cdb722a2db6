"""Lists the newest dead letters: records that could not be read, with the reason."""

import dagster as dg
from pydantic import Field

from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.rows import as_dictionaries
from weir.pipelines.operations.tables import newest_rows
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS


class DeadLettersConfig(dg.Config):
    """How many to show."""

    limit: int = Field(default=20, ge=1, le=1000, description="Show at most this many, the newest.")


def dead_letters_job(supervised: Supervised) -> dg.JobDefinition:
    """``<app>_dead_letters``."""

    @dg.op(name=f"{supervised.name}_list_dead_letters", description="Read the newest rows of the dead letters.")
    def list_dead_letters(context: dg.OpExecutionContext, config: DeadLettersConfig, weir: WeirResource) -> None:
        try:
            rows = newest_rows(weir.settings(), supervised.id, DEAD_LETTERS.name)
        except OperationError as error:
            raise dg.Failure(str(error), allow_retries=False) from None
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


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "backslashreplace")
