"""Schedules of maintenance: a nightly compaction and an hourly audit of all applications of a code location. Both are
off until somebody switches them on."""

from collections.abc import Iterator, Sequence

import dagster as dg

from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised, owners_of
from weir.state.commit.protocol import newest_commit
from weir.state.storage.places import folder_at

HOURLY = "30 * * * *"
NIGHTLY = "0 3 * * *"


def audit_schedule(applications: Sequence[Supervised], job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Without it, files are looked for and tasks compared only when a driver ends, which may run for weeks."""
    return _schedule(
        "hourly_audit", HOURLY, applications, job, "Runs the audit of every application at half past every hour."
    )


def compaction_schedule(applications: Sequence[Supervised], job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """One compaction after the other, as its pool allows."""
    return _schedule(
        "nightly_compaction", NIGHTLY, applications, job, "Runs the compaction of every application at 03:00 UTC."
    )


def _schedule(
    name: str, cron: str, applications: Sequence[Supervised], job: dg.JobDefinition, description: str
) -> dg.ScheduleDefinition:
    """``weir_<name>``: a run for each application that has committed something."""
    watched = [each for each in applications if name not in each.unwatched]

    @dg.schedule(
        name=f"weir_{name}",
        cron_schedule=cron,
        job=job,
        execution_timezone="UTC",
        description=description,
        owners=owners_of(applications),
    )
    def requests(context: dg.ScheduleEvaluationContext, weir: WeirResource) -> Iterator[dg.RunRequest | dg.SkipReason]:
        warehouse = folder_at(weir.settings().warehouse)
        due = [each for each in watched if newest_commit(warehouse, each.id) is not None]
        if not due:
            yield dg.SkipReason("no application has committed anything yet")
        for each in due:
            yield dg.RunRequest(run_key=each.id, partition_key=each.id, tags=each.tags)

    return requests
