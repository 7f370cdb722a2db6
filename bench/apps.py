"""The benchmark's jobs in Weir's DSL; ``bench.peers`` has the same jobs in those of other programs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

from polars import col

from bench.events import LARGE_BYTES, SMALL_BYTES, beside
from weir import (
    Application,
    BufferConfig,
    Int64,
    JoinWindows,
    Json,
    SessionWindows,
    SlidingWindows,
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
ROLLBACK, ROLLBACK_OF_MANY_KEYS = timedelta(milliseconds=500), timedelta(seconds=4)
"""How long undoing what is uncommitted may take: the default, and where keys in no order, each in a page of its own,
would reach that several times a second. Peers have no such limit."""


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
    """What an event is joined with by its key."""

    factor: int


@dataclass(frozen=True)
class Click:
    """What an event is joined with by key and time."""

    weight: int


@dataclass(frozen=True)
class Price:
    """What an event is joined with by its page."""

    price: int


def _application(job: str, topic: str, builder: StreamsBuilder, rollback: timedelta = ROLLBACK) -> Application:
    return Application(
        f"{job}_{topic}",
        builder,
        commit_interval=COMMIT_INTERVAL,
        uncommitted_max_bytes=CACHE_BYTES,
        uncommitted_max_rollback=rollback,
    )


def sum_per_key(topic: str, rollback: timedelta = ROLLBACK) -> Application:
    """The running sum of ``amount`` per user, as a table."""
    builder = StreamsBuilder()
    (
        builder.stream(topic, key=String("user"), value=Json(Event))
        .group_by_key()
        .agg("sums", total=Sum("amount"))
        .to_delta("totals")
    )
    return _application("sum_per_key", topic, builder, rollback)


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
    return _application("sum_to_topic", topic, builder)


def repartition_sum(topic: str) -> Application:
    """The running sum of ``amount`` per page: every event moves to the task that owns its page."""
    builder = StreamsBuilder()
    (
        builder.stream(topic, key=String("user"), value=Json(PageEvent))
        .group_by("page")
        .agg("sums", total=Sum("amount"))
        .to_delta("totals")
    )
    return _application("repartition_sum", topic, builder)


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
    return _application("python_sum", topic, builder)


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
    return _application("window_final", topic, builder)


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
    return _application(job, topic, builder)


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
    return _application("joined_text", topic, builder)


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
    return _application("session_sum", topic, builder)


def sliding_sum(topic: str) -> Application:
    """The sum of ``amount`` per user and sliding window of five seconds, as a table."""
    builder = StreamsBuilder()
    (
        builder.stream(topic, key=String("user"), value=Json(Event))
        .group_by_key()
        .windowed_by(SlidingWindows.of_time_difference_and_grace(timedelta(seconds=5), timedelta(seconds=10)))
        .agg("sums", total=Sum("amount"))
        .to_delta("totals")
    )
    return _application("sliding_sum", topic, builder)


def table_join_sum(topic: str) -> Application:
    """The sum per user of ``amount`` times the factor in the user's row of a table."""
    builder = StreamsBuilder()
    users = builder.table(beside(topic, "users"), key=String("user"), value=Json(User), store="users")
    (
        builder.stream(topic, key=String("user"), value=Json(Event))
        .join(users)
        .map_values(weighted=col("amount") * col("factor"))
        .group_by_key()
        .agg("sums", total=Sum("weighted"))
        .to_delta("totals")
    )
    return _application("table_join_sum", topic, builder)


def stream_join_sum(topic: str) -> Application:
    """The sum per user of ``amount`` times the weight of each of the user's clicks at most five seconds apart."""
    builder = StreamsBuilder()
    clicks = builder.stream(beside(topic, "clicks"), key=String("user"), value=Json(Click))
    windows = JoinWindows.of_time_difference_and_grace(timedelta(seconds=5), timedelta(seconds=10))
    (
        builder.stream(topic, key=String("user"), value=Json(Event))
        .join(clicks, windows=windows, store="pairs")
        .map_values(weighted=col("amount") * col("weight"))
        .group_by_key()
        .agg("sums", total=Sum("weighted"))
        .to_delta("totals")
    )
    return _application("stream_join_sum", topic, builder)


def foreign_key_join(topic: str) -> Application:
    """Of each user's newest event ``amount`` times the price of its page: two tables, joined by foreign key."""
    builder = StreamsBuilder()
    prices = builder.table(beside(topic, "pages"), key=String("page"), value=Json(Price), store="prices")
    (
        builder.table(topic, key=String("user"), value=Json(PageEvent), store="newest")
        .join(prices, foreign_key="page", store="placed")
        .map_values(total=col("amount") * col("price"))
        .to_delta("totals")
    )
    return _application("foreign_key_join", topic, builder)


sum_per_key_68 = sum_per_key(f"events_{SMALL_BYTES}")
sum_per_key_400 = sum_per_key(f"events_{LARGE_BYTES}")
sum_to_topic_68 = sum_to_topic(f"events_{SMALL_BYTES}")
sum_to_topic_400 = sum_to_topic(f"events_{LARGE_BYTES}")
repartition_sum_68 = repartition_sum(f"events_{SMALL_BYTES}")
repartition_sum_400 = repartition_sum(f"events_{LARGE_BYTES}")
window_final_68 = window_final(f"events_{SMALL_BYTES}")
window_final_400 = window_final(f"events_{LARGE_BYTES}")
python_sum_called = python_sum("events_called")
hopping_final_few = hopping_final("events_few")
joined_text_few = joined_text("events_few")
hopping_60_final_few = hopping_60_final("events_few")
session_sum_part = session_sum("events_part")
sliding_sum_part = sliding_sum("events_part")
stream_join_sum_part = stream_join_sum("events_part")
table_join_sum_wide = table_join_sum("events_wide")
foreign_key_join_orders = foreign_key_join("events_orders")
distinct_keys_distinct = sum_per_key("events_distinct", ROLLBACK_OF_MANY_KEYS)
sum_per_key_restore = sum_per_key("events_restore")
sum_per_key_many = sum_per_key("events_many", ROLLBACK_OF_MANY_KEYS)
sum_per_key_base = sum_per_key("events_base")
window_final_base = window_final("events_base")
sum_per_key_tenfold = sum_per_key("events_tenfold")
window_final_tenfold = window_final("events_tenfold")
