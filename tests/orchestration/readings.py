"""What a driver reports to the control database, and what a sensor makes of it."""

import json
import time

import dagster as dg

from weir.infra.control import ApplicationStatus, MetricRow, MinuteRow, TaskStatusRow


def task(**fields) -> TaskStatusRow:
    return TaskStatusRow(**{"task": "0_0", "slot": 0, "status": "running", **fields})


def metric(**fields) -> MetricRow:
    return MetricRow(
        **{
            "epoch": 7,
            "committed_epoch": 7,
            "records_in": 1,
            "records_per_s": 1000.0,
            "lag": 0,
            "commit_ms": 9.0,
            **fields,
        }
    )


def minutes(lags: list[int], epochs: list[int] | None = None, pace: float = 1000.0) -> list[MinuteRow]:
    return [
        MinuteRow(at_ms=number * 60_000, epoch=epoch, records_per_s=pace, lag=lag, commit_ms=1.0)
        for number, (lag, epoch) in enumerate(zip(lags, epochs or range(len(lags)), strict=True))
    ]


def running(**fields) -> ApplicationStatus:
    """The status of a driver that is running, but for ``fields``."""
    return ApplicationStatus(
        **{
            "application": "flights",
            "state": "running",
            "is_running": True,
            "generation": 1,
            "owner": "",
            "host": "",
            "pid": 1,
            "has_process": True,
            "started_at_ms": 0,
            "heartbeat_at_ms": 0,
            "ended_at_ms": None,
            "error": None,
            "tasks": (task(),),
            "metric": metric(),
            **fields,
        }
    )


def observed(answer: dg.SensorResult | dg.SkipReason) -> list[str]:
    """The sentences of the observations that a sensor made."""
    return [event.description for event in answer.asset_events] if isinstance(answer, dg.SensorResult) else []


def remembered(cursor: str) -> str:
    """A sensor's cursor when it has remembered that of the flights alone."""
    return json.dumps({"flights": cursor})


def wait_for_next_millisecond() -> None:
    """Readings are compared by the millisecond."""
    now_ms = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == now_ms:
        pass
