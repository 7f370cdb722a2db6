"""Starts a compaction when there is much to merge (closed segments of changelogs, or many small files), or when folders
in quarantine are beyond their limits."""

import time
from collections.abc import Sequence

import dagster as dg

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.orchestration.jobs.compaction import COMPACTION
from weir.orchestration.sensors.watching import Found, Look, watch
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.quarantine import clean_quarantine, cleaned_sentence
from weir.state.changelog.compaction import Compaction
from weir.state.changelog.rows import SEGMENT_EPOCHS
from weir.state.commit.protocol import newest_commit
from weir.state.storage.places import folder_at

LOOK_EVERY_S = 300
REASON = "weir/reason"
"""The tag of a run that a sensor has requested, with the reason."""


def compaction_sensor(applications: Sequence[Supervised], job: dg.JobDefinition) -> dg.SensorDefinition:
    """Its cursor is the newest closed segment at the last request, and when that was."""
    return watch(
        "compaction_due",
        compaction_due,
        applications,
        jobs=[job],
        every_s=LOOK_EVERY_S,
        description="Starts a compaction when enough segments of changelogs have closed, when it would merge away many "
        "files, or when it would delete folders in quarantine.",
    )


def compaction_due(look: Look) -> Found:
    """One request, or why there is none."""
    supervised, thresholds = look.supervised, look.supervised.thresholds
    _limit_pool(look.instance)
    newest = newest_commit(folder_at(look.settings.warehouse), look.id)
    closed = newest.epoch // SEGMENT_EPOCHS if newest else 0
    segment, _, asked_at_s = (look.cursor or "0").partition(" ")
    if newest is None or closed < int(segment):  # epochs start over after a reset
        return Found(said="nothing to compact yet", cursor=str(closed))
    new_segments, now_s = closed - int(segment), time.time()
    why = f"{new_segments} of {thresholds.closed_segments_max} segments have closed since the last compaction"
    if new_segments < thresholds.closed_segments_max:
        if now_s - float(asked_at_s or 0) < thresholds.cooldown_s:
            asked = f"{why}, which was requested less than {thresholds.cooldown_s:,.0f} s ago"
            return _clean_quarantine(supervised, look.settings) or Found(said=asked)
        spare = _spare_files(look.settings, look.database, look.id)
        why = f"{why}; the next would merge away {spare:,} files, the limit is {thresholds.spare_files_max:,}"
        if spare < thresholds.spare_files_max:
            return _clean_quarantine(supervised, look.settings) or Found(said=why)
    return Found(
        cursor=f"{closed} {now_s:.3f}",
        run_requests=[_request(supervised, f"{supervised.id}-{newest.state_id}", why)],
    )


def _request(supervised: Supervised, key: str, reason: str) -> dg.RunRequest:
    tags = {**supervised.tags, REASON: reason}
    return dg.RunRequest(run_key=key, job_name=COMPACTION, partition_key=supervised.id, tags=tags)


def _clean_quarantine(supervised: Supervised, settings: Settings) -> Found | None:
    """Request a compaction for folders in quarantine that have to go: once for the newest of them, since it may be that
    they cannot be removed."""
    cleaning = clean_quarantine(settings, supervised.id, is_dry_run=True)
    if not cleaning.removed:
        return None
    folder = cleaning.removed[-1].path.relative_to(settings.state_dir)
    return Found(run_requests=[_request(supervised, str(folder), cleaned_sentence(cleaning, is_dry_run=True))])


def _spare_files(settings: Settings, database: ControlDatabase, application: str) -> int:
    """How many files a compaction would merge away."""
    is_running = database.is_running(application)
    compaction = Compaction(folder_at(settings.warehouse), application, is_whole=not is_running)
    return sum(report.files_before - report.files_after for report in compaction.plan(compaction.tables()))


def _limit_pool(instance: dg.DagsterInstance) -> None:
    """One at a time, unless the instance has its own limit for the pool."""
    storage = instance.event_log_storage
    if all(limit.name != COMPACTION or limit.from_default for limit in storage.get_pool_limits()):
        storage.set_concurrency_slots(COMPACTION, 1)
