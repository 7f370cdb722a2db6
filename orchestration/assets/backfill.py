"""Backfills of days: an asset with one partition per day of event time; Dagster's backfill dialog offers those that
there are records of (``weir.orchestration.assets.partitions``).

A range of days is one run: a separate driver next to the live one, then a swap in one commit (docs/backfill.md).
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from weir.infra.settings import Settings
from weir.orchestration.advice import in_dagster
from weir.orchestration.assets.partitions import has_days
from weir.orchestration.partitions import make_changes, own_partition_changes
from weir.orchestration.resources import WeirResource, run_driver
from weir.orchestration.supervised import BACKFILLS, Supervised
from weir.pipelines.backfill.differences import MAX_CHANGE
from weir.pipelines.backfill.files import TIME_COLUMN
from weir.pipelines.backfill.outputs import DayOutputs, day_outputs
from weir.pipelines.backfill.shadow import Days
from weir.pipelines.operations.backfills import BackfillRow, backfills
from weir.pipelines.operations.errors import OperationError
from weir.state.commit.upserts import shown_name

DRIVER = "weir.orchestration.drivers.backfill"


MAX_CHANGE_FIELD = Field(
    default=MAX_CHANGE,
    ge=0,
    le=1,
    description="Refuse to swap if more than this share of a table's rows would be removed or changed; 1 swaps however "
    "much changes. A backfill that is refused stays complete.",
)


PUBLISH_FIELD: bool = Field(
    default=False, description="Also publish its rows to sinks outside the warehouse when it is swapped in."
)
WALL_CLOCK_FIELD: bool = Field(
    default=False, description="Call what processors do by the wall clock, as it passes while this runs."
)


class BackfillConfig(dg.Config):
    """How the days of the run's partitions are recomputed."""

    swap: bool = Field(default=True, description="Swap the days in; false leaves that to weir_swap_backfill.")
    publish: bool = PUBLISH_FIELD
    max_change: float = MAX_CHANGE_FIELD
    margin_hours: float | None = Field(
        default=None,
        ge=0,
        description="Start reading this long before the first day; by default the longest window plus its grace.",
    )
    paths: dict[str, str] = Field(
        default={}, description="Delta tables or Parquet files to read instead of topics, by topic."
    )
    time_column: str = Field(
        default=TIME_COLUMN, description="The column of such a table or file that holds a record's time."
    )
    wall_clock: bool = WALL_CLOCK_FIELD


def backfill_assets(supervised: Supervised) -> list[dg.AssetsDefinition]:
    """``<app>/backfill``; empty if no output has rows that belong to days."""
    if not has_days(supervised):
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # about backfill policies, at every start
        return [_backfill_asset(supervised, day_outputs(supervised.application.topology))]


