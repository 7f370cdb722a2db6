"""Backfills from Dagster: an asset with a partition a day of event time, whose dialogue asks for the days.

A range of days is one run: a driver of its own beside the live one, then a swap in one commit (docs/backfill.md).
"""

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import TYPE_CHECKING

import dagster as dg
from dagster._core.errors import DagsterPipesExecutionError  # has no public name
from pydantic import Field

from weir.infra.process import end_with
from weir.infra.settings import Settings
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.backfill.files import TIME_COLUMN
from weir.pipelines.backfill.outputs import DayOutputs, day_outputs
from weir.pipelines.backfill.shadow import Days
from weir.pipelines.operations.errors import OperationError

if TYPE_CHECKING:
    from weir.pipelines.operations.backfills import BackfillRow


class BackfillConfig(dg.Config):
    """How the days of the run's partitions are computed anew."""

    swap: bool = Field(default=True, description="Swap them in; False leaves that to `weir backfill swap`.")
    margin_hours: float | None = Field(
        default=None,
        ge=0,
        description="Begin reading so long before the first day; by default the longest window and its grace.",
    )
    paths: dict[str, str] = Field(
        default={}, description="Delta tables or Parquet files to read in the place of topics, by topic."
    )
    time_column: str = Field(default=TIME_COLUMN, description="The time of a record in such a table or file.")


def backfill_assets(supervised: Supervised, first_day: date, end_day: date | None) -> list[dg.AssetsDefinition]:
    """``<app>/backfill``; nothing where no output has rows that belong to days."""
    outputs = day_outputs(supervised.application.topology)
    if not outputs.swapped:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # of backfill policies, at every start
        return [_backfill_asset(supervised, outputs, first_day, end_day)]


def _backfill_asset(
    supervised: Supervised, outputs: DayOutputs, first_day: date, end_day: date | None
) -> dg.AssetsDefinition:
    @dg.asset(
        key=[supervised.id, "backfill"],
        deps=list(supervised.topics.values()),
        group_name=supervised.name,
        kinds={"spark", "kafka"},
        owners=supervised.owners,
        tags=supervised.tags,
        backfill_policy=dg.BackfillPolicy.single_run(),
        partitions_def=dg.DailyPartitionsDefinition(
            start_date=first_day.isoformat(), end_date=end_day.isoformat() if end_day else None
        ),
        description=f"Days of event time, UTC, of {', '.join(each.table for each in outputs.swapped)}, computed "
        "anew from the topics and swapped in by one commit, while the ingest goes on. Terminating "
        "the run leaves everything as it was.",
    )
    def backfill(
        context: dg.AssetExecutionContext, config: BackfillConfig, weir: WeirResource, pipes: dg.PipesSubprocessClient
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
        """Start a driver over the days, follow it to its end, and take over what it reports."""
        window, settings = context.partition_time_window, weir.settings()
        days = Days(first=window.start.date(), end=window.end.date())
        known = {row.id for row in _backfills_of(supervised, settings, days)}
        context.instance.add_run_tags(context.run.run_id, supervised.tags)
        try:
            finished = followed(
                supervised,
                context,
                weir,
                pipes,
                {
                    "first": days.first.isoformat(),
                    "end": days.end.isoformat(),
                    "swap": config.swap,
                    "margin_hours": config.margin_hours,
                    "paths": config.paths,
                    "time_column": config.time_column,
                },
            )
        except dg.DagsterExecutionInterruptedError:
            yield _left_by_a_stop(row for row in _backfills_of(supervised, settings, days) if row.id not in known)
            return
        yield from finished.get_results(implicit_materializations=False)

    return backfill


def followed(
    supervised: Supervised,
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    weir: WeirResource,
    pipes: dg.PipesSubprocessClient,
    asked: Mapping[str, object],
) -> dg.PipesClientCompletedInvocation:
    """Start a driver of backfills, follow it to its end, and give what it has reported.

    Raises:
        dagster.Failure: It was killed, or has ended with an error.
        DagsterExecutionInterruptedError: The run was terminated; the driver has ended.
    """
    if multiprocessing.parent_process() is not None:  # a step of a run worker: its end must reach the driver
        end_with(os.getppid(), signal.SIGTERM)
    try:
        finished = pipes.run(
            context=context,
            command=[sys.executable, "-m", "weir.orchestration.backfill_worker"],
            env=weir.environment(),
            extras={"reference": supervised.reference, "dir": str(weir.settings().dir), "parent": os.getpid(), **asked},
        )
        closing = next(iter(finished.get_custom_messages()), None)
    except DagsterPipesExecutionError:
        closing = None
    if closing is None:
        raise dg.Failure(
            f"the backfill of {supervised.id} was killed; `weir backfill list {supervised.id}` shows how far it came",
            allow_retries=False,
        )
    if "error" in closing:
        raise dg.Failure(closing["error"], allow_retries=False)
    return finished


def _backfills_of(supervised: Supervised, settings: Settings, days: Days) -> "list[BackfillRow]":
    """Those of the days that are there or were swapped in; none of an application that has never run here."""
    from weir.pipelines.operations.backfills import backfills

    try:
        return [row for row in backfills(settings, supervised.id) if row.days == str(days)]
    except OperationError:
        return []


def _left_by_a_stop(made: "Iterable[BackfillRow]") -> dg.MaterializeResult:
    """What to report of a backfill whose run was terminated: Pipes gives no reports of what it has interrupted.

    Raises:
        dagster.Failure: It was not swapped in; the text says what of it is left.
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
                f"the backfill was stopped when it was complete; swap {row.id} in, or discard it, with `weir backfill`",
                allow_retries=False,
            )
    raise dg.Failure("the backfill was stopped; nothing of it is left", allow_retries=False)
