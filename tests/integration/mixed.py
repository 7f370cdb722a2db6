"""An application with what others lack: msgpack, Protobuf, times from a column, idle input, branches, aggregates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
from google.protobuf.wrappers_pb2 import Int64Value
from polars import col

from weir import (
    Application,
    ApproxDistinct,
    ApproxQuantiles,
    Collect,
    Count,
    EmitStrategy,
    FailOnInvalidTimestamp,
    JoinWindows,
    Json,
    Last,
    Msgpack,
    Protobuf,
    StreamsBuilder,
    String,
    StringAgg,
    Sum,
    TimeWindows,
    TopK,
    UnlimitedWindows,
    ValueCounts,
)

TOPICS, PARTITIONS, RECORDS = ("mixed-visits", "mixed-amounts"), 2, 120
PAGES = {"a": "news", "b": "sport"}
START = datetime(2024, 1, 1, tzinfo=UTC)
SECOND, HALF_SECOND = timedelta(seconds=1), timedelta(milliseconds=500)


@dataclass(frozen=True)
class Visit:
    page: str
    amount: int
    at: datetime


@dataclass(frozen=True)
class Page:
    section: str


@dataclass(frozen=True)
class Half:
    page: str
    half: int


def halves(user: str, visit: Visit) -> Iterator[tuple[str, Half]]:
    for part in range(visit.amount % 3):
        yield user, Half(visit.page, visit.amount // 2 + part)


def program() -> Application:
    builder = StreamsBuilder()
    visits = builder.stream(
        "mixed-visits",
        key=String("user"),
        value=Msgpack(Visit),
        timestamp=FailOnInvalidTimestamp("at"),
        idle_after=HALF_SECOND,
    )
    amounts = builder.stream("mixed-amounts", key=String("user"), value=Protobuf(Int64Value), idle_after=HALF_SECOND)
    pages = builder.global_table("mixed-pages", key=String("page"), value=Json(Page), store="pages")
    branches = visits.split("by-").branch(col("amount") < 60, "small").default_branch("large")
    branches["by-small"].flat_map(halves).to_delta("halves")
    branches["by-large"].left_join(pages, key="page").to_delta("placed")
    by_user = visits.group_by_key()
    by_user.agg(
        "about_store",
        pages=ApproxDistinct("page"),
        amounts=ApproxQuantiles("amount", at=(0.5, 0.9)),
        first=Collect("amount", limit=3),
        trail=StringAgg("page", ">", max_chars=9),
        latest=Last("page", by_time=True),
        largest=TopK("page", 2, by="amount"),
        counts=ValueCounts("page", limit=2),
    ).to_stream().to_delta("about")
    by_user.windowed_by(TimeWindows.of_size_and_grace(SECOND, SECOND)).emit_strategy(
        EmitStrategy.on_window_close()
    ).agg("closed_store", n=Count(), amount=Sum("amount")).to_delta("closed")
    by_user.windowed_by(UnlimitedWindows.start_on(START + 2 * SECOND)).count("since").to_stream().to_delta("since")
    visits.left_join(
        amounts, windows=JoinWindows.of_time_difference_and_grace(HALF_SECOND, HALF_SECOND), store="paid"
    ).to_delta("paid")
    return Application("mixed", builder, commit_interval=timedelta(milliseconds=300))


app = program()
TABLES = ("halves", "about", "placed", "closed", "since", "paid")


def records(topic: str) -> Iterator[tuple[int, bytes, bytes | Int64Value, int]]:
    """Partition, key, value and time in ms, 100 apart, every seventh 3 s late; visits have theirs only in a column."""
    for number in range(RECORDS):
        lot = number * 7_919 % 101
        time = START + timedelta(milliseconds=number * 100 - (3_000 if number % 7 == 6 else 0))
        time_ms = round(time.timestamp() * 1000)
        user = lot % 5
        if topic == "mixed-visits":
            value = msgspec.msgpack.encode({"page": "abc"[lot % 3], "amount": lot, "at": time})
            yield user % PARTITIONS, b"user-%d" % user, value, time_ms
        elif number % 4 == 0:
            yield user % PARTITIONS, b"user-%d" % user, Int64Value(value=lot), time_ms + 1
