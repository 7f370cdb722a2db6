"""Lists an application's backfills, swaps one in, or discards it. ``rebuild`` and the backfill asset make them."""

from collections.abc import Sequence

import dagster as dg

from weir.orchestration.assets.backfill import (
    MAX_CHANGE_FIELD,
    PUBLISH_FIELD,
    backfills_of,
    run_backfill,
    update_backfill_partitions,
)
from weir.orchestration.jobs.shared import by_application, chosen, chosen_part, job_of, refused
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import BACKFILLS, Supervised
from weir.pipelines.backfill.errors import UnknownBackfillError
from weir.pipelines.operations.backfills import BackfillRow, discard
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.records import iso_time

COLUMNS = ("backfill", "days", "state", "records read", "began", "epoch", "from")


class SwapConfig(dg.Config):
    """How the backfill of the run's partition is swapped in."""

    publish: bool = PUBLISH_FIELD
    max_change: float = MAX_CHANGE_FIELD


def backfills_job(applications: Sequence[Supervised]) -> dg.JobDefinition:
    """``weir_backfills``."""

    @dg.op(name="weir_list_backfills", description="Read the backfills in the warehouse, and the newest swaps.")
    def list_backfills(context: dg.OpExecutionContext, weir: WeirResource) -> None:
        supervised, settings = chosen(context, applications), weir.settings()
        rows = backfills_of(supervised, settings)
        update_backfill_partitions(supervised, settings, context.instance)
        context.add_output_metadata(
            {
                "dagster/row_count": len(rows),
                "backfills": dg.MetadataValue.table(
                    [dg.TableRecord(dict(zip(COLUMNS, _cells(row), strict=True))) for row in rows],
                    dg.TableSchema(columns=[dg.TableColumn(name, "text") for name in COLUMNS]),
                ),
            }
        )

    return job_of(
        applications,
        "weir_backfills",
        list_backfills,
        by_application(applications),
        "List the backfills; those that can be swapped in or discarded are then the partitions of weir_swap_backfill "
        "and weir_discard_backfill.",
    )


def swap_backfill_job(applications: Sequence[Supervised]) -> dg.JobDefinition:
    """``weir_swap_backfill``, with one partition per backfill."""

    @dg.op(name="weir_swap_in", description="Count what would change, and swap the backfill in by one commit.")
    def swap(
        context: dg.OpExecutionContext, config: SwapConfig, weir: WeirResource, pipes: dg.PipesSubprocessClient
    ) -> None:
        backfill = chosen_part(context, "backfill")
        _, closing = run_backfill(
            chosen(context, applications),
            context,
            weir,
            pipes,
            {
                "backfill": backfill,
                "publish": config.publish,
                "max_change": config.max_change,
            },
        )
        context.add_output_metadata(closing["metadata"])

    return job_of(
        applications,
        "weir_swap_backfill",
        swap,
        BACKFILLS,
        "Swap in a backfill that is complete. One of everything first catches up to where the ingest stopped, and the "
        "ingest must be stopped.",
    )


def discard_backfill_job(applications: Sequence[Supervised]) -> dg.JobDefinition:
    """``weir_discard_backfill``, with one partition per backfill."""

    @dg.op(name="weir_remove_backfill", description="Remove the backfill's files.")
    def delete(context: dg.OpExecutionContext, weir: WeirResource) -> None:
        backfill = chosen_part(context, "backfill")
        supervised, settings = chosen(context, applications), weir.settings()
        try:
            discard(settings, supervised.id, backfill)
        except (OperationError, UnknownBackfillError) as error:
            raise refused(error, supervised) from None
        finally:
            update_backfill_partitions(supervised, settings, context.instance)
        context.add_output_metadata({"discarded": backfill})

    return job_of(
        applications,
        "weir_discard_backfill",
        delete,
        BACKFILLS,
        "Discard a backfill that is complete or was interrupted.",
    )


def _cells(row: BackfillRow) -> tuple[str, ...]:
    return (
        row.id,
        row.days,
        row.state,
        "" if row.records_in is None else f"{row.records_in:,}",
        iso_time(row.at_ms) or "",
        f"{row.epoch:,}",
        row.source,
    )
