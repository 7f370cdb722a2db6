"""Reports whether each ingest runs, how far it is behind, and whether its sinks have what was committed, although no
run makes those checks: at once when an outcome changes or a run has materialized the ingest, and otherwise every few
minutes. Such a run also hides what ``weir_commits`` has reported during it, so the light checks are reported again.
Puts the application's tag on runs that were not launched with it (``weir.orchestration.runs``).

Dagster judges an asset by the newest evaluation of its checks, if it is not older than the newest materialization;
observations would not change what it shows.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence

import dagster as dg
from dagster._core.instance.utils import RUNLESS_RUN_ID  # has no public name

from weir.orchestration.checks.evaluations import evaluation_of
from weir.orchestration.checks.lag import LAG_CHECK, lag_result, nothing_arrives, unknown_lag
from weir.orchestration.checks.light import light_evaluations
from weir.orchestration.checks.running import RUNNING_CHECK, running_result
from weir.orchestration.checks.sinks import CHECK as SINK_CHECK
from weir.orchestration.checks.sinks import sink_results
from weir.orchestration.runs import tag_runs
from weir.orchestration.sensors.watching import Found, Look, watch
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.actions import actions_of
from weir.pipelines.operations.log_files import log_file

LOOK_EVERY_S = 10
REPEAT_S = 300.0
"""An outcome that stays is reported this often."""
MOST_CHANGES = 10
"""What changes to and fro is reported so often in that time, unless something is wrong; event rows stay in bounds."""
MATERIALIZED_WITHIN_S = 120.0
"""After its driver has ended, which is reported, a run has materialized the ingest by then."""
AT_WORK = ("running", "working")
"""What takes turns while a driver does well, so that it is no change."""


def reports_sensor(applications: Sequence[Supervised]) -> dg.SensorDefinition:
    """Evaluates the checks ``running``, ``lag`` and ``delivered``. The cursor holds each outcome that was reported
    last, and when."""
    return watch(
        "reports",
        reports,
        applications,
        every_s=LOOK_EVERY_S,
        description="Reports whether each ingest runs, how far it is behind, and whether its sinks have what was "
        f"committed: at once when that changes or a run has ended, otherwise every {REPEAT_S / 60:.0f} minutes.",
        is_noted=True,
    )


def reports(look: Look) -> Found:
    """Evaluations of those checks that are due."""
    now_s = time.time()
    log = log_file(look.settings.logs, look.id)
    results = {
        RUNNING_CHECK: running_result(
            look.supervised, look.driver, look.instance, now_s, log, lambda: look.tick.asset_runs
        ),
        LAG_CHECK: _lag(look),
    }
    found, why_none = _sinks(look)
    sinks = {f"{SINK_CHECK} {each.asset_key}": each for each in found}
    reported = json.loads(look.cursor or "{}")
    at_s, changed_s = reported.get("at_s", 0.0), [at for at in reported.get("changed_s", ()) if now_s - at < REPEAT_S]
    life = look.driver.started_at_ms if look.driver is not None else None
    is_at_work = results[RUNNING_CHECK].metadata["state"].value in AT_WORK
    state = "running" if is_at_work else results[RUNNING_CHECK].metadata["state"].value
    outcomes = {
        name: [result.passed, result.severity.value, state, life, None if is_at_work else _magnitude(result)]
        for name, result in results.items()
    }
    outcomes |= {name: [result.passed, *_words(result)] for name, result in sinks.items()}
    is_change = outcomes != reported.get("outcomes")
    is_wrong = any(not each.passed and each.severity == dg.AssetCheckSeverity.ERROR for each in results.values())
    is_told = is_change and (is_wrong or len(changed_s) < MOST_CHANGES)
    is_outdated = now_s - at_s <= MATERIALIZED_WITHIN_S and _materialized_s(look) > at_s
    said = "; ".join(result.description or name for name, result in results.items()) + why_none
    is_due = is_told or is_outdated or now_s - at_s >= REPEAT_S
    if is_due or look.driver is None or look.driver.has_ended:  # Dagster is asked for those runs anyway, or not often
        tag_runs(look.supervised, look.tick.asset_runs, look.instance)
    if not is_due:
        return Found(said=said)
    changed_s += [now_s] * is_change
    evaluations, errors = light_evaluations(look.supervised, look.settings) if is_outdated else ([], "")
    return Found(
        said=said + errors,
        cursor=json.dumps({"outcomes": outcomes, "at_s": now_s, "changed_s": changed_s}),
        # all of these checks, so that their figures are of one moment
        events=[*map(evaluation_of, (*results.values(), *sinks.values())), *evaluations],
    )


def _words(result: dg.AssetCheckResult) -> list[str]:
    """Those of a failed check's sentence; its figures change while nothing else does."""
    return [] if result.passed else re.findall(r"[^\W\d]+", result.description or "")


def _magnitude(result: dg.AssetCheckResult) -> int | None:
    """The number of digits of a lag: what nobody reads is reported when it has grown tenfold."""
    records = result.metadata["lag_records"].value if "lag_records" in result.metadata else 0
    return len(str(records)) if records else None


def _materialized_s(look: Look) -> float:
    """When a run has materialized the ingest, if nothing else did later; else 0. What was reported before that does not
    count any more."""
    newest = look.tick.materializations.get(look.supervised.ingest)
    return 0.0 if newest is None or newest.run_id == RUNLESS_RUN_ID else newest.timestamp


def _sinks(look: Look) -> tuple[list[dg.AssetCheckResult], str]:
    """Of each sink; and why they cannot be had, if so, as the rest of a sentence."""
    try:
        return list(sink_results(look.supervised, look.settings)), ""
    except Exception as error:  # whatever it is, the other checks are to be reported
        return [], f"; {SINK_CHECK} could not be made: {error}"


def _lag(look: Look) -> dg.AssetCheckResult:
    """While the embedded broker is down, nothing arrives, and a look must not start it."""
    try:
        if (admin := look.tick.kafka) is None:
            return nothing_arrives(look.supervised, look.settings)
        return lag_result(look.supervised, look.settings, look.driver, admin, actions_of(look.database, look.id))
    except Exception as error:  # whatever it is, the other check is to be reported
        return unknown_lag(look.supervised, error)
