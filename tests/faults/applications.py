"""The application that fault tests kill: integer sums, so that two runs agree exactly or something is wrong.

Three ways to keep state: a running table, windows with final results, and a table after a repartition.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from polars import col

from weir import Application, BufferConfig, Count, Json, Max, StreamsBuilder, String, Sum, Suppressed, TimeWindows

TOPIC, PARTITIONS = "events", 4
START_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Event:
    amount: int
    kind: str


def build(commit_interval: timedelta, topic: str = TOPIC) -> Application:
    builder = StreamsBuilder()
    events = builder.stream(topic, key=String("user"), value=Json(Event))
    events.group_by_key().agg("sums", total=Sum("amount"), events=Count()).to_delta("user_sums")
    (
        events.group_by_key()
        .windowed_by(TimeWindows.of_size_and_grace(timedelta(seconds=10), timedelta(seconds=2)))
        .agg("windows", total=Sum("amount"), biggest=Max("amount"))
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_delta("closed_windows")
    )
    (
        events.filter(col("amount") >= 0)
        .group_by("kind")
        .agg("by_kind", total=Sum("amount"), events=Count())
        .to_delta("kind_sums")
    )
    return Application("faulty", builder, commit_interval=commit_interval)


app = build(timedelta(milliseconds=100))
FACTS, TABLES, STORES = ("closed_windows",), ("user_sums", "kind_sums"), ("sums", "windows", "by_kind")


def records(count: int, seed: int = 1) -> Iterator[tuple[int, bytes, bytes, int]]:
    """Partition, key, value, timestamp in ms: mostly in order, some out of order, a few late."""
    rng = random.Random(seed)
    for number in range(count):
        user = rng.randrange(40)
        value = {"amount": rng.randrange(-5, 1000), "kind": f"kind-{rng.randrange(7)}"}
        late_ms = rng.choice([0] * 18 + [1_500, 30_000])
        yield user % PARTITIONS, f"user-{user}".encode(), json.dumps(value).encode(), START_MS + number * 100 - late_ms
