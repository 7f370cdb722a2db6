"""Has checks made that a failed run was to make: Dagster shows them as failed until they are, also while a driver that
was started otherwise does well."""

from __future__ import annotations

import time
from collections.abc import Sequence

import dagster as dg

from weir.orchestration.checks.evaluations import planned_by
from weir.orchestration.jobs.checks import checks_request, job_that_makes
from weir.orchestration.runs import is_of
from weir.orchestration.sensors.watching import Look
from weir.state.commit.protocol import newest_commit
from weir.state.storage.places import folder_at

REMEMBERED_S = 7 * 86_400.0
"""Runs that failed longer ago are left as they are."""


def unmade_requests(look: Look, checks: Sequence[dg.AssetCheckKey]) -> list[dg.RunRequest]:
    """One request per job and failed run, once a driver is at work and has committed."""
    if look.status is None or not look.status.is_running:
        return []
    failed = look.tick.failed_runs(time.time() - REMEMBERED_S)
    ids = {each.dagster_run.run_id for each in failed if is_of(look.supervised, each.dagster_run)}
    left = planned_by(look.instance, checks, ids) if ids else {}
    if not left or newest_commit(folder_at(look.settings.warehouse), look.id) is None:
        return []
    newest = {job_that_makes(key.name): number for key, number in sorted(left.items(), key=lambda each: each[1])}
    keys = {job: f"{look.id}-{number}-left-{job}" for job, number in newest.items()}
    return [
        checks_request(look.supervised, job, key)
        for job, key in sorted(keys.items())
        if look.requested_run(key) is None
    ]
