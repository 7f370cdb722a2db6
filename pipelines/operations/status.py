"""The status of an application: what is committed comes from the commit log, whether and how it runs from the control
database, what is in quarantine from the state folder."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.pipelines.operations.positions import committed_positions, committed_totals
from weir.pipelines.operations.quarantine import quarantine_status
from weir.state.commit.protocol import newest_commit


def application_status(settings: Settings, database: ControlDatabase, application: str) -> dict[str, Any]:
    """One application as plain values; counts are as of the newest commit, ``tasks``, ``metrics`` and throughput as of
    the last report."""
    newest, life = newest_commit(settings.warehouse, application), database.application_status(application)
    totals = committed_totals(newest)
    metric = life.metric if life else None
    return {
        "application": application,
        "state": life.state if life else "unknown",
        "is_running": bool(life and life.is_running),
        "generation": newest.generation if newest else None,
        "committed_epoch": newest.epoch if newest else None,
        "committed_at": _time(newest.at_ms) if newest else None,
        "records_in": totals.get("records_in", 0),
        "late_records": totals.get("late_records", 0),
        "open_windows": totals.get("open_windows", 0),
        "positions": committed_positions(newest),
        "lag": metric.lag if metric else None,
        "records_per_s": metric.records_per_s if metric and life and life.is_running else None,
        "commit_ms": metric.commit_ms if metric else None,
        "commit_ms_avg": metric.commit_ms_avg if metric else None,
        "commit_ms_max": metric.commit_ms_max if metric else None,
        "commits_per_s": metric.commits_per_s if metric else None,
        "host": life.host if life else None,
        "pid": life.pid if life else None,
        "started_at": _time(life.started_at_ms) if life else None,
        "ended_at": _time(life.ended_at_ms) if life else None,
        "error": life.error if life else None,
        "quarantine": asdict(quarantine_status(settings, application)),
        "tasks": [asdict(task) for task in life.tasks] if life else [],
        "metrics": list(life.readings) if life else [],
    }


def _time(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)
