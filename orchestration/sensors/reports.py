"""Reports whether each ingest runs and how far it is behind, although no run makes those checks: at once when an
outcome changes or a run has materialized the ingest, and otherwise every few minutes.

Dagster judges an asset by the newest evaluation of its checks, if it is not older than the newest materialization;
observations would not change what it shows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import cache, partial

import dagster as dg
from dagster._core.instance.utils import RUNLESS_RUN_ID  # has no public name

from weir.orchestration.checks.evaluations import evaluation_of
from weir.orchestration.checks.lag import LAG_CHECK, lag_result, unknown_lag
from weir.orchestration.checks.running import RUNNING_CHECK, running_result
from weir.orchestration.sensors.watching import Found, Look, watch
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.actions import actions_of

LOOK_EVERY_S = 10
REPEAT_S = 300.0
"""An outcome that stays is reported this often."""
MATERIALIZED_WITHIN_S = 120.0
"""After its driver has ended, which is reported, a run has materialized the ingest by then."""
AT_WORK = ("running", "working")
"""What takes turns while a driver does well, so that it is no change."""


def reports_sensor(applications: Sequence[Supervised]) -> dg.SensorDefinition:
    """Evaluates the checks ``running`` and ``lag``. The cursor holds each outcome that was reported last, and when."""
    return watch(
        "reports",
        reports,
        applications,
        every_s=LOOK_EVERY_S,
        description="Reports whether each ingest runs and how far it is behind: at once when that changes or a run has "
        f"ended, otherwise every {REPEAT_S / 60:.0f} minutes.",
        is_noted=True,
    )


def reports(look: Look) -> Found:
    """Evaluations of those checks that are due."""
    now_s = time.time()
    results = {RUNNING_CHECK: running_result(look.supervised, look.driver, look.instance, now_s)}
    if (lag := _lag(look)) is not None:
        results[LAG_CHECK] = lag
    reported: dict[str, list[object]] = json.loads(look.cursor or "{}")
    materialized_s = cache(partial(_materialized_s, look))
    life = look.driver.started_at_ms if look.driver is not None else None
    is_at_work = results[RUNNING_CHECK].metadata["state"].value in AT_WORK
    state = "running" if is_at_work else results[RUNNING_CHECK].metadata["state"].value
    due = {}
    for name, result in results.items():
        waiting = None if is_at_work or "lag_records" not in result.metadata else result.metadata["lag_records"].value
        outcome = [result.passed, result.severity.value, state, life, _magnitude(waiting)]
        known, at_s = reported.get(name, [None, 0.0])
        reported_s = float(str(at_s))
        is_outdated = now_s - reported_s <= MATERIALIZED_WITHIN_S and materialized_s() > reported_s
        if outcome != known or now_s - reported_s >= REPEAT_S or is_outdated:
            due[name] = result
            reported[name] = [outcome, now_s]
    said = "; ".join(result.description or name for name, result in results.items())
    if not due:
        return Found(said=said)
    return Found(
        said=said,
        cursor=json.dumps(reported),
        events=[evaluation_of(result) for result in due.values()],
    )


def _magnitude(records: object) -> int | None:
    """The number of digits: what nobody reads is reported when it has grown tenfold."""
    return len(str(records)) if isinstance(records, int) and records else None


def _materialized_s(look: Look) -> float:
    """When a run has materialized the ingest, if nothing else did later; else 0. What was reported before that does not
    count any more."""
    newest = look.tick.materializations.get(look.supervised.ingest)
    return 0.0 if newest is None or newest.run_id == RUNLESS_RUN_ID else newest.timestamp


def _lag(look: Look) -> dg.AssetCheckResult | None:
    """None while the embedded broker is down: nothing arrives, and a look must not start it."""
    try:
        if (admin := look.tick.kafka) is None:
            return None
        return lag_result(look.supervised, look.settings, look.driver, admin, actions_of(look.database, look.id))
    except Exception as error:  # whatever it is, the other check is to be reported
        return unknown_lag(look.supervised, error)
