"""An application of joins and cogroups over five topics, plus two merged into one stream; and their records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from weir import (
    Application,
    BufferConfig,
    Count,
    JoinWindows,
    Json,
    Last,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
)
from weir.pipelines.serdes.partitioner import murmur2

PARTITIONS, RECORDS = 2, 220
TOPICS = {
    "joins-orders": 70,
    "joins-payments": 110,
    "joins-customers": 300,
    "joins-names": 900,
    "joins-views-eu": 130,
    "joins-views-us": 170,
    "joins-rebates": 500,
}
"""Milliseconds between records of each topic, so that no two keep pace."""
REBATES_PARTITIONS = 3
"""A join by foreign key does not need equal numbers."""


@dataclass(frozen=True)
class Order:
    amount: int


@dataclass(frozen=True)
class Payment:
    paid: int


@dataclass(frozen=True)
class Customer:
    tier: str


@dataclass(frozen=True)
class Name:
    name: str


@dataclass(frozen=True)
class Rebate:
    rebate: str


@dataclass(frozen=True)
class View:
    ms: int


def owed(user: str, order: Order, balance: int) -> int:
    return balance // 2 + order.amount


def settled(user: str, payment: Payment, balance: int) -> int:
    return balance - payment.paid


def program() -> Application:
    builder = StreamsBuilder()
    orders = builder.stream("joins-orders", key=String("user"), value=Json(Order))
    payments = builder.stream("joins-payments", key=String("user"), value=Json(Payment))
    customers = builder.table("joins-customers", key=String("user"), value=Json(Customer), store="customers")
    names = builder.table("joins-names", key=String("user"), value=Json(Name), store="names")
    orders.left_join(customers).to_delta("priced")
    then = customers.to_stream().to_table("customers_then", history_retention=timedelta(seconds=10))
    orders.left_join(then).to_delta("priced_then")
    orders.left_join(then, grace=timedelta(seconds=2), store="unpriced").to_delta("priced_in_order")
    orders.outer_join(
        payments,
        windows=JoinWindows.of_time_difference_and_grace(timedelta(seconds=2), timedelta(seconds=1)),
        store="settled",
    ).to_delta("settled")
    customers.outer_join(names).to_delta("profiles")
    customers.group_by("tier").count("tiers").to_delta("tiers")
    rebates = builder.table("joins-rebates", key=String("grade"), value=Json(Rebate), store="rebates")
    customers.join(rebates, foreign_key="tier", store="rebated").to_delta("rebated")
    orders.map_values(paid="amount").merge(payments).to_delta("amounts")
    orders.group_by_key().cogroup(owed).cogroup(payments.group_by_key(), settled).aggregate(
        "balances", int
    ).to_stream().to_delta("balances")
    (
        orders.group_by_key()
        .cogroup(orders=Count(), amount=Sum("amount"))
        .cogroup(payments.group_by_key(), paid=Sum("paid"), last=Last("paid"))
        .windowed_by(
            TimeWindows.of_size_and_grace(timedelta(seconds=2), timedelta(seconds=1)).advance_by(
                timedelta(milliseconds=500)
            )
        )
        .agg("spans")
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_delta("spans")
    )
    builder.stream(["joins-views-eu", "joins-views-us"], key=String("user"), value=Json(View)).to_delta("views")
    return Application("joins", builder, commit_interval=timedelta(milliseconds=200))


app = program()


def records(topic: str) -> Iterator[tuple[int, bytes, bytes | None, int]]:
    """Partition, key, value and timestamp; a tenth of the records are 3 s late, some values are null."""
    every_ms = TOPICS[topic]
    fields = {
        "joins-orders": "amount",
        "joins-payments": "paid",
        "joins-customers": "tier",
        "joins-names": "name",
        "joins-views-eu": "ms",
        "joins-views-us": "ms",
        "joins-rebates": "rebate",
    }
    for index in range(RECORDS * 70 // every_ms):
        lot = index * 2_654_435_761 % 997
        user, time_ms = lot % 40, 1_700_000_000_000 + index * every_ms - (3_000 if lot % 10 == 3 else 0)
        value = lot if every_ms < 200 else f"{fields[topic]}{lot % 3}"
        encoded = None if lot % 17 == 5 else json.dumps({fields[topic]: value}).encode()
        if topic == "joins-rebates":
            tier = b"tier%d" % (index % 3)
            yield int(murmur2([tier])[0] & 0x7FFFFFFF) % REBATES_PARTITIONS, tier, encoded, time_ms
        else:
            yield user % PARTITIONS, b"user-%d" % user, encoded, time_ms
