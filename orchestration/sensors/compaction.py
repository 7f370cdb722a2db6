"""Starts a compaction when there is much to merge (closed segments of changelogs, or many small files), or when folders
in quarantine are beyond their limits."""

import time

import dagster as dg

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.orchestration.jobs.compaction import compaction_pool
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.quarantine import clean_quarantine, cleaned_sentence
from weir.state.changelog.compaction import Compaction
from weir.state.changelog.rows import SEGMENT_EPOCHS
from weir.state.commit.protocol import newest_commit
from weir.state.storage.places import folder_at

LOOK_EVERY_S = 300
REASON = "weir/reason"
"""The tag of a run that a sensor has requested, with the reason."""


def compaction_sensor(supervised: Supervised, job: dg.JobDefinition) -> dg.SensorDefinition:
    """Its cursor is the newest closed segment at the last request, and when that was."""
    thresholds = supervised.thresholds

    @dg.sensor(
        name=f"{supervised.name}_compaction_due",
        job=job,
        tags=supervised.tags,
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Starts a compaction when {thresholds.closed_segments_max} segments of changelogs have "
        f"closed, when it would merge away {thresholds.spare_files_max:,} files, or when it would delete folders in "
        "quarantine.",
    )
    def compaction_due(context: dg.SensorEvaluationContext, weir: WeirResource) -> dg.SensorResult | dg.SkipReason:
        _limit_pool(context.instance, compaction_pool(supervised))
        settings = weir.settings()
        newest = newest_commit(folder_at(settings.warehouse), supervised.id)
        closed = newest.epoch // SEGMENT_EPOCHS if newest else 0
        segment, _, asked_at_s = (context.cursor or "0").partition(" ")
        if newest is None or closed < int(segment):  # epochs start over after a reset
            return dg.SensorResult(skip_reason="nothing to compact yet", cursor=str(closed))
        new_segments, now_s = closed - int(segment), time.time()
        why = f"{new_segments} of {thresholds.closed_segments_max} segments have closed since the last compaction"
        if new_segments < thresholds.closed_segments_max:
            if now_s - float(asked_at_s or 0) < thresholds.cooldown_s:
                asked = f"{why}, which was requested less than {thresholds.cooldown_s:,.0f} s ago"
                return _clean_quarantine(supervised, settings, context.cursor) or dg.SkipReason(asked)
            spare = _spare_files(settings, supervised.id)
            why = f"{why}; the next would merge away {spare:,} files, the limit is {thresholds.spare_files_max:,}"
            if spare < thresholds.spare_files_max:
                return _clean_quarantine(supervised, settings, context.cursor) or dg.SkipReason(why)
        return dg.SensorResult(
            cursor=f"{closed} {now_s:.3f}",
            run_requests=[dg.RunRequest(run_key=f"{supervised.id}-{newest.state_id}", tags={REASON: why})],
        )

    return compaction_due


def _clean_quarantine(supervised: Supervised, settings: Settings, cursor: str | None) -> dg.SensorResult | None:
    """Request a compaction for folders in quarantine that have to go: once for the newest of them, since it may be that
    they cannot be removed."""
    cleaning = clean_quarantine(settings, supervised.id, is_dry_run=True)
    if not cleaning.removed:
        return None
    folder = cleaning.removed[-1].path.relative_to(settings.state_dir)
    tags = {REASON: cleaned_sentence(cleaning, is_dry_run=True)}
    return dg.SensorResult(cursor=cursor, run_requests=[dg.RunRequest(run_key=str(folder), tags=tags)])


def _spare_files(settings: Settings, application: str) -> int:
    """How many files a compaction would merge away."""
    is_running = ControlDatabase(settings.control_database_url).is_running(application)
    compaction = Compaction(folder_at(settings.warehouse), application, is_whole=not is_running)
    return sum(report.files_before - report.files_after for report in compaction.plan(compaction.tables()))


def _limit_pool(instance: dg.DagsterInstance, pool: str) -> None:
    """One at a time, unless the instance has its own limit for the pool."""
    storage = instance.event_log_storage
    if all(limit.name != pool or limit.from_default for limit in storage.get_pool_limits()):
        storage.set_concurrency_slots(pool, 1)
