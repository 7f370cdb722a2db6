"""Compaction from Dagster: a job, a nightly schedule, and a sensor that asks for it when enough segments have closed.

What is merged and how is ``state.changelog.compaction``; the job makes the call of ``weir compact``.
"""

import dagster as dg

from orchestration.resources import WeirResource
from orchestration.supervised import Supervised
from pipelines.cli.compact import compact_application
from pipelines.cli.options import CommandError

LOOK_EVERY_S = 300
NIGHTLY = "0 3 * * *"
SHOWN = ("files_before", "files_after", "rows_before", "rows_after", "bytes_before", "bytes_after", "files_deleted")


class CompactionConfig(dg.Config):
    """What to compact."""

    store: str | None = None
    """Only this store's changelog; everything when left out."""
    dry_run: bool = False
    """Show what would change; change nothing."""


def compaction_pool(supervised: Supervised) -> str:
    """Holds back a second compaction of the application; the sensor sets its limit to one."""
    return f"{supervised.name}_compaction"


def compaction_job(supervised: Supervised) -> dg.JobDefinition:
    """``<app>_compaction``: merges files of changelogs, outputs and the commit log, and vacuums."""

    @dg.op(name=f"{supervised.name}_compact", pool=compaction_pool(supervised))
    def compact(context: dg.OpExecutionContext, config: CompactionConfig, weir: WeirResource) -> None:
        settings, told = weir.settings(), ""

        def on_progress(done: int, total: int, table: str) -> None:
            nonlocal told
            if table != told:
                told = table
                context.log.info("%s: %d rows to merge", table, total)

        try:
            compacted = compact_application(settings, supervised.id, store=config.store, is_dry_run=config.dry_run,
                                            on_progress=on_progress)
        except CommandError as error:
            raise dg.Failure(str(error), allow_retries=False) from None
        context.add_output_metadata({
            "is_dry_run": config.dry_run, "is_running": compacted.is_running,
            "tables": dg.MetadataValue.table([dg.TableRecord({"table": report.table, **{
                name: getattr(report, name) for name in SHOWN}}) for report in compacted.reports])})
        for report in () if config.dry_run else compacted.reports:
            if report.table in supervised.tables:
                context.log_event(dg.AssetObservation(
                    supervised.tables[report.table], description="compacted",
                    metadata={name: getattr(report, name) for name in SHOWN}))

    @dg.job(name=f"{supervised.name}_compaction", tags=supervised.tags,
            description="Merge the files of changelogs, outputs and the commit log, beside a running driver too.")
    def job() -> None:
        compact()

    return job


def compaction_schedule(supervised: Supervised, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Every night, once switched on; nothing happens before the first commit."""

    @dg.schedule(name=f"{supervised.name}_nightly_compaction", cron_schedule=NIGHTLY, job=job,
                 execution_timezone="UTC", description="Compacts at three in the night, UTC.")
    def nightly(context: dg.ScheduleEvaluationContext, weir: WeirResource) -> dg.RunRequest | dg.SkipReason:
        from state.commit.protocol import newest_commit

        if newest_commit(weir.settings().warehouse, supervised.id) is None:
            return dg.SkipReason(f"{supervised.id} has committed nothing yet")
        return dg.RunRequest()

    return nightly


def compaction_sensor(supervised: Supervised, job: dg.JobDefinition) -> dg.SensorDefinition:
    """Asks for a compaction once enough segments have closed since the last one; the cursor is the newest of those."""
    closed_segments_max = supervised.thresholds.closed_segments_max

    @dg.sensor(name=f"{supervised.name}_compaction_due", job=job, minimum_interval_seconds=LOOK_EVERY_S,
               default_status=dg.DefaultSensorStatus.RUNNING,
               description=f"Starts a compaction when {closed_segments_max} segments of changelogs have closed.")
    def compaction_due(context: dg.SensorEvaluationContext, weir: WeirResource) -> dg.SensorResult | dg.SkipReason:
        from state.changelog.rows import SEGMENT_EPOCHS
        from state.commit.protocol import newest_commit

        _limit_pool(context.instance, compaction_pool(supervised))
        newest = newest_commit(weir.settings().warehouse, supervised.id)
        closed = newest.epoch // SEGMENT_EPOCHS if newest else 0
        known = int(context.cursor or 0)
        if newest is None or closed < known:  # a reset began anew
            return dg.SensorResult(skip_reason="nothing to compact yet", cursor=str(closed))
        if closed - known < closed_segments_max:
            return dg.SkipReason(f"{closed - known} of {closed_segments_max} segments have closed since the last one")
        return dg.SensorResult(run_requests=[dg.RunRequest(run_key=f"{supervised.id}-{newest.state_id}")],
                               cursor=str(closed))

    return compaction_due


def _limit_pool(instance: dg.DagsterInstance, pool: str) -> None:
    """One at a time, unless the instance has a limit of its own for the pool."""
    storage = instance.event_log_storage
    if all(limit.name != pool or limit.from_default for limit in storage.get_pool_limits()):
        storage.set_concurrency_slots(pool, 1)
