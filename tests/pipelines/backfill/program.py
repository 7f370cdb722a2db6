"""Six days of readings by sensor over two partitions: every kind of output that a backfill can meet."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import polars as pl
from polars import col

from tests.pipelines.spark.inline import Place, Topics
from weir import (
    Application,
    BufferConfig,
    Count,
    Json,
    SessionWindows,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
)
from weir.pipelines.backfill.shadow import Days

FIRST = datetime(2024, 5, 1, tzinfo=UTC)
DAYS = Days(first=date(2024, 5, 3), end=date(2024, 5, 5))
OUTPUTS = ("raised", "hours", "overlapping", "kinds")
"""Facts, final windows, a table of windows, final windows after a repartition."""


@dataclass(frozen=True)
class Reading:
    value: int
    kind: str


def build(least: int = 500) -> Application:
    """``least`` is a threshold in the program's logic: another value makes another program with the same topology."""
    builder = StreamsBuilder()
    readings = builder.stream("readings", key=String("sensor"), value=Json(Reading))
    high = Sum(col("value") >= least)
    readings.filter(col("value") >= least).to_delta("raised", partition_by="kind")
    hour = TimeWindows.of_size_and_grace(timedelta(hours=1), timedelta(minutes=30))
    final = Suppressed.until_window_closes(BufferConfig.unbounded())
    (
        readings.group_by_key()
        .windowed_by(hour)
        .agg("by_hour", readings=Count(), high=high)
        .suppress(final)
        .to_delta("hours")
    )
    (
        readings.group_by_key()
        .windowed_by(hour.advance_by(timedelta(minutes=30)))
        .agg("by_half", readings=Count(), high=high)
        .to_delta("overlapping", partition_by=["high", "sensor"])
    )
    patient = TimeWindows.of_size_and_grace(
        timedelta(hours=1), timedelta(hours=20)
    )  # none is late, in whatever order rows arrive
    (
        readings.group_by("kind")
        .windowed_by(patient)
        .agg("by_kind", readings=Count(), high=high)
        .suppress(final)
        .to_delta("kinds")
    )
    readings.group_by_key().agg("ever", readings=Count(), high=high).to_delta("totals")
    return Application("sensors", builder, commit_interval=timedelta(milliseconds=1))


app = build()
mended = build(300)


def build_sessions() -> Application:
    """Sessions of readings, which later readings may join."""
    builder = StreamsBuilder()
    (
        builder.stream("readings", key=String("sensor"), value=Json(Reading))
        .group_by_key()
        .windowed_by(SessionWindows.of_inactivity_gap_and_grace(timedelta(minutes=30), timedelta(days=1)))
        .agg("by_visit", readings=Count())
        .to_delta("visits")
    )
    return Application("sensors", builder, commit_interval=timedelta(milliseconds=1))


sessions = build_sessions()


def build_upserts(least: int = 500, totals: str = "totals") -> Application:
    """A table of windows and a running table, both with one row per key for people to read."""
    builder = StreamsBuilder()
    readings = builder.stream("readings", key=String("sensor"), value=Json(Reading))
    high = Sum(col("value") >= least)
    half = TimeWindows.of_size_and_grace(timedelta(hours=1), timedelta(minutes=30)).advance_by(timedelta(minutes=30))
    (
        readings.group_by_key()
        .windowed_by(half)
        .agg("by_half", readings=Count(), high=high)
        .to_delta("overlapping", mode="upsert")
    )
    readings.group_by_key().agg("ever", readings=Count(), high=high).to_delta(totals, mode="upsert")
    return Application("sensors", builder, commit_interval=timedelta(milliseconds=1))


def build_titled(least: int = 500) -> Application:
    """Readings with the titles of their kinds from a global table: those that are high, and running counts by title."""
    builder = StreamsBuilder()
    titles = builder.global_table("titles", key=String("kind"), value=String("title"), store="titles")
    readings = builder.stream("readings", key=String("sensor"), value=Json(Reading))
    titled = readings.join(titles, key="kind")
    titled.filter(col("value") >= least).to_delta("titled")
    titled.group_by("title").agg("by_title", readings=Count(), high=Sum(col("value") >= least)).to_delta("titles_read")
    return Application("sensors", builder, commit_interval=timedelta(milliseconds=1))


titled = build_titled()


def visits(*minutes: int) -> list:
    """A reading of one sensor at each of these minutes of the first day that is backfilled."""
    return [(b"sensor-0", b'{"value": 1, "kind": "kind-0"}', DAYS.start_ms + minute * 60_000) for minute in minutes]


def readings(per_day: int = 40) -> list:
    """Mostly in order; a few are hours late."""
    rng, rows = random.Random(5), []
    for number in range(6 * per_day):
        at = (
            FIRST
            + timedelta(days=1) * number / per_day
            - rng.choice([timedelta()] * 8 + [timedelta(minutes=20), timedelta(hours=5)])
        )
        value = {"value": rng.randrange(1000), "kind": f"kind-{rng.randrange(3)}"}
        rows.append((f"sensor-{rng.randrange(4)}".encode(), json.dumps(value).encode(), round(at.timestamp() * 1000)))
    return rows


def archive(rows: list) -> pl.DataFrame:
    """Readings as a table keeps them, in no particular order."""
    values = [json.loads(value) for _, value, _ in rows]
    frame = pl.DataFrame(
        {
            "sensor": [key.decode() for key, _, _ in rows],
            "value": [value["value"] for value in values],
            "kind": [value["kind"] for value in values],
            "_ts": pl.Series([time_ms for *_, time_ms in rows]).cast(pl.Datetime("ms", "UTC")),
        }
    )
    return frame.sample(fraction=1.0, shuffle=True, seed=1)


def sensors(folder, program: Application = app, share: float = 1.0, rows: list | None = None) -> Place:
    """The application over the first ``share`` of its readings; one partition for each half of the sensors."""
    place = Place(program, Topics(), folder, max_records=30)
    give(place, share, rows)
    return place


def give(place: Place, share: float, rows: list | None = None) -> None:
    """Let the topic have this share of its readings."""
    rows = rows or readings()
    for partition in (0, 1):
        of_partition = [row for row in rows if (row[0][-1] - ord("0")) % 2 == partition]
        place.topics.rows["readings", partition] = of_partition[: round(len(of_partition) * share)]
