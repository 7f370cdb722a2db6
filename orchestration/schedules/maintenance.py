"""Schedules of maintenance: a nightly compaction and an hourly audit. Both are off until somebody switches them on."""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import (  # has no public name
    UnresolvedAssetJobDefinition as AssetJob,
)

from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.state.commit.protocol import newest_commit
from weir.state.storage.places import folder_at

HOURLY = "30 * * * *"
NIGHTLY = "0 3 * * *"


def audit_schedule(supervised: Supervised, job: AssetJob) -> dg.ScheduleDefinition:
    """Without it, the checks would see a driver that runs for weeks only when it ends."""
    return dg.ScheduleDefinition(
        name=f"{supervised.name}_hourly_audit",
        cron_schedule=HOURLY,
        job=job,
        execution_timezone="UTC",
        tags=supervised.tags,
        description="Runs the audit at half past every hour.",
    )


def compaction_schedule(supervised: Supervised, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Does nothing before the first commit."""

    @dg.schedule(
        name=f"{supervised.name}_nightly_compaction",
        cron_schedule=NIGHTLY,
        job=job,
        execution_timezone="UTC",
        tags=supervised.tags,
        description="Runs the compaction at 03:00 UTC.",
    )
    def nightly(context: dg.ScheduleEvaluationContext, weir: WeirResource) -> dg.RunRequest | dg.SkipReason:
        if newest_commit(folder_at(weir.settings().warehouse), supervised.id) is None:
            return dg.SkipReason(f"{supervised.id} has committed nothing yet")
        return dg.RunRequest()

    return nightly
