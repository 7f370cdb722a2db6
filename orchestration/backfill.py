"""Backfills from Dagster: an asset with a partition a day of event time, whose dialogue asks for the days.

A range of days is one run: a driver of its own beside the live one, then a swap in one commit (docs/backfill.md).
"""

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from datetime import date

import dagster as dg
from dagster._core.errors import DagsterPipesExecutionError  # has no public name
from pydantic import Field

from infra.process import end_with
from orchestration.resources import WeirResource
from orchestration.supervised import Supervised
from pipelines.backfill.files import TIME_COLUMN
from pipelines.backfill.outputs import DayOutputs, day_outputs


class BackfillConfig(dg.Config):
    """How the days of the run's partitions are computed anew."""

    swap: bool = Field(default=True, description="Swap them in; False leaves that to `weir backfill swap`.")
    margin_hours: float | None = Field(
        default=None, ge=0, description="Begin reading so long before the first day; by default the longest window and "
        "its grace.")
    paths: dict[str, str] = Field(
        default={}, description="Delta tables or Parquet files to read in the place of topics, by topic.")
    time_column: str = Field(default=TIME_COLUMN, description="The time of a record in such a table or file.")


def backfill_assets(supervised: Supervised, first_day: date, end_day: date | None) -> list[dg.AssetsDefinition]:
    """``<app>/backfill``; nothing where no output has rows that belong to days."""
    outputs = day_outputs(supervised.application.topology)
    if not outputs.swapped:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # of backfill policies, at every start
        return [_backfill_asset(supervised, outputs, first_day, end_day)]


def _backfill_asset(supervised: Supervised, outputs: DayOutputs, first_day: date, end_day: date | None
                    ) -> dg.AssetsDefinition:
    @dg.asset(key=[supervised.id, "backfill"], deps=list(supervised.topics.values()), group_name=supervised.name,
              kinds={"spark", "kafka"}, backfill_policy=dg.BackfillPolicy.single_run(),
              partitions_def=dg.DailyPartitionsDefinition(
                  start_date=first_day.isoformat(), end_date=end_day.isoformat() if end_day else None),
              description=f"Days of event time, UTC, of {', '.join(each.table for each in outputs.swapped)}, computed "
                          "anew from the topics and swapped in by one commit, while the ingest goes on. Terminating "
                          "the run leaves everything as it was.")
    def backfill(context: dg.AssetExecutionContext, config: BackfillConfig, weir: WeirResource,
                 pipes: dg.PipesSubprocessClient) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
        """Start a driver over the days, follow it to its end, and take over what it reports."""
        if multiprocessing.parent_process() is not None:  # a step of a run worker: its end must reach the driver
            end_with(os.getppid(), signal.SIGTERM)
        window = context.partition_time_window
        context.instance.add_run_tags(context.run.run_id, supervised.tags)
        try:
            finished = pipes.run(
                context=context, command=[sys.executable, "-m", "orchestration.backfill_worker"],
                env=weir.environment(),
                extras={"reference": supervised.reference, "dir": str(weir.settings().dir), "parent": os.getpid(),
                        "first": window.start.date().isoformat(), "end": window.end.date().isoformat(),
                        "swap": config.swap, "margin_hours": config.margin_hours, "paths": config.paths,
                        "time_column": config.time_column})
            closing = next(iter(finished.get_custom_messages()), None)
        except DagsterPipesExecutionError:
            closing = None
        if closing is None:
            raise dg.Failure(f"the backfill of {supervised.id} was killed; `weir backfill list {supervised.id}` shows "
                             "how far it came", allow_retries=False)
        if "error" in closing:
            raise dg.Failure(closing["error"], allow_retries=False)
        yield from finished.get_results(implicit_materializations=False)

    return backfill
