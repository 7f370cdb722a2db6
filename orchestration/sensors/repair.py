"""Restores a task whose stores are missing or differ from their changelogs, once a check has found that.

What a driver notices when it opens a store or runs an epoch, it restores by itself; flipped bytes in a row that can
still be read are found only by a comparison.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import dagster as dg

from weir.orchestration.checks.state import FULL_CHECK, SAMPLED_CHECK, TASK_ENTRY
from weir.orchestration.jobs.restore import restore_name, restore_op
from weir.orchestration.sensors.watching import Found, Look, watch
from weir.orchestration.supervised import Supervised

LOOK_EVERY_S = 10


def repair_sensor(applications: Sequence[Supervised], jobs: Sequence[dg.JobDefinition]) -> dg.SensorDefinition:
    """One restore, from the changelog, per failed check. The cursor is the newest failure that was handled, and
    when. ``jobs`` are the restores of all ``applications``."""
    return watch(
        "repair",
        repair,
        applications,
        jobs=jobs,
        every_s=LOOK_EVERY_S,
        description="Restores a task from its changelog when a check finds that its stores differ from it.",
    )


def repair(look: Look) -> Found:
    """A request for the newest difference that no restore was requested for."""
    supervised, cooldown_s = look.supervised, look.supervised.thresholds.cooldown_s
    checks = [dg.AssetCheckKey(supervised.ingest, name) for name in (FULL_CHECK, SAMPLED_CHECK)]
    seen, _, at_s = (look.cursor or "0 0").partition(" ")
    records = look.instance.event_log_storage.get_latest_asset_check_execution_by_key(checks)
    failed = [
        (record.id, record.evaluation)
        for record in records.values()  # some are only planned, not evaluated
        if record.id > int(seen)
        and isinstance(record.evaluation, dg.AssetCheckEvaluation)
        and not record.evaluation.passed
        and TASK_ENTRY in record.evaluation.metadata
    ]
    if not failed:
        return Found(said="no check has found a new difference")
    newest, found = max(failed, key=lambda each: each[0])
    task = str(found.metadata[TASK_ENTRY].value)
    if not look.database.is_running(supervised.id):
        return Found(said=f"task {task} will be restored when a driver of {supervised.id} is running")
    if time.time() - float(at_s) < cooldown_s:
        return Found(said=f"task {task} differs; the last restore is less than {cooldown_s:,.0f} s ago")
    request = dg.RunRequest(
        run_key=f"{supervised.id}-{newest}",
        job_name=restore_name(supervised),
        partition_key=task,
        tags=supervised.tags,
        run_config={
            "ops": {
                restore_op(supervised): {
                    "config": {"from_changelog": True, "reason": found.description or "a check failed"}
                }
            }
        },
    )
    return Found(run_requests=[request], cursor=f"{newest} {time.time():.0f}")
