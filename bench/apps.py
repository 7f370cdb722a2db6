"""The benchmark's jobs in Weir's DSL; ``bench.peers`` has the same jobs in those of other programs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

from polars import col

from bench.events import LARGE_BYTES, SMALL_BYTES, users_of
from weir import (
    Application,
    BufferConfig,
    Int64,
    Json,
    SessionWindows,
    StreamsBuilder,
    String,
    StringAgg,
    Sum,
    Suppressed,
    TimeWindows,
)

OUTPUT = "BENCH_OUTPUT"
"""The variable with the name of the topic that ``sum_to_topic`` writes."""
COMMIT_INTERVAL = timedelta(seconds=1)
CACHE_BYTES = 64 << 20
"""The most changes held back before they are committed: Weir's uncommitted bytes, Kafka Streams' record cache."""


@dataclass(frozen=True)
class Event:
    """The only field of the events that most jobs need."""

    amount: int


@dataclass(frozen=True)
class PageEvent:
    """The fields of the events that are regrouped by page."""

    page: str
    amount: int


@dataclass(frozen=True)
class Page:
    """The field of the events that is joined to texts."""

    page: str


@dataclass(frozen=True)
class User:
    """What an event is joined with."""

    factor: int


def sum_per_key(topic: str) -> Application:
    """The running sum of ``amount`` per user, as a table."""
    builder = StreamsBuilder()
    (
        builder.stream(topic, key=String("user"), value=Json(Event))
        .group_by_key()
        .agg("sums", total=Sum("amount"))
        .to_delta("totals")
    )
    return Application(
        f"sum_per_key_{topic}", builder, commit_interval=COMMIT_INTERVAL, uncommitted_max_bytes=CACHE_BYTES
    )


def sum_to_topic(topic: str) -> Application:
    """The running sum of ``amount`` per user, in the topic that the environment names: of each key the newest update of
    an epoch, as Kafka Streams' record cache lets through."""
    builder = StreamsBuilder()
    (
        builder.stream(topic, key=String("user"), value=Json(Event))
        .group_by_key()
        .agg("sums", total=Sum("amount"))
        .to(os.environ.get(OUTPUT, "totals"), value=Int64("total"), name="totals")
    )
    return Application(
        f"sum_to_topic_{topic}", builder, commit_interval=COMMIT_INTERVAL, uncommitted_max_bytes=CACHE_BYTES
    )


def repartition_sum(topic: str) -> Application:
    """The running sum of ``amount`` per page: every event moves to the task that owns its page."""
    builder = StreamsBuilder()
    (
        builder.stream(topic, key=String("user"), value=Json(PageEvent))
        .group_by("page")
        .agg("sums", total=Sum("amount"))
        .to_delta("totals")
    )
    return Application(
        f"repartition_sum_{topic}", builder, commit_interval=COMMIT_INTERVAL, uncommitted_max_bytes=CACHE_BYTES
    )


def add_amount(user: str, event: Event, total: int) -> int:
    """The function of ``python_sum``; those of the peers in Python do the same."""
    return total + event.amount


def python_sum(topic: str) -> Application:
    """The running sum of ``amount`` per user by a Python function that is called for each record."""
    builder = StreamsBuilder()
    (
        builder.stream(topic, key=String("user"), value=Json(Event))
        .group_by_key()
        .aggregate("sums", lambda: 0, add_amount)
        .to_delta("totals")
    )
    return Application(
        f"python_sum_{topic}", builder, commit_interval=COMMIT_INTERVAL, uncommitted_max_bytes=CACHE_BYTES
    )


def window_final(topic: str) -> Application:
    """The sum of ``amount`` per user and minute, ten seconds after the minute has ended."""
    builder = StreamsBuilder()
    (
        builder.stream(topic, key=String("user"), value=Json(Event))
        .group_by_key()
        .windowed_by(TimeWindows.of_size_and_grace(timedelta(minutes=1), timedelta(seconds=10)))
        .agg("sums", total=Sum("amount"))
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_delta("totals")
    )
    return Application(
        f"window_final_{topic}", builder, commit_interval=COMMIT_INTERVAL, uncommitted_max_bytes=CACHE_BYTES
    )


