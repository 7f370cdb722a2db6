"""Warnings as observations of an asset: once when something begins, again after a while, and once when it is over."""

from __future__ import annotations

import json
from collections.abc import Mapping

import dagster as dg


def tell(
    asset: dg.AssetKey, conditions: Mapping[str, str], cursor: str | None, *, at_ms: int, cooldown_s: float
) -> dg.SensorResult | dg.SkipReason:
    """What a sensor answers when ``conditions`` (what it is, a sentence each) hold as of ``at_ms``.

    The cursor remembers when each was told last, by the times of the readings and not by the clock of whoever looks.
    """
    told: dict[str, int] = json.loads(cursor or "{}")
    due = {
        what: sentence
        for what, sentence in conditions.items()
        if what not in told or at_ms - told[what] >= cooldown_s * 1000
    }
    over = [what for what in told if what not in conditions]
    if not (due or over):
        return dg.SkipReason(f"told before: {', '.join(told)}" if told else "all is well")
    now = {what: at_ms if what in due else told[what] for what in conditions}
    return dg.SensorResult(
        cursor=json.dumps(now),
        asset_events=[
            *(_observation(asset, what, sentence, "warning") for what, sentence in due.items()),
            *(_observation(asset, what, f"over: {what}", "info") for what in over),
        ],
    )


def _observation(asset: dg.AssetKey, what: str, sentence: str, severity: str) -> dg.AssetObservation:
    return dg.AssetObservation(
        asset, description=sentence, metadata={"warning": what}, tags={"weir/severity": severity}
    )
