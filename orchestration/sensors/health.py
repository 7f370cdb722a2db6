"""Warns of what a running driver reports about itself: lag, tasks that are restoring, sinks that lag or refuse rows;
and of a quarantine that is over its limit.

A driver restores a lost or corrupt task by itself while the others keep running, so this sensor only warns of that. A
driver that makes no progress is left to ``weir.orchestration.sensors.stalled``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import dagster as dg
import msgspec

from weir.infra.control import ApplicationStatus, ControlDatabase, MinuteRow
from weir.orchestration.advice import in_dagster
from weir.orchestration.checks.lag import work_s
from weir.orchestration.checks.sinks import sink_trouble
from weir.orchestration.sensors.observations import report_changes
from weir.orchestration.sensors.watching import Found, Look, watch
from weir.orchestration.supervised import Supervised
from weir.orchestration.thresholds import Thresholds
from weir.pipelines.operations.quarantine import quarantine_status
from weir.pipelines.publishing.state import SinkState

LOOK_EVERY_S = 10
LAG_STEPS = 5
"""Lag counts as growing when it grows in each fifth of ``Thresholds.lag_grows_max_s``."""


def health_sensor(applications: Sequence[Supervised]) -> dg.SensorDefinition:
    """Warns by observations of the ingests."""
    return watch(
        "health",
        health,
        applications,
        every_s=LOOK_EVERY_S,
        description="Warns of lag in records or in seconds, of growing lag, of tasks that are restoring, of sinks that "
        "lag or refuse rows, and of a quarantine over its limit.",
    )


def health(look: Look) -> Found:
    """What a running driver reports; what was reported before is over once it has ended."""
    thresholds, found = look.supervised.thresholds, dict[str, str]()
    status, at_ms = look.status, round(time.time() * 1000)
    if status is not None and status.is_running and status.metric is not None:
        at_ms = status.metric.at_ms
        found = repairs(status) | lag_conditions(look.database, status, thresholds)
        for sink in msgspec.convert(list(status.sinks), list[SinkState]):
            if trouble := sink_trouble(sink, look.id, thresholds.sink_lag_max_s, time.time()):
                found[f"sink {sink.sink}"] = f"sink {sink.sink}: {trouble}"
    if over_limit := quarantine_status(look.settings, look.id).over_limit:
        found["quarantine"] = over_limit
    found = {name: in_dagster(sentence, look.id) for name, sentence in found.items()}
    return report_changes(look.supervised.ingest, found, look.cursor, at_ms=at_ms, cooldown_s=thresholds.cooldown_s)


def repairs(status: ApplicationStatus) -> dict[str, str]:
    """The tasks of a running driver that are restoring, corrupted or isolated, a sentence each by name."""
    return {
        f"task {task.task} {name}": f"task {task.task} {sentence}: {task.reason}"
        for state, name, sentence in (
            ("restoring", "restores", "is restoring"),
            ("corrupted", "corrupted", "is corrupted and processes nothing"),
            ("isolated", "is isolated", "is isolated, and the others go on"),
        )
        for task in status.tasks
        if task.status == state
    }


def lag_conditions(database: ControlDatabase, status: ApplicationStatus, thresholds: Thresholds) -> dict[str, str]:
    """In which ways a running driver lags beyond its limits, a sentence each by name."""
    if status.metric is None or status.metric.lag == 0:
        return {}
    lags = database.lags(
        status.application,
        until_ms=status.metric.at_ms,
        steps=LAG_STEPS + 1,
        step_ms=round(thresholds.lag_grows_max_s * 1000 / LAG_STEPS),
    )
    return too_much_lag(status.metric.lag, database.last_hour(status.application), lags, thresholds)


def too_much_lag(lag: int, minutes: Sequence[MinuteRow], lags: Sequence[int], thresholds: Thresholds) -> dict[str, str]:
    """The same from what was read: ``lag`` in records, ``lags`` the greatest of the newest steps."""
    found = dict[str, str]()
    if lag > thresholds.lag_max_records:
        found["lag in records"] = f"{lag:,} records are waiting, more than {thresholds.lag_max_records:,}"
    needed_s = work_s(lag, minutes)
    if needed_s is not None and needed_s > thresholds.lag_max_s:
        found["lag in seconds"] = (
            f"{lag:,} records are waiting, which takes {needed_s:,.0f} s at {lag / needed_s:,.0f} records/s, "
            f"more than {thresholds.lag_max_s:,.0f} s"
        )
    if len(lags) > LAG_STEPS and all(one < two for one, two in pairwise(lags)):
        found["lag grows"] = (
            f"lag has grown for {thresholds.lag_grows_max_s:,.0f} s, from {lags[0]:,} to "
            f"{lags[-1]:,} records: more arrives than is processed"
        )
    return found