def hopping_final(topic: str) -> Application:
    """Like ``window_final``, with a window every 15 seconds: each event is in four."""
    return _hopping("hopping_final", topic, timedelta(seconds=15))


def hopping_60_final(topic: str) -> Application:
    """Like ``window_final``, with a window every second: each event is in 60."""
    return _hopping("hopping_60_final", topic, timedelta(seconds=1))


def _hopping(job: str, topic: str, advance: timedelta) -> Application:
    windows = TimeWindows.of_size_and_grace(timedelta(minutes=1), timedelta(seconds=10))
    builder = StreamsBuilder()
    (
        builder.stream(topic, key=String("user"), value=Json(Event))
        .group_by_key()
        .windowed_by(windows.advance_by(advance))
        .agg("sums", total=Sum("amount"))
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_delta("totals")
    )
    return Application(f"{job}_{topic}", builder, commit_interval=COMMIT_INTERVAL, uncommitted_max_bytes=CACHE_BYTES)


def joined_text(topic: str) -> Application:
    """The pages of each user and 15 seconds, joined to one text, ten seconds after these have ended."""
    builder = StreamsBuilder()
    (
        builder.stream(topic, key=String("user"), value=Json(Page))
        .group_by_key()
        .windowed_by(TimeWindows.of_size_and_grace(timedelta(seconds=15), timedelta(seconds=10)))
        .agg("pages", total=StringAgg("page", ",", max_chars=1_000))
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_delta("totals")
    )
    return Application(
        f"joined_text_{topic}", builder, commit_interval=COMMIT_INTERVAL, uncommitted_max_bytes=CACHE_BYTES
    )


def session_sum(topic: str) -> Application:
    """The sum of ``amount`` per user and session (ended by three seconds without an event), as a table."""
    builder = StreamsBuilder()
    (
        builder.stream(topic, key=String("user"), value=Json(Event))
        .group_by_key()
        .windowed_by(SessionWindows.of_inactivity_gap_and_grace(timedelta(seconds=3), timedelta(seconds=10)))
        .agg("sums", total=Sum("amount"))
        .to_delta("totals")
    )
    return Application(
        f"session_sum_{topic}", builder, commit_interval=COMMIT_INTERVAL, uncommitted_max_bytes=CACHE_BYTES
    )


def table_join_sum(topic: str) -> Application:
    """The sum per user of ``amount`` times the factor in the user's row of a table."""
    builder = StreamsBuilder()
    users = builder.table(users_of(topic), key=String("user"), value=Json(User), store="users")
    (
        builder.stream(topic, key=String("user"), value=Json(Event))
        .join(users)
        .map_values(weighted=col("amount") * col("factor"))
        .group_by_key()
        .agg("sums", total=Sum("weighted"))
        .to_delta("totals")
    )
    return Application(
        f"table_join_sum_{topic}", builder, commit_interval=COMMIT_INTERVAL, uncommitted_max_bytes=CACHE_BYTES
    )


sum_per_key_68 = sum_per_key(f"events_{SMALL_BYTES}")
sum_per_key_400 = sum_per_key(f"events_{LARGE_BYTES}")
sum_to_topic_68 = sum_to_topic(f"events_{SMALL_BYTES}")
sum_to_topic_400 = sum_to_topic(f"events_{LARGE_BYTES}")
repartition_sum_68 = repartition_sum(f"events_{SMALL_BYTES}")
repartition_sum_400 = repartition_sum(f"events_{LARGE_BYTES}")
window_final_68 = window_final(f"events_{SMALL_BYTES}")
window_final_400 = window_final(f"events_{LARGE_BYTES}")
python_sum_few = python_sum("events_few")
hopping_final_few = hopping_final("events_few")
joined_text_few = joined_text("events_few")
hopping_60_final_few = hopping_60_final("events_few")
session_sum_few = session_sum("events_few")
table_join_sum_few = table_join_sum("events_few")
sum_per_key_restore = sum_per_key("events_restore")
sum_per_key_base = sum_per_key("events_base")
window_final_base = window_final("events_base")
sum_per_key_tenfold = sum_per_key("events_tenfold")
window_final_tenfold = window_final("events_tenfold")
