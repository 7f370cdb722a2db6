"""Has a task restored whose stores are missing or differ from their changelogs, once a check has found that; and checks
made that a failed run has left (``weir.orchestration.sensors.unmade``).

What a driver notices when it opens a store or runs an epoch, it restores by itself. Flipped bytes in a row that can
still be read are found only by a comparison, which puts the task in doubt: the driver restores that, too, and is asked
to only if it has not for a while.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import dagster as dg

from weir.orchestration.checks.evaluations import newest_evaluations
from weir.orchestration.checks.state import FULL_CHECK, IN_DOUBT_ENTRY, SAMPLED_CHECK, TASK_ENTRY
from weir.orchestration.jobs.checks import checks_request, job_that_makes
from weir.orchestration.jobs.restore import RESTORE, RESTORE_OP
from weir.orchestration.sensors.unmade import unmade_requests
from weir.orchestration.sensors.watching import Found, Look, watch
from weir.orchestration.supervised import TASKS, Supervised
from weir.pipelines.operations.doubts import doubts

LOOK_EVERY_S = 10
LONGEST_WAIT_S = 3_600.0


def repair_sensor(
    applications: Sequence[Supervised], checks: Mapping[str, Sequence[dg.AssetCheckKey]], *jobs: dg.JobDefinition
) -> dg.SensorDefinition:
    """One restore, from the changelog, per failed check, and others, further and further apart, until one succeeds;
    then the check is made again. ``checks`` are those of each application, by its id; ``jobs`` are those that restore
    and those that make checks.

    The cursor is the newest failure that was restored, when a restore was last requested, and how often since.
    """

    def look_after(look: Look) -> Found:
        found = repair(look)
        return replace(found, run_requests=[*found.run_requests, *unmade_requests(look, checks[look.id])])

    return watch(
        "repair",
        look_after,
        applications,
        jobs=jobs,
        every_s=LOOK_EVERY_S,
        description="Restores a task from its changelog when a check finds that its stores differ from it, and has the "
        "check made again; has checks made that a failed run has left unmade.",
    )


def repair(look: Look) -> Found:
    """A request for the newest difference that was not restored, or why there is none."""
    supervised, cooldown_s = look.supervised, look.supervised.thresholds.cooldown_s
    checks = [dg.AssetCheckKey(supervised.ingest, name) for name in (FULL_CHECK, SAMPLED_CHECK)]
    seen, at_s, asked = [*map(int, (look.cursor or "").split()), 0, 0, 0][:3]
    failed = [
        (number, evaluation, job_that_makes(check.name))
        for check, number, evaluation in newest_evaluations(look.instance, checks)
        if number > seen and not evaluation.passed and TASK_ENTRY in evaluation.metadata
    ]
    if not failed:
        return Found(said="no check has found a new difference")
    newest, found, _ = max(failed, key=lambda each: each[0])
    task = str(found.metadata[TASK_ENTRY].value)
    doubt = next((each for each in doubts(look.settings, supervised.id) if each.task == task), None)
    was_in_doubt = IN_DOUBT_ENTRY in found.metadata and found.metadata[IN_DOUBT_ENTRY].value
    run = look.requested_run(f"{supervised.id}-{newest}-{asked}")
    if doubt is None and (was_in_doubt or (run is not None and run.is_success)):
        again = [
            checks_request(supervised, job, f"{supervised.id}-{newest}-{job}")
            for job in sorted({made_by for _, _, made_by in failed})
        ]
        return Found(cursor=f"{newest} {at_s} 0", run_requests=again)
    if run is not None and not run.is_finished:
        return Found(said=f"run {run.run_id} restores task {task}")
    if look.status is None or look.status.has_ended:
        return Found(said=f"task {task} will be restored when a driver of {supervised.id} is running")
    wait_s = max(cooldown_s, min(cooldown_s * 2 ** max(0, asked - 1), LONGEST_WAIT_S))
    if time.time() - at_s < wait_s:
        return Found(said=f"task {task} differs; the last restore was requested less than {wait_s:,.0f} s ago")
    if doubt is not None and time.time() - doubt.found_at_s < wait_s:
        return Found(said=f"the driver restores task {task}, and is asked to if it has not after {wait_s:,.0f} s")
    request = dg.RunRequest(
        run_key=f"{supervised.id}-{newest}-{asked + 1}",
        job_name=RESTORE,
        partition_key=supervised.partition(task),
        tags=supervised.tags,
        run_config={
            "ops": {RESTORE_OP: {"config": {"from_changelog": True, "reason": found.description or "a check failed"}}}
        },
    )
    return Found(
        run_requests=[request],
        cursor=f"{seen} {time.time():.0f} {asked + 1}",
        partitions=[TASKS.build_add_request([supervised.partition(task)])],  # else the request might name none
    )
