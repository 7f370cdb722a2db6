"""Sees to it that an ingest whose driver or run worker was killed is marked failed and goes on in a new run.

A driver that was killed leaves its lease behind. Where the run worker or the step's process was killed, the driver has
noticed, committed and ended, and the step has not said how; Dagster may take the run for running then. Runs that were
terminated, that failed by an error of their own, and drivers that no run started are left alone. One that is killed
again and again is started after growing pauses (``weir.orchestration.deaths``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster._core.executor.child_process_executor import ChildProcessCrashException  # has no public name

from weir.infra.control import ApplicationStatus, ControlDatabase, this_host
from weir.orchestration.deaths import Deaths, has_got_on
from weir.orchestration.ingest import ingest_op
from weir.orchestration.owner import run_of
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised

LOOK_EVERY_S = 5
REPORT_LIMIT_S = 10.0
"""How long after its driver's end a run may take to report and finish; its driver reports in a second or two."""
SILENT_MAX_S = 300.0
"""A driver on another host counts as ended after so long without a heartbeat."""
KILLED = (ChildProcessCrashException.__name__, dg.DagsterExecutionInterruptedError.__name__)
"""What a step says that was killed, or whose run worker was; a run that somebody terminated is canceled, not failed."""
UNFINISHED = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED)


def succession_sensor(supervised: Supervised) -> dg.SensorDefinition:
    """One new run for each life of a driver that ended by a kill; its cursor counts those that came to nothing."""
    thresholds = supervised.thresholds
    selection = dg.AssetSelection.assets(supervised.ingest, *supervised.tables.values()).without_checks()

    @dg.sensor(
        name=f"{supervised.name}_succession",
        asset_selection=selection,
        tags=supervised.tags,
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Starts the ingest again, as it was configured, when its driver or run worker was killed.",
    )
    def succession(context: dg.SensorEvaluationContext, weir: WeirResource) -> dg.SensorResult | dg.SkipReason:
        from weir.state.commit.protocol import newest_commit

        settings = weir.settings()
        database = ControlDatabase(settings.control_database_url)
        life = database.application_status(supervised.id, of_driver=True)
        run_id = run_of(life.owner) if life else None
        if life is None or run_id is None or not has_ended(life, time.time()):
            return dg.SkipReason("no driver of a Dagster run has ended")
        run = context.instance.get_run_by_id(run_id)
        if run is None:
            return dg.SkipReason(f"{life.owner} is not on record here")
        if run.status in UNFINISHED:
            gone_s = time.time() - (life.ended_at_ms or life.heartbeat_at_ms) / 1000
            if gone_s < REPORT_LIMIT_S:
                return dg.SkipReason(f"{life.owner} has {REPORT_LIMIT_S:.0f} s to report its driver's end")
            if not _was_cut_short(context.instance, run.run_id, ingest_op(supervised)):
                return dg.SkipReason(f"{life.owner} has reported its driver's end and goes on with its other steps")
            context.instance.report_run_failed(run, _reason(life))
        elif run.status != dg.DagsterRunStatus.FAILURE or not (
            life.state == "dead" or _was_cut_short(context.instance, run.run_id, ingest_op(supervised))
        ):
            return dg.SkipReason(f"{life.owner} has ended: {run.status.value.lower()}, driver {life.state}")
        holder = database.application_status(supervised.id)
        if holder is not None and holder.is_running:
            return dg.SkipReason(f"{holder.owner} holds the lease; the next run starts when it is done")
        name, now_s = f"{life.started_at_ms}-{life.pid}", time.time()
        is_steady = has_got_on(life, newest_commit(settings.warehouse, supervised.id), thresholds.restart_steady_s)
        deaths = Deaths.of(context.cursor).with_life(name, has_got_on=is_steady, now_s=now_s)
        if now_s < deaths.next_start_s(thresholds):
            return dg.SensorResult(
                skip_reason=_pause(life, deaths, deaths.next_start_s(thresholds), now_s), cursor=deaths.cursor
            )
        return dg.SensorResult(
            cursor=deaths.cursor,
            run_requests=[
                dg.RunRequest(
                    run_key=f"{supervised.id}-{name}",
                    tags=supervised.tags,
                    run_config=_ingest_config(supervised, run.run_config),
                )
            ],
        )

    return succession


def has_ended(life: ApplicationStatus, now_s: float) -> bool:
    """Whether the driver gave its lease back or is no more. One that is silent over a long epoch is neither."""
    if life.ended_at_ms is not None and life.state != "dead":
        return True
    if life.host == this_host():
        return not life.has_process
    return now_s - life.heartbeat_at_ms / 1000 > SILENT_MAX_S


def _was_cut_short(instance: dg.DagsterInstance, run_id: str, step: str) -> bool:
    """Whether the step's process was killed, by itself or with the run worker: it has not said how it ended."""
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


def _reason(life: ApplicationStatus) -> str:
    return (
        f"the run worker has ended without a word; its driver {_end(life)}. The next run goes on from the last commit"
    )


def _pause(life: ApplicationStatus, deaths: Deaths, next_start_s: float, now_s: float) -> str:
    at = time.strftime("%H:%M:%S UTC", time.gmtime(next_start_s))
    return (
        f"{deaths.count} drivers in a row have ended before they got on; the next start is due at {at}, in "
        f"{next_start_s - now_s:.0f} s. The last one {_end(life)}"
    )


def _end(life: ApplicationStatus) -> str:
    how = "was killed" if life.state == "dead" else f"has ended ({life.state}), with everything committed"
    return f"(process {life.pid} on {life.host}) {how}"


def _ingest_config(supervised: Supervised, config: Mapping[str, Any]) -> dict[str, Any]:
    """What the ended run said of the ingest; what it said of other assets has no place in the next run."""
    op = ingest_op(supervised)
    return {"ops": {op: config["ops"][op]}} if op in config.get("ops", {}) else {}
