"""Ends a driver that no longer gets on, so that the next run goes on from the last commit; its stacks are kept first.

A driver stalls when it has lag and begins no epoch, or when it says nothing at all for as long: it hangs in an epoch or
in a commit. A kill loses nothing that counts, while a driver that hangs may never follow a request. Drivers that no run
started are told of and left alone, for nothing would start them again.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Sequence

import dagster as dg

from weir.infra.control import ApplicationStatus, ControlDatabase, MinuteRow
from weir.orchestration.owner import run_of
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.stacks import dump_stacks

LOOK_EVERY_S = 30
DUMP_LIMIT_S = 0.1
SHOWN_CHARACTERS = 20_000


def stalled_sensor(supervised: Supervised) -> dg.SensorDefinition:
    """Its cursor holds the life of a driver that was found stalled, and when."""
    limit_s, idle = supervised.thresholds.stalled_max_s, supervised.application.max_task_idle
    # tasks that wait for a quiet topic begin no epoch either, and killed they would wait anew
    epoch_limit_s = limit_s + (idle.total_seconds() if idle else 0.0)

    @dg.sensor(
        name=f"{supervised.name}_stalled",
        tags=supervised.tags,
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Keeps the stacks of a driver that has not got on for {limit_s:,.0f} s, and ends it after "
        "as long again.",
    )
    def stalled(context: dg.SensorEvaluationContext, weir: WeirResource) -> dg.SensorResult | dg.SkipReason:
        settings = weir.settings()
        database, now_ms = ControlDatabase(settings.control_database_url), round(time.time() * 1000)
        life = database.application_status(supervised.id)
        known = json.loads(context.cursor or "{}")
        what = None if life is None else stall(life, database.last_hour(supervised.id), limit_s, epoch_limit_s, now_ms)
        if life is None or what is None:
            return dg.SensorResult(skip_reason="all is well", cursor="{}") if known else dg.SkipReason("all is well")
        name = f"{life.started_at_ms}-{life.pid}"
        if known.get("life") != name:
            try:
                dump = f"```\n{dump_stacks(settings, life, DUMP_LIMIT_S)[:SHOWN_CHARACTERS]}\n```"
            except OperationError as error:
                dump = str(error)
            return dg.SensorResult(
                cursor=json.dumps({"life": name, "at_ms": now_ms}),
                asset_events=[_observation(supervised.ingest, what, {"stacks": dg.MetadataValue.md(dump)})],
            )
        if "ended_at_ms" in known or now_ms - known["at_ms"] < limit_s * 1000:
            return dg.SkipReason(f"told before: {what}")
        if run_of(life.owner) is None or not life.has_process:
            return dg.SkipReason(f"{what}; it is not this sensor's to end, {life.owner} started it on {life.host}")
        os.kill(life.pid, signal.SIGKILL)
        return dg.SensorResult(
            cursor=json.dumps({**known, "ended_at_ms": now_ms}),
            asset_events=[
                _observation(supervised.ingest, f"{what}; its process {life.pid} was ended, the next run goes on", {})
            ],
        )

    return stalled


def stall(
    life: ApplicationStatus, minutes: Sequence[MinuteRow], silence_limit_s: float, epoch_limit_s: float, now_ms: int
) -> str | None:
    """Why a driver does not get on, in a sentence; None for one that does, that has ended, or that restores."""
    if life.ended_at_ms is not None:
        return None
    silent_s = (now_ms - life.heartbeat_at_ms) / 1000
    has_begun = bool(life.tasks)  # a start says nothing and may wait for brokers as long as it likes
    if has_begun and life.has_process and silent_s > silence_limit_s:
        return f"the driver has said nothing for {silent_s:,.0f} s: it hangs in an epoch or a commit"
    own = [minute for minute in minutes if minute.at_ms >= life.started_at_ms]  # the one before may have waited as well
    quiet = own[-math.ceil(epoch_limit_s / 60) - 1 :]
    if (
        life.is_running
        and life.state == "running"
        and len(quiet) > math.ceil(epoch_limit_s / 60)
        and quiet[0].epoch == quiet[-1].epoch
        and min(minute.lag for minute in quiet) > 0
        and all(task.status != "restoring" for task in life.tasks)
    ):
        return (
            f"{quiet[-1].lag:,} records wait and no epoch after {quiet[0].epoch} has begun for {epoch_limit_s:,.0f} s"
        )
    return None


def _observation(asset: dg.AssetKey, sentence: str, metadata: dict[str, dg.MetadataValue]) -> dg.AssetObservation:
    return dg.AssetObservation(
        asset, description=sentence, metadata={"warning": "stalled", **metadata}, tags={"weir/severity": "warning"}
    )
