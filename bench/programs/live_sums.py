"""Sums per user, as a program of its own, which does not import the bench: a start that is measured is that of Weir."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from weir import Application, Json, StreamsBuilder, String, Sum


@dataclass(frozen=True)
class Event:
    """The field of the events that is summed."""

    amount: int


def _application(commit_ms: int) -> Application:
    builder = StreamsBuilder()
    (
        builder.stream("events_restart", key=String("user"), value=Json(Event))
        .group_by_key()
        .agg("sums", total=Sum("amount"))
        .to_delta("totals")
    )
    return Application(
        f"live_sums_{commit_ms}",
        builder,
        commit_interval=timedelta(milliseconds=commit_ms),
        uncommitted_max_bytes=64 << 20,
    )


each_100_ms, each_second = _application(100), _application(1_000)
