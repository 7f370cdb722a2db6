"""Restarts an ingest whose driver or run worker was killed: marks its run failed and starts the next one.

A killed driver leaves its lease behind. If the run worker or the step's process was killed, the driver has noticed,
committed and ended, but the step has not said how; Dagster may still show that run as running. A run that was started
for such a driver and failed, or was killed, before its own driver began is followed by another. Runs that were
terminated, runs that failed with an error of their own, and drivers that no run started are left alone. A driver that
is killed again and again is restarted after growing pauses: none before the first restart, then
``Thresholds.restart_pause_s``, then twice as long each time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME  # has no public name
from dagster._core.definitions.unresolved_asset_job_definition import (  # has no public name
    UnresolvedAssetJobDefinition as AssetJob,
)

from weir.infra.control import ApplicationStatus, this_host
from weir.orchestration.assets.ingest import ACCEPTED
from weir.orchestration.checks.killed import was_cut_short
from weir.orchestration.drivers.dagster_run import run_of
from weir.orchestration.sensors.watching import Found, Look, watch
from weir.orchestration.sensors.workers import UNFINISHED, has_finished
from weir.orchestration.supervised import Supervised
from weir.orchestration.thresholds import Thresholds
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.storage.places import folder_at

LOOK_EVERY_S = 5
REPORT_LIMIT_S = 10.0
"""How long a run may take to report and finish after its driver has ended; its driver reports in a second or two."""
SILENT_MAX_S = 300.0
"""A driver on another host counts as ended after this long without a heartbeat."""
MOST_DOUBLINGS = 30


def restart_sensor(applications: Sequence[Supervised], jobs: Sequence[AssetJob]) -> dg.SensorDefinition:
    """One new run for each driver that was killed, and for each such run that failed before its driver began.

    The cursor counts consecutive lives and runs without progress. ``jobs`` are the ingests of all ``applications``.
    """
    return watch(
        "succession",
        restart,
        applications,
        jobs=jobs,
        every_s=LOOK_EVERY_S,
        description="Restarts an ingest with the same configuration and selection when its driver or run worker was "
        "killed.",
    )


def restart(look: Look) -> Found:
    """A request for the next run, or why there is none."""
    driver = look.driver
    run_id = run_of(driver.owner) if driver else None
    if driver is None or run_id is None or not has_ended(driver, time.time()):
        return Found(said="no driver of a Dagster run has ended")
    run, backoff = look.instance.get_run_by_id(run_id), Backoff.from_cursor(look.cursor)
    if run is None:
        return Found(said=f"{driver.owner} is unknown to this Dagster instance")
    failed = [run]
    life = f"{driver.started_at_ms}-{driver.pid}"
    if backoff.life != life:
        if said := _is_no_case_of_ours(look, driver, run):
            return Found(said=said)
        newest = newest_commit(folder_at(look.settings.warehouse), look.id)
        is_steady = made_progress(driver, newest, look.supervised.thresholds.restart_steady_s)
        backoff = backoff.with_death(life, made_progress=is_steady, now_s=time.time())
    elif (next_run := look.requested_run(backoff.run_key(look.id))) is not None:
        if next_run.is_finished and next_run.status != dg.DagsterRunStatus.FAILURE:
            return Found(said=f"its next run {next_run.run_id} has ended: {next_run.status.value.lower()}")
        if not next_run.is_finished:
            return Found(said=f"its next run {next_run.run_id} has begun: {next_run.status.value.lower()}")
        failed.append(next_run)
        backoff = backoff.with_failed_run(now_s=time.time())
    holder = look.database.application_status(look.id)
    if holder is not None and holder.is_running:
        return Found(said=f"{holder.owner} holds the lease; the next run starts when that is released")
    now_s, next_start_s = time.time(), backoff.next_start_s(look.supervised.thresholds)
    if now_s < next_start_s:
        return Found(said=_pause(driver, backoff, next_start_s, now_s), cursor=backoff.cursor)
    for each in failed:  # a step that was killed keeps its slot in the pool, for which the next run would wait
        look.instance.event_log_storage.free_concurrency_slots_for_run(each.run_id)
    return Found(cursor=backoff.cursor, run_requests=[_next_run(look.supervised, run, backoff)])


def _is_no_case_of_ours(look: Look, driver: ApplicationStatus, run: dg.DagsterRun) -> str | None:
    """Why a driver that has ended needs no other one, or not yet; a run whose worker was killed is marked failed."""
    step = look.supervised.ingest_op
    if run.status in UNFINISHED:
        gone_s = abs(time.time() - (driver.ended_at_ms or driver.heartbeat_at_ms) / 1000)
        if gone_s < REPORT_LIMIT_S:
            return f"{driver.owner} has {REPORT_LIMIT_S:.0f} s to report its driver's end"
        if not was_cut_short(look.instance, run.run_id, step):
            return f"{driver.owner} has reported its driver's end and is running its other steps"
        if has_finished(look.instance, run):
            return f"{driver.owner} has just ended"
        look.instance.report_run_failed(run, _failure(driver))
    elif run.status != dg.DagsterRunStatus.FAILURE or not (
        driver.state == "dead" or was_cut_short(look.instance, run.run_id, step)
    ):
        return f"{driver.owner} has ended: {run.status.value.lower()}, driver {driver.state}"
    return None


def _next_run(supervised: Supervised, run: dg.DagsterRun, backoff: Backoff) -> dg.RunRequest:
    """A run of the ingest's job with the same configuration, but for losses that were accepted for that start, and the
    same selection of what the ingest produces.

    A sensor can request runs of Dagster's implicit job only if it can request no others, so what was launched there
    goes on in the ingest's job. Other assets that the run had are left out, and so are checks: the audit makes them.
    """
    of_run: Mapping[str, Any] = run.run_config
    ops = of_run.get("ops", {})
    own = (supervised.ingest_job, f"{supervised.name}_continuously")  # the second as the job was called
    # Dagster takes a job's own configuration of ops whole, or not at all: where the run has one for the op, the op's
    # default of until_caught_up held, which is True
    is_endless = supervised.ingest_op not in ops and run.job_name in own
    of_ingest = ops.get(supervised.ingest_op, {}).get("config", {})
    taken = {name: value for name, value in of_ingest.items() if name not in ACCEPTED}
    config = {"until_caught_up": not is_endless, **taken}
    # all jobs here share resources; that of somebody else's may have an executor of its own
    sections = ("resources", "execution") if run.job_name in (*own, IMPLICIT_ASSET_JOB_NAME) else ("resources",)
    kept = {section: of_run[section] for section in sections if of_run.get(section)}
    selected = [key for key in supervised.produced if key in (run.asset_selection or ())]
    is_part = 0 < len(selected) < len(supervised.produced)
    return dg.RunRequest(
        run_key=backoff.run_key(supervised.id),
        job_name=supervised.ingest_job,
        tags=supervised.tags,
        run_config={**kept, "ops": {supervised.ingest_op: {"config": config}}},
        asset_selection=selected if is_part else None,
        asset_check_keys=[] if is_part else None,  # None would add those of the selected assets to the job's run
    )


@dataclass(frozen=True)
class Backoff:
    """How many drivers and runs in a row have died without progress; the sensor keeps it as its cursor."""

    life: str = ""
    """The newest of them: when it was started, and its process id."""
    count: int = 0
    seen_s: float = 0.0
    """When its death, or that of the newest run for it, was noticed, in seconds since 1970."""
    attempt: int = 1
    """Which run is to go on for it: those before failed before their drivers had begun."""

    @classmethod
    def from_cursor(cls, cursor: str | None) -> Backoff:
        return cls(**json.loads(cursor)) if cursor else cls()

    @property
    def cursor(self) -> str:
        return json.dumps(asdict(self))

    def with_death(self, life: str, *, made_progress: bool, now_s: float) -> Backoff:
        """Count one more death, unless it is counted already; a driver that made progress starts a new count."""
        if life == self.life:
            return self
        return Backoff(life, 1 if made_progress else self.count + 1, now_s)

    def with_failed_run(self, *, now_s: float) -> Backoff:
        """Count a run that failed before its driver had begun."""
        return replace(self, count=self.count + 1, seen_s=now_s, attempt=self.attempt + 1)

    def run_key(self, application: str) -> str:
        """Under which Dagster starts one run."""
        return f"{application}-{self.life}-{self.attempt}"

    def next_start_s(self, thresholds: Thresholds) -> float:
        """When to start the next driver, in seconds since 1970."""
        if self.count <= 1:
            return self.seen_s
        pause_s = thresholds.restart_pause_s * 2.0 ** min(self.count - 2, MOST_DOUBLINGS)
        return self.seen_s + min(pause_s, thresholds.restart_pause_max_s)


def made_progress(driver: ApplicationStatus, newest: CommitRecord | None, steady_s: float) -> bool:
    """Whether a driver that has ended still committed ``steady_s`` after its start, or had nothing to commit then."""
    well_ms = 0 if newest is None else newest.at_ms
    metric = driver.metric
    if metric is not None and metric.lag == 0 and metric.epoch == metric.committed_epoch:
        well_ms = max(well_ms, metric.at_ms)
    return well_ms - driver.started_at_ms >= steady_s * 1000


def has_ended(driver: ApplicationStatus, now_s: float) -> bool:
    """Whether the driver has released its lease or its process is gone. One that is silent during a long epoch has
    done neither."""
    if driver.ended_at_ms is not None and driver.state != "dead":
        return True
    if driver.host == this_host():
        return not driver.has_process
    return abs(now_s - driver.heartbeat_at_ms / 1000) > SILENT_MAX_S  # in the future: the clock went back since


def _failure(driver: ApplicationStatus) -> str:
    return (
        f"the run worker ended without reporting; its driver {_end(driver)}. The next run resumes from the last commit"
    )


def _pause(driver: ApplicationStatus, backoff: Backoff, next_start_s: float, now_s: float) -> str:
    at = time.strftime("%H:%M:%S UTC", time.gmtime(next_start_s))
    return (
        f"{backoff.count} consecutive drivers or runs died without progress; the next start is at {at}, in "
        f"{next_start_s - now_s:.0f} s. The last one {_end(driver)}"
    )


def _end(driver: ApplicationStatus) -> str:
    how = "was killed" if driver.state == "dead" else f"ended ({driver.state}) with everything committed"
    return f"(process {driver.pid} on {driver.host}) {how}"
