"""Watches a running driver by what it reports of itself: lag, and tasks that restore.

The driver restores a task that it finds lost or corrupt by itself and the others go on meanwhile, so that is told and
not asked for. A driver that does not get on is ``weir.orchestration.stalled``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import dagster as dg

from weir.infra.control import ApplicationStatus, ControlDatabase, MinuteRow
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.orchestration.thresholds import Thresholds
from weir.orchestration.warnings import tell

LOOK_EVERY_S = 30
LAG_STEPS = 5
"""Lag grows when it does so in each fifth of ``Thresholds.lag_grows_max_s``."""
LEAST_PACE = 1.0
"""Records a second: an hour whose best minute had fewer was idle and says nothing of how fast lag is worked off."""


def health_sensor(supervised: Supervised) -> dg.SensorDefinition:
    """Warns in the ingest's observations."""
    thresholds = supervised.thresholds

    @dg.sensor(
        name=f"{supervised.name}_health",
        tags=supervised.tags,
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Warns of more than {thresholds.lag_max_records:,} records or {thresholds.lag_max_s:.0f} s "
        "of lag, of lag that grows, and of tasks that restore.",
    )
    def health(context: dg.SensorEvaluationContext, weir: WeirResource) -> dg.SensorResult | dg.SkipReason:
        database = ControlDatabase(weir.settings().control_database_url)
        status = database.application_status(supervised.id)
        if status is None or not status.is_running or status.metric is None:
            return dg.SkipReason(f"no driver of {supervised.id} runs")
        at_ms = status.metric.at_ms
        lags = database.lags(
            supervised.id,
            until_ms=at_ms,
            steps=LAG_STEPS + 1,
            step_ms=round(thresholds.lag_grows_max_s * 1000 / LAG_STEPS),
        )
        return tell(
            supervised.ingest,
            conditions(status, database.last_hour(supervised.id), lags, thresholds),
            context.cursor,
            at_ms=at_ms,
            cooldown_s=thresholds.cooldown_s,
        )

    return health


def conditions(
    status: ApplicationStatus, minutes: Sequence[MinuteRow], lags: Sequence[int], thresholds: Thresholds
) -> dict[str, str]:
    """What is wrong with a running driver, a sentence each; ``lags`` are the greatest of each of the newest steps."""
    found = {
        f"task {task.task} restores": f"task {task.task} restores: {task.reason}"
        for task in status.tasks
        if task.status == "restoring"
    }
    lag = status.metric.lag if status.metric else 0
    if lag > thresholds.lag_max_records:
        found["lag in records"] = f"{lag:,} records wait, more than {thresholds.lag_max_records:,}"
    pace = max((minute.records_per_s for minute in minutes), default=0.0)
    if pace >= LEAST_PACE and lag / pace > thresholds.lag_max_s:
        found["lag in seconds"] = (
            f"{lag:,} records wait, {lag / pace:,.0f} s at {pace:,.0f} records/s, "
            f"more than {thresholds.lag_max_s:,.0f} s"
        )
    if len(lags) > LAG_STEPS and all(one < two for one, two in pairwise(lags)):
        found["lag grows"] = (
            f"lag has grown for {thresholds.lag_grows_max_s:,.0f} s, from {lags[0]:,} to "
            f"{lags[-1]:,} records: more comes in than is worked off"
        )
    return found
