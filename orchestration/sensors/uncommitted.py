"""Asks the driver to commit when much of its state is uncommitted, and shows its answer."""

from __future__ import annotations

import time

import dagster as dg

from weir.infra.control import ControlDatabase
from weir.infra.control.rows import RequestRow
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.orchestration.thresholds import size_text

LOOK_EVERY_S = 10


def uncommitted_sensor(supervised: Supervised) -> dg.SensorDefinition:
    """One request at a time. The cursor is the last request whose answer was shown as an observation."""
    thresholds = supervised.thresholds
    name = f"{supervised.name}_uncommitted"
    by = f"dagster sensor {name}"

    @dg.sensor(
        name=name,
        tags=supervised.tags,
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Requests a commit when more than {size_text(thresholds.uncommitted_max_bytes)} of state "
        "is uncommitted.",
    )
    def uncommitted(context: dg.SensorEvaluationContext, weir: WeirResource) -> dg.SensorResult | dg.SkipReason:
        database = ControlDatabase(weir.settings().control_database_url)
        last = database.latest_request(supervised.id, "commit", by)
        if last is not None and last.state == "pending":
            return dg.SkipReason(f"request {last.id} is waiting for the driver: {last.reason}")
        answers = [] if last is None or context.cursor == str(last.id) else [_answer(supervised.ingest, last)]
        text = "no driver is running"
        status = database.application_status(supervised.id)
        if status is not None and status.is_running:
            # what a task reported before the last answer does not show what is uncommitted now
            since_ms = last.finished_at_ms or 0 if last else 0
            size = sum(task.uncommitted_bytes for task in status.tasks if task.updated_at_ms > since_ms)
            text = f"{size_text(size)} uncommitted, the limit is {size_text(thresholds.uncommitted_max_bytes)}"
            is_cool = last is None or time.time() * 1000 - last.requested_at_ms >= thresholds.cooldown_s * 1000
            if size > thresholds.uncommitted_max_bytes and is_cool:
                request = database.request(supervised.id, "commit", by=by, reason=text)
                text = f"request {request}: {text}"
        if not answers:
            return dg.SkipReason(text)
        return dg.SensorResult(asset_events=answers, skip_reason=text, cursor=str(last.id) if last else None)

    return uncommitted


def _answer(asset: dg.AssetKey, request: RequestRow) -> dg.AssetObservation:
    return dg.AssetObservation(
        asset,
        description=request.result,
        metadata={
            "request": request.id,
            "kind": request.kind,
            "state": request.state,
            "requested_by": request.requested_by,
            "reason": request.reason,
            "requested_at": dg.MetadataValue.timestamp(request.requested_at_ms / 1000),
            "answered_after_ms": (request.finished_at_ms or request.requested_at_ms) - request.requested_at_ms,
        },
    )
