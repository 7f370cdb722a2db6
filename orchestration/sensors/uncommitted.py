"""Asks the driver to commit when much of its state is uncommitted, and shows its answer."""

from __future__ import annotations

import time
from collections.abc import Sequence

import dagster as dg

from weir.infra.control.rows import RequestRow
from weir.orchestration.sensors.watching import Found, Look, watch
from weir.orchestration.supervised import Supervised
from weir.orchestration.thresholds import size_text
from weir.pipelines.operations.actions import BY_SENSORS, action_of

LOOK_EVERY_S = 10
BY = f"{BY_SENSORS}weir_uncommitted"


def uncommitted_sensor(applications: Sequence[Supervised]) -> dg.SensorDefinition:
    """One request at a time. The cursor is the last request whose answer was shown as an observation."""
    return watch(
        "uncommitted",
        uncommitted,
        applications,
        every_s=LOOK_EVERY_S,
        description="Requests a commit when too much state is uncommitted, and shows the answer.",
    )


def uncommitted(look: Look) -> Found:
    """A request, or the answer to the last one."""
    thresholds = look.supervised.thresholds
    last = look.database.latest_request(look.id, "commit", BY)
    if last is not None and last.state == "pending":
        return Found(said=f"request {last.id} is waiting for the driver: {last.reason}")
    answers = [] if last is None or look.cursor == str(last.id) else [_answer(look, last)]
    text = "no driver is running"
    status = look.status
    if status is not None and status.is_running:
        # what a task reported before the last answer does not show what is uncommitted now
        since_ms = last.finished_at_ms or 0 if last else 0
        size = sum(task.uncommitted_bytes for task in status.tasks if task.updated_at_ms > since_ms)
        text = f"{size_text(size)} uncommitted, the limit is {size_text(thresholds.uncommitted_max_bytes)}"
        is_cool = last is None or time.time() * 1000 - last.requested_at_ms >= thresholds.cooldown_s * 1000
        if size > thresholds.uncommitted_max_bytes and is_cool:
            request = look.database.request(look.id, "commit", by=BY, reason=text)
            text = f"request {request}: {text}"
    return Found(said=text, events=answers, cursor=str(last.id) if answers and last else None)


def _answer(look: Look, request: RequestRow) -> dg.AssetObservation:
    brought = action_of(look.database, request)
    lags = {"lag_before": brought.lag_before, "lag_after": brought.lag_after}
    return dg.AssetObservation(
        look.supervised.ingest,
        description=request.result,
        metadata={
            "request": request.id,
            "kind": request.kind,
            "state": request.state,
            "requested_by": request.requested_by,
            "reason": request.reason,
            "requested_at": dg.MetadataValue.timestamp(request.requested_at_ms / 1000),
            "answered_after_ms": (request.finished_at_ms or request.requested_at_ms) - request.requested_at_ms,
            "brought": brought.brought,
            **{name: lag for name, lag in lags.items() if lag is not None},
        },
    )
