"""The jobs whose counts are compared: a program each, and the records that its topics get, step by step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain

from polars import col

from tests.pipelines.spark.log_consumer import Row
from weir import (
    Application,
    BufferConfig,
    JoinWindows,
    Json,
    KeyValueStore,
    Processor,
    SessionWindows,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
)
from weir.state.types import TopicPartition

RECORDS, KEYS = 1_000, 200
"""Of a step of one stream. All steps have the same keys, so a step finds what the ones before have left."""
START_MS = 1_767_225_600_000
MINUTE_MS, TURN_MS = 60_000, 2_000
COMMIT_INTERVAL = timedelta(seconds=1)

Records = Mapping[TopicPartition, list[Row]]
"""What is added to topic partitions."""


@dataclass(frozen=True)
class Event:
    """A record of a stream, or a row of a table that names one of another."""

    page: str
    amount: int


@dataclass(frozen=True)
class User:
    """A row of the table that others are joined with."""

    factor: int


@dataclass(frozen=True)
class Pair:
    """Two records of one key that are close in time."""

    amount: int
    other: int


class Totals(Processor[str, Event, str, int]):
    """Keeps the sum per key and forwards it, record by record."""

    stores = (KeyValueStore("sums", key=str, value=int),)

    def init(self, context):
        self.context, self.sums = context, context.state_store("sums")

    def process(self, record):
        total = (self.sums.get(record.key) or 0) + record.value.amount
        self.sums.put(record.key, total)
        self.context.forward(record.with_value(total))


@dataclass(frozen=True, kw_only=True)
class Job:
    """A program, and what it reads."""

    build: Callable[[StreamsBuilder], None]
    records: Callable[[range, int], Records]
    """The records of these keys in the ten seconds from a time on, in ms."""
    partitions: int = 1

    def application(self) -> Application:
        builder = StreamsBuilder()
        self.build(builder)
        return Application("guarded", builder, commit_interval=COMMIT_INTERVAL)


def text(number: int) -> bytes:
    return b"u%06d" % number


def value(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def events(keys: range, at_ms: int) -> list[Row]:
    """One of each key in each of five times two seconds."""
    return [
        (text(key), value(page=f"p{key % 50:02}", amount=(key + turn) % 97), at_ms + turn * TURN_MS + key % TURN_MS)
        for turn in range(RECORDS // KEYS)
        for key in keys
    ]


def of_events(keys: range, at_ms: int) -> Records:
    return {("events", 0): events(keys, at_ms)}


def of_two_partitions(keys: range, at_ms: int) -> Records:
    """Half of the keys in each."""
    rows = events(keys, at_ms)
    return {("events", 0): rows[::2], ("events", 1): rows[1::2]}


def with_users(keys: range, at_ms: int) -> Records:
    """With a row of each key."""
    users: list[Row] = [(text(key), value(factor=1 + key % 7), at_ms) for key in keys]
    return {("users", 0): users, **of_events(keys, at_ms)}


def of_two_streams(keys: range, at_ms: int) -> Records:
    """Of each key, every other record in each."""
    rows = events(keys, at_ms)
    turns = [rows[start : start + len(keys)] for start in range(0, len(rows), len(keys))]
    return {("events", 0): list(chain(*turns[::2])), ("others", 0): list(chain(*turns[1::2]))}


def of_two_tables(keys: range, at_ms: int) -> Records:
    """A row of each key, which names one of a tenth as many pages, all of which have a row."""
    orders = [(text(key), value(page=f"p{key // 10:05}", amount=key % 97), at_ms + key % 1_000) for key in keys]
    pages: Iterable[int] = dict.fromkeys(key // 10 for key in keys)
    return {
        ("orders", 0): orders,
        ("pages", 0): [(b"p%05d" % page, value(factor=page % 7), at_ms + page % 1_000) for page in pages],
    }


def stream(builder: StreamsBuilder, topic: str = "events"):
    return builder.stream(topic, key=String("user"), value=Json(Event))


def sum_per_key(builder: StreamsBuilder) -> None:
    stream(builder).group_by_key().agg("sums", total=Sum("amount")).to_delta("totals")


def final_windows(builder: StreamsBuilder, windows: TimeWindows) -> None:
    (
        stream(builder)
        .group_by_key()
        .windowed_by(windows)
        .agg("sums", total=Sum("amount"))
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_delta("totals")
    )


MINUTES = TimeWindows.of_size_and_grace(timedelta(minutes=1), timedelta(seconds=10))


def sessions(builder: StreamsBuilder) -> None:
    (
        stream(builder)
        .group_by_key()
        .windowed_by(SessionWindows.of_inactivity_gap_and_grace(timedelta(seconds=3), timedelta(seconds=10)))
        .agg("sums", total=Sum("amount"))
        .to_delta("totals")
    )


def stream_table_join(builder: StreamsBuilder) -> None:
    users = builder.table("users", key=String("user"), value=Json(User), store="users")
    stream(builder).join(users).map_values(weighted=col("amount") * col("factor")).to_delta("weighted")


def stream_stream_join(builder: StreamsBuilder) -> None:
    windows = JoinWindows.of_time_difference_and_grace(timedelta(seconds=3), timedelta(seconds=1))
    left, right = stream(builder), stream(builder, "others")
    left.join(right, pair, windows=windows, store="met").to_delta("pairs")


def pair(one: Event, other: Event) -> Pair:
    return Pair(one.amount, other.amount)


def repartition_and_sum(builder: StreamsBuilder) -> None:
    stream(builder).group_by("page").agg("sums", total=Sum("amount")).to_delta("totals")


def foreign_key_join(builder: StreamsBuilder) -> None:
    orders = builder.table("orders", key=String("order"), value=Json(Event), store="orders")
    pages = builder.table("pages", key=String("page"), value=Json(User), store="pages")
    orders.left_join(pages, foreign_key="page", store="placed").to_stream().to_delta("placed")


def python_aggregate(builder: StreamsBuilder) -> None:
    stream(builder).group_by_key().aggregate("sums", lambda: 0, add_amount).to_delta("totals")


def add_amount(user: str, event: Event, total: int) -> int:
    return total + event.amount


def python_processor(builder: StreamsBuilder) -> None:
    stream(builder).process(Totals, name="totals").to_delta("totals")


JOBS = {
    "foreign_key_join": Job(build=foreign_key_join, records=of_two_tables),
    "hopping_windows_final": Job(
        build=lambda builder: final_windows(builder, MINUTES.advance_by(timedelta(seconds=15))), records=of_events
    ),
    "python_aggregate": Job(build=python_aggregate, records=of_events),
    "python_processor": Job(build=python_processor, records=of_events),
    "repartition_and_sum": Job(build=repartition_and_sum, records=of_two_partitions, partitions=2),
    "sessions": Job(build=sessions, records=of_events),
    "stream_stream_join": Job(build=stream_stream_join, records=of_two_streams),
    "stream_table_join": Job(build=stream_table_join, records=with_users),
    "sum_per_key": Job(build=sum_per_key, records=of_events),
    "tumbling_windows_final": Job(build=lambda builder: final_windows(builder, MINUTES), records=of_events),
}
