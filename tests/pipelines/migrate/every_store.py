"""A program with one store of every kind: what tests/integration/java/StateToMigrate.java computes."""

from __future__ import annotations

from datetime import timedelta

from polars import col

from weir import (
    Application,
    BufferConfig,
    JoinWindows,
    SessionWindows,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindows,
)

TOPICS = ("clicks", "buys", "tiers", "orders", "users")


def seconds(count: int) -> timedelta:
    return timedelta(seconds=count)


def program(id: str, prefix: str = "") -> Application:
    builder = StreamsBuilder()
    clicks = builder.stream(f"{prefix}clicks", key=String("user"), value=String("page"))
    buys = builder.stream(f"{prefix}buys", key=String("user"), value=String("item"))
    by_user = clicks.group_by_key()
    sessions = SessionWindows.of_inactivity_gap_and_grace(seconds(5), seconds(1))
    by_user.windowed_by(sessions).count("visits").to_delta("visits")
    (
        by_user.windowed_by(TimeWindows.of_size_and_grace(seconds(10), seconds(2)))
        .count("windows")
        .filter(col("count") > 0)
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()).with_name("finals"))
        .to_delta("finals")
    )
    (
        by_user.count("totals")
        .suppress(Suppressed.until_time_limit(seconds(20), BufferConfig.max_records(1000)).with_name("slow"))
        .to_stream()
        .to_delta("slow")
    )
    tiers = builder.table(
        f"{prefix}tiers", key=String("user"), value=String("tier"), store="tiers", history_retention=seconds(30)
    )
    clicks.join(tiers).to_delta("tiered")
    orders = builder.table(f"{prefix}orders", key=String("id"), value=String("buyer"), store="orders")
    users = builder.table(f"{prefix}users", key=String("user"), value=String("country"), store="users")
    orders.join(users, foreign_key="buyer", store="buyers").to_delta("buyers")
    near = JoinWindows.of_time_difference_and_grace(seconds(3), seconds(1))
    clicks.left_join(buys, windows=near, store="near").to_delta("near")
    return Application(id, builder)
