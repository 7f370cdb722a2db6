"""Tells people what the page shows: checks that have failed and are well again, and runs that have failed.

A message that no target took is sent again; one that some took is told, and the tick says who did not. A check that
fails again and again is told once in ``Thresholds.cooldown_s``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import dagster as dg

from weir.infra.alerts import AlertError, send
from weir.infra.settings import Settings
from weir.orchestration.checks.evaluations import newest_evaluations
from weir.orchestration.runs import is_of
from weir.orchestration.sensors.watching import Found, Look, watch
from weir.orchestration.supervised import Supervised

LOOK_EVERY_S = 10
WORDS = {dg.AssetCheckSeverity.ERROR: "error", dg.AssetCheckSeverity.WARN: "warning"}


def alerts_sensor(
    applications: Sequence[Supervised], checks: Mapping[str, Sequence[dg.AssetCheckKey]]
) -> dg.SensorDefinition:
    """One message an application and tick, to the setting ``alert_urls``. ``checks`` are those of each application, by
    its id; the cursor holds what was told."""
    return watch(
        "alerts",
        partial(alerts, checks),
        applications,
        every_s=LOOK_EVERY_S,
        description="Sends failed checks and failed runs to the setting alert_urls: e-mail, Slack, webhooks.",
    )


@dataclass(frozen=True)
class Told:
    """What was told of an application; the sensor keeps it as its cursor."""

    failing: dict[str, str] = field(default_factory=dict)
    """Checks that were told to fail: the severity, by asset and check."""
    at_s: dict[str, float] = field(default_factory=dict)
    """When a check was last told to fail, also of those that are well again."""
    run_s: float = 0.0
    """When the newest run that was told of, or that was there at the first look, had ended."""
    since_s: float = 0.0
    """When the newest failed run of any job had ended that was seen; 0 before there was one. It is the same for all
    applications, so that a tick asks once for all of them."""


def alerts(checks: Mapping[str, Sequence[dg.AssetCheckKey]], look: Look) -> Found:
    """What is new since the last message that was taken."""
    if not look.settings.alert_urls:
        return Found(said="nobody is told: the setting alert_urls is empty")
    now_s = time.time()
    told = Told(**json.loads(look.cursor)) if look.cursor else Told(run_s=now_s)
    lines, next_told = _of_checks(look, checks[look.id], told, now_s)
    of_runs, run_s, since_s = _of_runs(look, told, now_s)
    lines += of_runs
    cursor = json.dumps(asdict(Told(next_told.failing, next_told.at_s, run_s, since_s)))
    if not lines:
        return Found(said="nothing to tell", cursor=cursor if cursor != look.cursor else None)
    title = f"Weir: {look.id}: {lines[0]}" if len(lines) == 1 else f"Weir: {look.id}: {len(lines)} alerts"
    try:
        failed = send(look.settings.alert_urls, title, "\n".join(lines))
    except AlertError as error:
        return Found(said=f"not told, and tried again: {error}")
    said = f"told: {'; '.join(lines)}" + (f"; not everybody: {'; '.join(failed)}" if failed else "")
    return Found(said=said, cursor=cursor)


def _of_checks(look: Look, checks: Sequence[dg.AssetCheckKey], told: Told, now_s: float) -> tuple[list[str], Told]:
    failing, at_s, lines = dict[str, str](), dict(told.at_s), list[str]()
    for key, severity, sentence in _failed_checks(look, checks):
        is_known = key in told.failing
        if not is_known and now_s - at_s.get(key, 0.0) < look.supervised.thresholds.cooldown_s:
            continue
        failing[key] = severity
        if told.failing.get(key) != severity:
            at_s[key] = now_s
            lines.append(f"{severity}: {key}: {sentence}")
    lines += [f"over: {key}" for key in told.failing if key not in failing]
    return lines, Told(failing, at_s)


def _failed_checks(look: Look, checks: Sequence[dg.AssetCheckKey]) -> list[tuple[str, str, str]]:
    """The asset and check, the severity, and what the check says, of the newest evaluation of each."""
    return [
        (
            f"{key.asset_key.to_user_string()} {key.name}",
            WORDS[evaluation.severity],
            evaluation.description or "failed",
        )
        for key, _, evaluation in newest_evaluations(look.instance, checks)
        if not evaluation.passed and _matters(look.settings, evaluation.severity)
    ]


def _matters(settings: Settings, severity: dg.AssetCheckSeverity) -> bool:
    return settings.alert_level == "warning" or severity is dg.AssetCheckSeverity.ERROR


def _of_runs(look: Look, told: Told, now_s: float) -> tuple[list[str], float, float]:
    """What to tell, and the next ``run_s`` and ``since_s``."""
    failed = look.tick.failed_runs(told.since_s or told.run_s)
    records = [each for each in failed if _end_s(each) > told.run_s and is_of(look.supervised, each.dagster_run)]
    lines = [
        f"run {each.dagster_run.run_id} of {each.dagster_run.job_name} failed{_why(look.instance, each.dagster_run)}"
        for each in reversed(records)
    ]
    run_s = max(map(_end_s, records), default=told.run_s)
    since_s = max((told.since_s, *map(_end_s, failed)))
    return lines, run_s, min(since_s, now_s)  # one from a host whose clock is ahead hides none of the others


def _end_s(record: dg.RunRecord) -> float:
    return record.end_time or record.update_timestamp.timestamp()


def _why(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """What its first failed step says, in one line; stack traces stay in the run's log."""
    for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
        data = entry.get_dagster_event().step_failure_data
        said = (data.user_failure_data and data.user_failure_data.description) or (data.error and data.error.message)
        if said:
            return f": {said.strip().splitlines()[0]}"
    return ""
