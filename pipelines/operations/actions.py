"""What sensors have asked a driver to do over the last hour: what they measured, what it did, and what it brought."""

from __future__ import annotations

import time
from dataclasses import dataclass

from weir.infra.control import ControlDatabase, RequestRow

BY_SENSORS = "dagster sensor "
"""How the names of sensors begin, as those who ask."""
LOOK_BACK_S = 3_600.0
"""Readings are kept for so long."""
EFFECT_S = 60.0
"""So long after it was done an action is judged by the lag; until then by the newest lag."""


@dataclass(frozen=True, kw_only=True)
class ActionTaken:
    """A request of a sensor."""

    request: int
    at_ms: int
    by: str
    kind: str
    task: str
    """The task that it is about; empty for the whole application."""
    measured: str
    """Why, in a sentence."""
    state: str
    """pending, done or failed."""
    done_at_ms: int | None
    """When the driver answered; None while it has not."""
    did: str
    """What the driver answered; empty while it has not."""
    lag_before: int | None
    """The records that waited when it was asked for."""
    lag_after: int | None
    """Those that waited after it was done; None while there is no later reading."""
    after_s: float | None
    """How long after that."""

    @property
    def brought(self) -> str:
        """What it brought, in a few words."""
        if self.state == "failed":
            return "nothing: it was refused"
        if self.lag_before is None or self.lag_after is None or self.after_s is None:
            return "not known yet"
        return f"lag {self.lag_before:,} before, {self.lag_after:,} {self.after_s:,.0f} s after"


def actions_of(database: ControlDatabase, application: str, sensor: str = "") -> list[ActionTaken]:
    """The actions of the last hour, the newest first; of one ``sensor``, or of all."""
    since_ms = round(1000 * (time.time() - LOOK_BACK_S))
    return [
        action_of(database, request) for request in database.requests_by(application, BY_SENSORS + sensor, since_ms)
    ]


def action_of(database: ControlDatabase, request: RequestRow) -> ActionTaken:
    """What became of a request so far."""
    before = database.reading_before(request.application, request.requested_at_ms)
    done_ms = request.finished_at_ms
    after = None if done_ms is None else database.reading_before(request.application, done_ms + round(1000 * EFFECT_S))
    if after is not None and done_ms is not None and after.at_ms <= done_ms:
        after = None
    return ActionTaken(
        request=request.id,
        at_ms=request.requested_at_ms,
        by=request.requested_by.removeprefix(BY_SENSORS),
        kind=request.kind,
        task=request.arguments.get("task", ""),
        measured=request.reason,
        state=request.state,
        done_at_ms=done_ms,
        did=request.result,
        lag_before=before.lag if before else None,
        lag_after=after.lag if after else None,
        after_s=(after.at_ms - done_ms) / 1000 if after and done_ms else None,
    )
