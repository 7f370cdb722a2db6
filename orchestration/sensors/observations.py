"""Warnings as observations of an asset: one when a condition begins, another after a while, and one when it is over."""

from __future__ import annotations

import json
from collections.abc import Mapping

import dagster as dg

from weir.orchestration.sensors.watching import Found


def report_changes(
    asset: dg.AssetKey, conditions: Mapping[str, str], cursor: str | None, *, at_ms: int, cooldown_s: float
) -> Found:
    """What to answer when ``conditions`` (a sentence each, by name) hold as of ``at_ms``.

    The cursor remembers when each was last reported, by the times of the readings and not by the clock of this host.
    """
    reported: dict[str, int] = json.loads(cursor or "{}")
    due = {
        name: sentence
        for name, sentence in conditions.items()
        if name not in reported or at_ms - reported[name] >= cooldown_s * 1000
    }
    over = [name for name in reported if name not in conditions]
    if not (due or over):
        return Found(said=f"already reported: {', '.join(reported)}") if reported else Found()
    now = {name: at_ms if name in due else reported[name] for name in conditions}
    return Found(
        said="; ".join([*due.values(), *(f"over: {name}" for name in over)]),
        cursor=json.dumps(now),
        events=[
            *(observation(asset, name, sentence) for name, sentence in due.items()),
            *(observation(asset, name, f"over: {name}", severity="info") for name in over),
        ],
    )


def observation(
    asset: dg.AssetKey,
    name: str,
    sentence: str,
    metadata: Mapping[str, dg.MetadataValue] | None = None,
    *,
    severity: str = "warning",
) -> dg.AssetObservation:
    """An observation about the condition of that name; ``metadata`` is shown with it."""
    return dg.AssetObservation(
        asset, description=sentence, metadata={"warning": name, **(metadata or {})}, tags={"weir/severity": severity}
    )
