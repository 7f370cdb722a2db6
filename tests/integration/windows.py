"""An application with windows of every kind over one topic, and its records."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from weir import (
    Application,
    BufferConfig,
    Count,
    Json,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
)

TOPIC, PARTITIONS, RECORDS = "visits", 2, 220
START_MS = 1_700_000_000_000
SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class Visit:
    amount: int


HOPPING = TimeWindows.of_size_and_grace(40 * SECOND, 10 * SECOND).advance_by(10 * SECOND)
SESSIONS = SessionWindows.of_inactivity_gap_and_grace(3 * SECOND, 10 * SECOND)
SLIDING = SlidingWindows.of_time_difference_and_grace(20 * SECOND, 10 * SECOND)
FINAL = Suppressed.until_window_closes(BufferConfig.unbounded())
LIMITED = Suppressed.until_time_limit(20 * SECOND, BufferConfig.max_records(6))
SUMS = dict(visits=Count(), amount=Sum("amount"))

builder = StreamsBuilder()
by_user = builder.stream(TOPIC, key=String("user"), value=Json(Visit)).group_by_key()
(
    by_user.windowed_by(HOPPING, late_to=lambda late: late.to_delta("late"))
    .agg("hopping_store", **SUMS)
    .suppress(FINAL)
    .to_delta("hopping")
)
by_user.windowed_by(SESSIONS).agg("sessions_store", **SUMS).to_stream().to_delta("sessions")
by_user.windowed_by(SESSIONS).agg("final_sessions_store", **SUMS).suppress(FINAL).to_delta("final_sessions")
by_user.windowed_by(SLIDING).agg("sliding_store", **SUMS).to_stream().to_delta("sliding")
by_user.agg("sums_store", **SUMS).suppress(LIMITED.with_name("held")).to_stream().to_delta("limited")
app = Application("windows", builder, commit_interval=timedelta(milliseconds=300))

TABLES = ("hopping", "late", "sessions", "final_sessions", "sliding", "limited")


def records() -> Iterator[tuple[int, bytes, bytes, int]]:
    """Partition, key, value and time in ms: half a second apart on average, up to 21 s out of order."""
    draw = random.Random(5)
    for number in range(RECORDS):
        user = draw.randrange(6)
        time_ms = START_MS + number * 500 - draw.choice((0, 0, 0, 3_000, 12_000, 20_000)) - draw.randrange(900)
        yield user % PARTITIONS, f"user{user}".encode(), b'{"amount": %d}' % draw.randrange(100), time_ms