def _backfill_asset(supervised: Supervised, outputs: DayOutputs) -> dg.AssetsDefinition:
    @dg.asset(
        key=supervised.backfill,
        deps=[*supervised.topics.values(), *_recomputed(supervised, outputs)],
        group_name=supervised.name,
        kinds={"spark", "kafka"},
        owners=supervised.owners,
        tags=supervised.tags,
        backfill_policy=dg.BackfillPolicy.single_run(),
        partitions_def=supervised.day_partitions,
        description=f"Days of event time, UTC, of {', '.join(_names(outputs))}: recomputed from the topics and "
        "swapped in by one commit, while the ingest keeps running; what has left the warehouse is published again if "
        "asked. Terminating the run leaves everything as it was.",
    )
    def backfill(
        context: dg.AssetExecutionContext, config: BackfillConfig, weir: WeirResource, pipes: dg.PipesSubprocessClient
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """Start a driver over the days, follow it to its end, and record what it reports."""
        asked, settings = context.partition_key_range, weir.settings()
        first, last = (date.fromisoformat(day) for day in (asked.start, asked.end))
        days = Days(first=first, end=last + timedelta(days=1))
        known = {row.id for row in backfills_of(supervised, settings)}
        context.instance.add_run_tags(context.run.run_id, supervised.tags)
        try:
            finished, _ = run_backfill(
                supervised,
                context,
                weir,
                pipes,
                {
                    "first": days.first.isoformat(),
                    "end": days.end.isoformat(),
                    "swap": config.swap,
                    "publish": config.publish,
                    "max_change": config.max_change,
                    "margin_hours": config.margin_hours,
                    "paths": config.paths,
                    "time_column": config.time_column,
                    "wall_clock": config.wall_clock,
                },
            )
        except dg.DagsterExecutionInterruptedError:
            made = [row for row in backfills_of(supervised, settings) if row.days == str(days) and row.id not in known]
            yield _left_by_termination(supervised, made)
            return
        yield from finished.get_results(implicit_materializations=False)

    return backfill


def _recomputed(supervised: Supervised, outputs: DayOutputs) -> list[dg.AssetKey]:
    """The assets of the outputs whose days a backfill replaces, or publishes again."""
    return [
        *(supervised.tables[each.table] for each in outputs.swapped),
        *(supervised.sinks[each.name] for each in outputs.published),
    ]


def _names(outputs: DayOutputs) -> list[str]:
    return [*(shown_name(each.table) for each in outputs.swapped), *(each.name for each in outputs.published)]


def run_backfill(
    supervised: Supervised,
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    weir: WeirResource,
    pipes: dg.PipesSubprocessClient,
    asked: Mapping[str, object],
) -> tuple[dg.PipesClientCompletedInvocation, Mapping[str, Any]]:
    """Run a backfill driver to its end and return its reports and its closing record.

    Raises:
        dagster.Failure: It was killed, or ended with an error.
        DagsterExecutionInterruptedError: The run was terminated; the driver has ended.
    """
    try:
        driven = run_driver(DRIVER, supervised, context, weir, pipes, asked)
    finally:
        try:
            update_backfill_partitions(supervised, weir.settings(), context.instance)
        except Exception:  # how the run ended is more important
            context.log.exception(
                f"the partitions of swaps and discards could not be updated; launch weir_backfills with the partition "
                f"{supervised.id}, which updates them"
            )
    if driven is None:
        raise dg.Failure(
            f"the backfill of {supervised.id} was killed; launch weir_backfills with the partition {supervised.id} to "
            "see what is left of it",
            allow_retries=False,
        )
    finished, closing = driven
    if "error" in closing:
        raise dg.Failure(in_dagster(closing["error"], supervised.id), allow_retries=False)
    return finished, closing


def backfills_of(supervised: Supervised, settings: Settings) -> list[BackfillRow]:
    """The backfills that exist or were swapped in; empty if the application has never run here."""
    try:
        return list(backfills(settings, supervised.id))
    except OperationError:
        return []


def update_backfill_partitions(supervised: Supervised, settings: Settings, instance: dg.DagsterInstance) -> None:
    """Make the application's backfills that can be swapped in or discarded the partitions of the jobs that do so."""
    there = [row.id for row in backfills_of(supervised, settings) if row.state != "swapped in"]
    make_changes(own_partition_changes(supervised, BACKFILLS, there, instance), instance)


def _left_by_termination(supervised: Supervised, made: Iterable[BackfillRow]) -> dg.MaterializeResult[None]:
    """What to report of a backfill whose run was terminated: Pipes drops the reports of what it has interrupted.

    Raises:
        dagster.Failure: It was not swapped in; the text says what is left of it.
    """
    for row in made:
        if row.state == "swapped in":
            return dg.MaterializeResult(
                metadata={
                    "backfill": row.id,
                    "days": row.days,
                    "swap": f"swapped in by the commit of epoch {row.epoch}",
                }
            )
        if row.state == "complete":
            raise dg.Failure(
                "the backfill was stopped when it was complete; launch weir_swap_backfill to swap it in, or "
                f"weir_discard_backfill, with the partition {supervised.partition(row.id)}",
                allow_retries=False,
            )
    raise dg.Failure("the backfill was stopped; its files were removed", allow_retries=False)
