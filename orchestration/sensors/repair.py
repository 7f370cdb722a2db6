"""Restores a task whose stores are missing or differ from their changelogs, once a check has found that.

What a driver notices when it opens a store or runs an epoch, it restores by itself; flipped bytes in a row that can
still be read are found only by a comparison.
"""

from __future__ import annotations

import time

import dagster as dg

from weir.infra.control import ControlDatabase
from weir.orchestration.checks.state import FULL_CHECK, SAMPLED_CHECK, TASK_ENTRY
from weir.orchestration.jobs.restore import restore_op
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised

LOOK_EVERY_S = 30


def repair_sensor(supervised: Supervised, job: dg.JobDefinition) -> dg.SensorDefinition:
    """One restore, from the changelog, per failed check. The cursor is the newest failure that was handled, and
    when."""
    cooldown_s = supervised.thresholds.cooldown_s
    checks = [dg.AssetCheckKey(supervised.ingest, name) for name in (FULL_CHECK, SAMPLED_CHECK)]

    @dg.sensor(
        name=f"{supervised.name}_repair",
        job=job,
        tags=supervised.tags,
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Restores a task from its changelog when a check finds that its stores differ from it.",
    )
    def repair(context: dg.SensorEvaluationContext, weir: WeirResource) -> dg.SensorResult | dg.SkipReason:
        seen, _, at_s = (context.cursor or "0 0").partition(" ")
        records = context.instance.event_log_storage.get_latest_asset_check_execution_by_key(checks)
        failed = [
            (record.id, record.evaluation)
            for record in records.values()  # some are only planned, not evaluated
            if record.id > int(seen)
            and isinstance(record.evaluation, dg.AssetCheckEvaluation)
            and not record.evaluation.passed
            and TASK_ENTRY in record.evaluation.metadata
        ]
        if not failed:
            return dg.SkipReason("no check has found a new difference")
        newest, found = max(failed, key=lambda each: each[0])
        task = str(found.metadata[TASK_ENTRY].value)
        if not ControlDatabase(weir.settings().control_database_url).is_running(supervised.id):
            return dg.SkipReason(f"task {task} will be restored when a driver of {supervised.id} is running")
        if time.time() - float(at_s) < cooldown_s:
            return dg.SkipReason(f"task {task} differs; the last restore is less than {cooldown_s:,.0f} s ago")
        request = dg.RunRequest(
            run_key=f"{supervised.id}-{newest}",
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
        return dg.SensorResult(run_requests=[request], cursor=f"{newest} {time.time():.0f}")

    return repair
