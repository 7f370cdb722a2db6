"""An application's sinks outside the warehouse: how they are doing, and what to do with rows that they refuse."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from uuid import uuid4

import msgspec

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.pipelines.errors import ApplicationLoadError, TopologyError
from weir.pipelines.operations.control import ask
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.registry import registered_application, require
from weir.pipelines.operations.text import counted
from weir.pipelines.publishing.state import Action, SinkState
from weir.state.commit.outbox import Mark, Outbox
from weir.state.commit.refused import Refused
from weir.state.storage.places import folder_at

OUTCOME_LIMIT_S = 30.0
"""How long it is waited for that refused rows have been sent again; a sink that is away gets them later."""
LOOK_EVERY_S = 0.2
_ALL = Mark(1 << 62)


def sinks_of(settings: Settings, application: str) -> Sequence[SinkState]:
    """The sinks as its last run has told; none before the first run.

    Raises:
        OperationError: The folder does not know the application.
    """
    require(settings, application)
    status = ControlDatabase(settings.control_database_url).application_status(application)
    return msgspec.convert(list(status.sinks) if status else [], list[SinkState])


def known_sinks(settings: Settings, application: str) -> list[SinkState]:
    """``sinks_of``, and those of the program that no run has told of yet; none of these if it cannot be loaded.

    Raises:
        OperationError: The folder does not know the application.
    """
    told = list(sinks_of(settings, application))
    try:
        declared = registered_application(settings, application).topology.outside_sinks
    except (OperationError, ApplicationLoadError, TopologyError):
        return told
    names = {state.sink for state in told}
    untold = (sink for sink in declared if sink.name not in names)
    return [*told, *(SinkState(sink=sink.name, target=str(sink), has_begun=False) for sink in untold)]


def decide(settings: Settings, application: str, sink: str, action: Action, *, by: str | None = None) -> str:
    """Tell the publisher of a running application what to do; returns what it does. ``by`` is as for ``ask``.

    Raises:
        OperationError: There is no such sink, it does not wait for that, or the application is not running.
    """
    _require_sink(settings, application, sink)
    return ask(settings, application, "sink", {"sink": sink, "action": action}, by=by, reason=f"sink {action}")


def retry(settings: Settings, application: str, sink: str, *, by: str | None = None) -> tuple[str, bool]:
    """Have the publisher of a running application send the refused rows again; returns what became of them, as far as
    that is known within ``OUTCOME_LIMIT_S``, and whether some are refused once more. ``by`` is as for ``ask``.

    Raises:
        OperationError: There is no such sink, none of its rows is aside, or the application is not running.
    """
    _require_sink(settings, application, sink)
    decision = {"sink": sink, "action": "retry", "id": uuid4().hex}
    answer = ask(settings, application, "sink", decision, by=by, reason="sink retry")
    state = _state_after(settings, application, decision)
    if state is None or state.resent is None:
        return f"{answer}; `weir sink list {application}` shows whether any is left", False
    delivered = f"{counted(state.resent.delivered_rows, 'refused row')} delivered"
    if not state.resent.error:
        return delivered, False
    return f"{delivered}, {state.refused_rows:,} still refused: {state.resent.error}", True


def _state_after(settings: Settings, application: str, decision: Mapping[str, str]) -> SinkState | None:
    """How the sink is doing once what was decided has ended; None if nobody tells it in time."""
    until, database = time.monotonic() + OUTCOME_LIMIT_S, ControlDatabase(settings.control_database_url)
    while True:
        has_ended = database.has_ended(application)
        for state in sinks_of(settings, application):
            if state.sink == decision["sink"] and state.resent is not None and state.resent.id == decision["id"]:
                return state
        if has_ended or time.monotonic() > until:
            return None
        time.sleep(LOOK_EVERY_S)


def discard(settings: Settings, application: str, sink: str) -> int:
    """Delete the rows that the sink has refused; returns how many there were. The application may be running.

    Raises:
        OperationError: There is no such sink, or none of its rows is aside.
    """
    rows = require_aside(settings, application, sink)
    Outbox(folder_at(settings.warehouse) / application, sink, application, is_of_refused=True).remove(_ALL)
    return rows


def require_aside(settings: Settings, application: str, sink: str) -> int:
    """How many rows the sink has refused.

    Raises:
        OperationError: There is no such sink, or none of its rows is aside.
    """
    _require_sink(settings, application, sink)
    rows = Refused(folder_at(settings.warehouse) / application, sink, application).count()
    if not rows:
        raise OperationError(f"{application}: no rows of the sink {sink!r} are aside")
    return rows


def _require_sink(settings: Settings, application: str, sink: str) -> None:
    names = [state.sink for state in known_sinks(settings, application)]
    if sink not in names:
        raise OperationError(
            f"{application} has no sink {sink!r}; it has {', '.join(names) or 'none outside the warehouse'}"
        )
