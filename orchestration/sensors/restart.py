"""Restarts an ingest whose driver or run worker was killed: marks its run failed and starts the next one.

A killed driver leaves its lease behind. If the run worker or the step's process was killed, the driver has noticed,
committed and ended, but the step has not said how; Dagster may still show that run as running. Runs that were
terminated, runs that failed with an error of their own, and drivers that no run started are left alone. A driver that
is killed again and again is restarted after growing pauses: none before the first restart, then
``Thresholds.restart_pause_s``, then twice as long each time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import dagster as dg
from dagster._core.executor.child_process_executor import ChildProcessCrashException  # has no public name

from weir.infra.control import ApplicationStatus, ControlDatabase, this_host
from weir.orchestration.assets.ingest import ingest_op
from weir.orchestration.drivers.dagster_run import run_of
from weir.orchestration.resources import WeirResource
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
KILLED = (ChildProcessCrashException.__name__, dg.DagsterExecutionInterruptedError.__name__)
"""The errors of a step that was killed, or whose run worker was; a run that somebody terminated is canceled instead."""
UNFINISHED = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED)
MOST_DOUBLINGS = 30


def restart_sensor(supervised: Supervised) -> dg.SensorDefinition:
    """One new run for each driver that was killed. The cursor counts consecutive ones that made no progress."""
    thresholds = supervised.thresholds
    selection = dg.AssetSelection.assets(supervised.ingest, *supervised.tables.values()).without_checks()

    @dg.sensor(
        name=f"{supervised.name}_succession",
        asset_selection=selection,
        tags=supervised.tags,
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Restarts the ingest with the same configuration when its driver or run worker was killed.",
    )
    def restart(context: dg.SensorEvaluationContext, weir: WeirResource) -> dg.SensorResult | dg.SkipReason:
        settings = weir.settings()
        database = ControlDatabase(settings.control_database_url)
        driver = database.application_status(supervised.id, of_driver=True)
        run_id = run_of(driver.owner) if driver else None
        if driver is None or run_id is None or not has_ended(driver, time.time()):
            return dg.SkipReason("no driver of a Dagster run has ended")
        run = context.instance.get_run_by_id(run_id)
        if run is None:
            return dg.SkipReason(f"{driver.owner} is unknown to this Dagster instance")
        if run.status in UNFINISHED:
            gone_s = abs(time.time() - (driver.ended_at_ms or driver.heartbeat_at_ms) / 1000)
            if gone_s < REPORT_LIMIT_S:
                return dg.SkipReason(f"{driver.owner} has {REPORT_LIMIT_S:.0f} s to report its driver's end")
            if not _was_cut_short(context.instance, run.run_id, ingest_op(supervised)):
                return dg.SkipReason(f"{driver.owner} has reported its driver's end and is running its other steps")
            context.instance.report_run_failed(run, _failure(driver))
        elif run.status != dg.DagsterRunStatus.FAILURE or not (
            driver.state == "dead" or _was_cut_short(context.instance, run.run_id, ingest_op(supervised))
        ):
            return dg.SkipReason(f"{driver.owner} has ended: {run.status.value.lower()}, driver {driver.state}")
        holder = database.application_status(supervised.id)
        if holder is not None and holder.is_running:
            return dg.SkipReason(f"{holder.owner} holds the lease; the next run starts when that is released")
        name, now_s = f"{driver.started_at_ms}-{driver.pid}", time.time()
        is_steady = made_progress(
            driver, newest_commit(folder_at(settings.warehouse), supervised.id), thresholds.restart_steady_s
        )
        backoff = Backoff.from_cursor(context.cursor).with_death(name, made_progress=is_steady, now_s=now_s)
        if now_s < backoff.next_start_s(thresholds):
            return dg.SensorResult(
                skip_reason=_pause(driver, backoff, backoff.next_start_s(thresholds), now_s), cursor=backoff.cursor
            )
        return dg.SensorResult(
            cursor=backoff.cursor,
            run_requests=[
                dg.RunRequest(
                    run_key=f"{supervised.id}-{name}",
                    tags=supervised.tags,
                    run_config=_ingest_config(supervised, run.run_config),
                )
            ],
        )

    return restart


@dataclass(frozen=True)
class Backoff:
    """How many drivers in a row have died without progress; the sensor keeps it as its cursor."""

    life: str = ""
    """The newest of them: when it was started, and its process id."""
    count: int = 0
    seen_s: float = 0.0
    """When its death was noticed, in seconds since 1970."""

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


def _was_cut_short(instance: dg.DagsterInstance, run_id: str, step: str) -> bool:
    """Whether the step's process was killed, alone or with the run worker, and so could not say how it ended."""
    ends = [
        entry.get_dagster_event()
        for entry in instance.all_logs(
            run_id, of_type={dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_FAILURE}
        )
    ]
    for event in ends:
        if event.step_key == step:
            error = event.step_failure_data.error if event.is_step_failure else None
            return error is not None and error.cls_name in KILLED
    return True


def _failure(driver: ApplicationStatus) -> str:
    return (
        f"the run worker ended without reporting; its driver {_end(driver)}. The next run resumes from the last commit"
    )


def _pause(driver: ApplicationStatus, backoff: Backoff, next_start_s: float, now_s: float) -> str:
    at = time.strftime("%H:%M:%S UTC", time.gmtime(next_start_s))
    return (
        f"{backoff.count} consecutive drivers died without progress; the next start is at {at}, in "
        f"{next_start_s - now_s:.0f} s. The last one {_end(driver)}"
    )


def _end(driver: ApplicationStatus) -> str:
    how = "was killed" if driver.state == "dead" else f"ended ({driver.state}) with everything committed"
    return f"(process {driver.pid} on {driver.host}) {how}"


def _ingest_config(supervised: Supervised, config: Mapping[str, Any]) -> dict[str, Any]:
    """The ingest's part of the ended run's configuration; other assets are not part of the next run."""
    op = ingest_op(supervised)
    return {"ops": {op: config["ops"][op]}} if op in config.get("ops", {}) else {}
