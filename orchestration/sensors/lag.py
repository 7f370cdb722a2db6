"""Does what helps against lag, by the cause that is measured, and shows what it brought; where nothing helps that the
driver may do by itself, warns of the cause and names the job to launch.

That there is lag, and how much, is warned of by ``weir.orchestration.sensors.health``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import dagster as dg

from weir.infra.control import ApplicationStatus
from weir.orchestration.advice import in_dagster
from weir.orchestration.on_lag import Action, Measured, cause_of
from weir.orchestration.sensors.health import lag_conditions
from weir.orchestration.sensors.observations import observation, report_changes
from weir.orchestration.sensors.watching import Found, Look, watch
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.actions import BY_SENSORS, EFFECT_S, ActionTaken, actions_of

LOOK_EVERY_S = 10
SENSOR = "weir_lag"
CONDITION = "cause of lag"


def lag_sensor(applications: Sequence[Supervised]) -> dg.SensorDefinition:
    """The cursor holds the actions whose effects were shown, and when which cause was last warned of."""
    return watch(
        "lag",
        lag,
        applications,
        every_s=LOOK_EVERY_S,
        description="Finds the measured cause of lag and does what helps: commits further apart, a restore of the one "
        "task that is behind in the least busy slot, more slots. Otherwise it warns, and names the job to launch.",
    )


@dataclass(frozen=True)
class Remembered:
    """The cursor."""

    shown: tuple[int, ...] = ()
    """The actions of the last hour whose effects were shown, the newest first."""
    warned: str | None = None
    """What ``report_changes`` remembers."""

    @classmethod
    def of(cls, cursor: str | None) -> Remembered:
        if not cursor:
            return cls()
        shown, warned = json.loads(cursor)
        return cls(tuple(shown), warned)

    def __str__(self) -> str:
        return json.dumps([self.shown, self.warned])


def lag(look: Look) -> Found:
    """A request, or why there is none; and the effects of those before, once they can be told."""
    remembered = Remembered.of(look.cursor)
    taken = actions_of(look.database, look.id, SENSOR)
    shown = _effects(look, taken, remembered.shown)
    status = look.status
    if status is None or not status.is_running or status.metric is None:
        found = _warn(look, {}, remembered, at_ms=round(time.time() * 1000), said="no driver is running")
    else:
        found = _act(look, status, taken, remembered)
    told = {*remembered.shown, *(action.request for action, _ in shown)}
    warned = Remembered.of(found.cursor).warned if found.cursor else remembered.warned
    cursor = str(Remembered(tuple(action.request for action in taken if action.request in told), warned))
    return Found(
        said=found.said,
        cursor=cursor if cursor != str(remembered) else None,
        events=[*(event for _, event in shown), *found.events],
    )


def _act(look: Look, status: ApplicationStatus, taken: Sequence[ActionTaken], remembered: Remembered) -> Found:
    supervised, on_lag, at_ms = look.supervised, look.supervised.on_lag, status.metric.at_ms if status.metric else 0
    lags = lag_conditions(look.database, status, supervised.thresholds)
    if not lags:
        return _warn(look, {}, remembered, at_ms=at_ms, said="no lag beyond the limits")
    measured = Measured.of(status, supervised.application.commit_interval.total_seconds())
    cause = cause_of(measured, on_lag, supervised.id)
    if cause.action is None:
        sentence = in_dagster(f"{cause.sentence}; {cause.advice}", supervised.id)
        return _warn(look, {CONDITION: sentence}, remembered, at_ms=at_ms, said=sentence)
    if waits := _waits(cause.action, taken, on_lag.pause_s, on_lag.repeat_s):
        return Found(said=f"{cause.sentence}; {waits}")
    request = look.database.request(
        look.id,
        cause.action.kind,
        by=BY_SENSORS + SENSOR,
        reason=f"{cause.sentence} ({'; '.join(lags.values())})",
        arguments=cause.action.arguments,
    )
    return Found(said=f"request {request}, {cause.action}: {cause.sentence}")


def _waits(action: Action, taken: Sequence[ActionTaken], pause_s: float, repeat_s: float) -> str:
    """Why ``action`` is not to be taken yet; empty if it is."""
    now_ms = time.time() * 1000
    for each in taken:
        ago_s = (now_ms - each.at_ms) / 1000
        if each.state == "pending":
            return f"request {each.request} waits for the driver"
        if (each.kind, each.task) == (action.kind, action.task) and ago_s < repeat_s:
            return f"{action} was requested {ago_s:,.0f} s ago and is not repeated within {repeat_s:,.0f} s"
        if ago_s < pause_s:
            return f"request {each.request} was made {ago_s:,.0f} s ago; the next is {pause_s:,.0f} s after it"
    return ""


def _effects(
    look: Look, taken: Sequence[ActionTaken], shown: Collection[int]
) -> list[tuple[ActionTaken, dg.AssetObservation]]:
    """Observations of the actions whose effect can be told by now, and was not yet."""
    before_ms = 1000 * (time.time() - EFFECT_S)
    return [
        (action, effect_observation(look.supervised.ingest, action))
        for action in taken
        if action.request not in shown
        and (
            action.state == "failed"
            or (action.lag_after is not None and action.done_at_ms is not None and action.done_at_ms <= before_ms)
        )
    ]


def effect_observation(asset: dg.AssetKey, action: ActionTaken) -> dg.AssetObservation:
    """What was measured, what was done, and what it brought."""
    return observation(
        asset,
        f"{action.kind} {action.task}".rstrip(),
        f"{action.measured}; {action.did}; {action.brought}",
        {
            "request": dg.MetadataValue.int(action.request),
            "measured": dg.MetadataValue.text(action.measured),
            "did": dg.MetadataValue.text(action.did),
            "requested_at": dg.MetadataValue.timestamp(action.at_ms / 1000),
            **{
                name: dg.MetadataValue.int(value)
                for name, value in (("lag_before", action.lag_before), ("lag_after", action.lag_after))
                if value is not None
            },
        },
        severity="info",
    )


def _warn(look: Look, conditions: dict[str, str], remembered: Remembered, *, at_ms: int, said: str) -> Found:
    found = report_changes(
        look.supervised.ingest,
        conditions,
        remembered.warned,
        at_ms=at_ms,
        cooldown_s=look.supervised.thresholds.cooldown_s,
    )
    cursor = None if found.cursor is None else str(Remembered(remembered.shown, found.cursor))
    return Found(said=said, cursor=cursor, events=found.events)
