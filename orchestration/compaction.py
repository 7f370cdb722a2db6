"""Compaction from Dagster: a job, a nightly schedule, and a sensor that asks for it when much can be merged.

What is merged and how is ``weir.state.changelog.compaction``; the job makes the call of ``weir compact``.
"""

import time
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.orchestration.resources import WeirResource
from weir.orchestration.sizes import size_text
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.errors import OperationError

if TYPE_CHECKING:
    from weir.state.changelog.compaction import TableReport

LOOK_EVERY_S = 300
NIGHTLY = "0 3 * * *"
REASON = "weir/reason"
"""The tag of a run that a sensor has asked for, with why."""
SHOWN = ("files_before", "files_after", "rows_before", "rows_after", "bytes_before", "bytes_after", "files_deleted")


class CompactionConfig(dg.Config):
    """What to compact."""

    store: str | None = Field(default=None, description="Only this store's changelog; everything when left out.")
    dry_run: bool = Field(default=False, description="Show what would change; change nothing.")


def compaction_pool(supervised: Supervised) -> str:
    """Holds back a second compaction of the application; the sensor sets its limit to one."""
    return f"{supervised.name}_compaction"


def compaction_job(supervised: Supervised) -> dg.JobDefinition:
    """``<app>_compaction``: merges files of changelogs, outputs and the commit log, and vacuums."""

    @dg.op(
        name=f"{supervised.name}_compact",
        pool=compaction_pool(supervised),
        description="Merge small files into large ones, and delete those that nothing names any more.",
    )
    def compact(context: dg.OpExecutionContext, config: CompactionConfig, weir: WeirResource) -> None:
        from weir.pipelines.operations.compaction import compact_application

        settings, told = weir.settings(), ""

        def on_progress(done: int, total: int, table: str) -> None:
            nonlocal told
            if table != told:
                told = table
                context.log.info("%s: %d rows to merge", table, total)

        try:
            compacted = compact_application(
                settings, supervised.id, store=config.store, is_dry_run=config.dry_run, on_progress=on_progress
            )
        except OperationError as error:
            raise dg.Failure(str(error), allow_retries=False) from None
        context.add_output_metadata(
            {
                "is_dry_run": config.dry_run,
                "is_running": compacted.is_running,
                "tables": dg.MetadataValue.table([_record(report) for report in compacted.reports]),
            }
        )
        for report in () if config.dry_run else compacted.reports:
            if report.table in supervised.tables:
                context.log_event(
                    dg.AssetObservation(
                        supervised.tables[report.table],
                        description="compacted",
                        metadata={name: getattr(report, name) for name in SHOWN},
                    )
                )

    @dg.job(
        name=f"{supervised.name}_compaction",
        tags=supervised.tags,
        description="Merge the files of changelogs, outputs and the commit log, beside a running driver too.",
    )
    def job() -> None:
        compact()

    return job


def _record(report: "TableReport") -> dg.TableRecord:
    return dg.TableRecord(
        {
            "table": report.table,
            **{
                name.replace("bytes", "size"): size_text(getattr(report, name))
                if "bytes" in name
                else getattr(report, name)
                for name in SHOWN
            },
        }
    )


def compaction_schedule(supervised: Supervised, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Every night, once switched on; nothing happens before the first commit."""

    @dg.schedule(
        name=f"{supervised.name}_nightly_compaction",
        cron_schedule=NIGHTLY,
        job=job,
        execution_timezone="UTC",
        tags=supervised.tags,
        description="Compacts at three in the night, UTC.",
    )
    def nightly(context: dg.ScheduleEvaluationContext, weir: WeirResource) -> dg.RunRequest | dg.SkipReason:
        from weir.state.commit.protocol import newest_commit

        if newest_commit(weir.settings().warehouse, supervised.id) is None:
            return dg.SkipReason(f"{supervised.id} has committed nothing yet")
        return dg.RunRequest()

    return nightly


def compaction_sensor(supervised: Supervised, job: dg.JobDefinition) -> dg.SensorDefinition:
    """Asks for a compaction once enough segments have closed since the last one, or files have gathered that it would
    merge; its cursor is the newest closed segment of that time, and when it was."""
    thresholds = supervised.thresholds

    @dg.sensor(
        name=f"{supervised.name}_compaction_due",
        job=job,
        tags=supervised.tags,
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Starts a compaction when {thresholds.closed_segments_max} segments of changelogs have "
        f"closed, or when it would leave {thresholds.spare_files_max:,} files fewer.",
    )
    def compaction_due(context: dg.SensorEvaluationContext, weir: WeirResource) -> dg.SensorResult | dg.SkipReason:
        from weir.state.changelog.rows import SEGMENT_EPOCHS
        from weir.state.commit.protocol import newest_commit

        _limit_pool(context.instance, compaction_pool(supervised))
        settings = weir.settings()
        newest = newest_commit(settings.warehouse, supervised.id)
        closed = newest.epoch // SEGMENT_EPOCHS if newest else 0
        segment, _, asked_at_s = (context.cursor or "0").partition(" ")
        if newest is None or closed < int(segment):  # a reset began anew
            return dg.SensorResult(skip_reason="nothing to compact yet", cursor=str(closed))
        new_segments, now_s = closed - int(segment), time.time()
        why = f"{new_segments} of {thresholds.closed_segments_max} segments have closed since the last one"
        if new_segments < thresholds.closed_segments_max:
            if now_s - float(asked_at_s or 0) < thresholds.cooldown_s:
                return dg.SkipReason(f"{why}; it was asked for less than {thresholds.cooldown_s:,.0f} s ago")
            spare = _spare_files(settings, supervised.id)
            why = f"{why}; it would leave {spare:,} files fewer, {thresholds.spare_files_max:,} are the limit"
            if spare < thresholds.spare_files_max:
                return dg.SkipReason(why)
        return dg.SensorResult(
            cursor=f"{closed} {now_s:.3f}",
            run_requests=[dg.RunRequest(run_key=f"{supervised.id}-{newest.state_id}", tags={REASON: why})],
        )

    return compaction_due


def _spare_files(settings: Settings, application: str) -> int:
    """How many files fewer the tables would have after a compaction."""
    from weir.state.changelog.compaction import Compaction

    is_running = ControlDatabase(settings.control_database_url).is_running(application)
    compaction = Compaction(settings.warehouse, application, is_whole=not is_running)
    return sum(report.files_before - report.files_after for report in compaction.plan(compaction.tables()))


def _limit_pool(instance: dg.DagsterInstance, pool: str) -> None:
    """One at a time, unless the instance has a limit of its own for the pool."""
    storage = instance.event_log_storage
    if all(limit.name != pool or limit.from_default for limit in storage.get_pool_limits()):
        storage.set_concurrency_slots(pool, 1)
