"""Ends a driver that has stopped making progress, so that the next run resumes from the last commit; before that, its
stacks are recorded.

A driver is stalled if it has lag and begins no epoch, if it sends no heartbeat for as long, or if it sends some but its
newest reading is as old: a thread of its own sends heartbeats, while readings come only as long as the driver goes on.
One that waits for workers goes on, however long their calls take. A kill loses nothing committed, and a driver that
hangs may never follow a request. Drivers that no run started only get a warning, because nothing would start them
again.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Sequence

import dagster as dg

from weir.infra.control import ApplicationStatus, MinuteRow
from weir.orchestration.drivers.dagster_run import run_of
from weir.orchestration.sensors.observations import observation
from weir.orchestration.sensors.watching import Found, Look, watch
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.stacks import dump_stacks

LOOK_EVERY_S = 10
DUMP_LIMIT_S = 0.1
SHOWN_CHARACTERS = 20_000
CONDITION = "stalled"


def stalled_sensor(applications: Sequence[Supervised]) -> dg.SensorDefinition:
    """The cursor holds which driver was found stalled, and when."""
    return watch(
        "stalled",
        stalled,
        applications,
        every_s=LOOK_EVERY_S,
        description="Records the stacks of a driver that has made no progress for a while, and ends it if it still "
        "makes none after the same time again.",
    )


def stalled(look: Look) -> Found:
    """A first look at a stalled driver records its stacks, a later one ends it."""
    limit_s, idle = look.supervised.thresholds.stalled_max_s, look.supervised.application.max_task_idle
    # tasks that wait for an idle topic begin no epoch either, and would wait all over again after a kill
    epoch_limit_s = limit_s + (idle.total_seconds() if idle else 0.0)
    now_ms = round(time.time() * 1000)
    driver = look.status
    known = json.loads(look.cursor or "{}")
    has_lag = driver is not None and driver.metric is not None and driver.metric.lag > 0
    minutes = look.database.last_hour(look.id) if has_lag else []
    why = None if driver is None else stall_reason(driver, minutes, limit_s, epoch_limit_s, now_ms)
    if driver is None or why is None:
        if not known:
            return Found()
        over = observation(look.supervised.ingest, CONDITION, f"over: {CONDITION}", severity="info")
        return Found(cursor="{}", events=[over])
    name = f"{driver.started_at_ms}-{driver.pid}"
    if known.get("life") != name:
        try:
            dump = f"```\n{dump_stacks(look.settings, driver, DUMP_LIMIT_S)[:SHOWN_CHARACTERS]}\n```"
        except OperationError as error:
            dump = str(error)
        return Found(
            said=why,
            cursor=json.dumps({"life": name, "at_ms": now_ms}),
            events=[observation(look.supervised.ingest, CONDITION, why, {"stacks": dg.MetadataValue.md(dump)})],
        )
    if "ended_at_ms" in known or now_ms - known["at_ms"] < limit_s * 1000:
        return Found(said=f"already reported: {why}")
    if run_of(driver.owner) is None or not driver.has_process:
        return Found(said=f"{why}; {driver.owner} started it on {driver.host}, so this sensor does not end it")
    os.kill(driver.pid, signal.SIGKILL)
    ended = f"{why}; its process {driver.pid} was killed, and the next run resumes"
    return Found(
        said=ended,
        cursor=json.dumps({**known, "ended_at_ms": now_ms}),
        events=[observation(look.supervised.ingest, CONDITION, ended)],
    )


def stall_reason(
    driver: ApplicationStatus,
    minutes: Sequence[MinuteRow],
    heartbeat_limit_s: float,
    epoch_limit_s: float,
    now_ms: int,
) -> str | None:
    """Why a driver counts as stalled, in a sentence; None if it makes progress, has ended, or is restoring."""
    if driver.ended_at_ms is not None:
        return None
    silent_s = (now_ms - driver.heartbeat_at_ms) / 1000
    has_begun = bool(driver.tasks)  # a starting driver has no readings and may wait for brokers indefinitely
    if has_begun and driver.has_process:
        if silent_s > heartbeat_limit_s:
            return f"the driver has sent no heartbeat for {silent_s:,.0f} s: its process hangs or is stopped"
        if driver.metric is not None and driver.metric.at_ms >= driver.started_at_ms:
            stood_s = (now_ms - driver.metric.at_ms) / 1000
            if stood_s > heartbeat_limit_s:
                return f"the driver has done nothing for {stood_s:,.0f} s: it hangs in an epoch or a commit"
    own = [
        minute for minute in minutes if minute.at_ms >= driver.started_at_ms
    ]  # an earlier driver may have waited too
    newest = own[-math.ceil(epoch_limit_s / 60) - 1 :]
    if (
        driver.is_running
        and driver.state == "running"
        and len(newest) > math.ceil(epoch_limit_s / 60)
        and newest[0].epoch == newest[-1].epoch
        and min(minute.lag for minute in newest) > 0
        and all(task.status not in ("restoring", "corrupted", "isolated") for task in driver.tasks)
    ):
        return (
            f"{newest[-1].lag:,} records are waiting, and no epoch after {newest[0].epoch} has begun for "
            f"{epoch_limit_s:,.0f} s"
        )
    return None
