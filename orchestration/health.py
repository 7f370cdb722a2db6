"""Watches a running driver by what it reports of itself: lag, and tasks that restore.

The driver restores a task that it finds lost or corrupt by itself and the others go on meanwhile, so that is told and
not asked for. A driver that does not get on is ``orchestration.stalled``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import dagster as dg

from infra.control import ApplicationStatus, ControlDatabase, MinuteRow
from orchestration.resources import WeirResource
from orchestration.supervised import Supervised
from orchestration.thresholds import Thresholds
from orchestration.warnings import tell

LOOK_EVERY_S = 30
LEAST_PACE = 1.0
"""Records a second: an hour whose best minute had fewer was idle and says nothing of how fast lag is worked off."""


def health_sensor(supervised: Supervised) -> dg.SensorDefinition:
    """Warns in the ingest's observations."""
    thresholds = supervised.thresholds

    @dg.sensor(name=f"{supervised.name}_health", minimum_interval_seconds=LOOK_EVERY_S,
               default_status=dg.DefaultSensorStatus.RUNNING,
               description=f"Warns of more than {thresholds.lag_max_records:,} records or {thresholds.lag_max_s:.0f} s "
                           "of lag, of lag that grows, and of tasks that restore.")
    def health(context: dg.SensorEvaluationContext, weir: WeirResource) -> dg.SensorResult | dg.SkipReason:
        database = ControlDatabase(weir.settings().control_database_url)
        status = database.application_status(supervised.id)
        if status is None or not status.is_running or status.metric is None:
            return dg.SkipReason(f"no driver of {supervised.id} runs")
        return tell(supervised.ingest, conditions(status, database.last_hour(supervised.id), thresholds),
                    context.cursor, at_ms=status.metric.at_ms, cooldown_s=thresholds.cooldown_s)

    return health


def conditions(status: ApplicationStatus, minutes: Sequence[MinuteRow], thresholds: Thresholds) -> dict[str, str]:
    """What is wrong with a running driver, a sentence each; ``minutes`` end with the one at hand."""
    found = {f"task {task.task} restores": f"task {task.task} restores: {task.reason}"
             for task in status.tasks if task.status == "restoring"}
    lag = status.metric.lag if status.metric else 0
    if lag > thresholds.lag_max_records:
        found["lag in records"] = f"{lag:,} records wait, more than {thresholds.lag_max_records:,}"
    pace = max((minute.records_per_s for minute in minutes), default=0.0)
    if pace >= LEAST_PACE and lag / pace > thresholds.lag_max_s:
        found["lag in seconds"] = (f"{lag:,} records wait, {lag / pace:,.0f} s at {pace:,.0f} records/s, "
                                   f"more than {thresholds.lag_max_s:,.0f} s")
    grown = minutes[-thresholds.lag_grows_max_minutes - 1:]
    if len(grown) > thresholds.lag_grows_max_minutes and all(one.lag < two.lag for one, two in pairwise(grown)):
        found["lag grows"] = (f"lag has grown for {thresholds.lag_grows_max_minutes} minutes, from {grown[0].lag:,} to "
                              f"{grown[-1].lag:,} records: more comes in than is worked off")
    return found
