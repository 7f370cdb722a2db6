"""An application with every kind of store and type, its records, and a plain model of what its stores hold."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated
from uuid import UUID

import polars as pl
from polars import col

from weir import (
    Application,
    BufferConfig,
    Count,
    Int64,
    Json,
    ListStore,
    Mean,
    Processor,
    SessionWindows,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
)
from weir.pipelines.serdes.partitioner import murmur2

NINE = datetime(2026, 1, 1, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOPPING = TimeWindows.of_size_with_no_grace(10 * MINUTE).advance_by(4 * MINUTE)
SHOPS, RECORDS, PARTITIONS = 7, 120, 2


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Sale:
    amount: int


@dataclass(frozen=True)
class Room:
    town: str
    floor: int | None


@dataclass(frozen=True)
class Everything:
    number: int
    share: float
    flag: bool
    text: str
    raw: bytes
    at: datetime
    day: date
    hour: time
    exact: Decimal
    price: Annotated[Decimal, pl.Decimal(12, 2)]
    id: UUID
    colour: Colour
    place: Room | None
    parts: list[Room]
    labels: dict[str, str]
    missing: int | None


class Remember(Processor[str, Sale, None, None]):
    stores = (ListStore("amounts_of", key=str, value=int),)

    def init(self, context):
        self.amounts_of = context.state_store("amounts_of")

    def process(self, record):
        self.amounts_of.append(record.key, record.value.amount)


def build() -> Application:
    builder = StreamsBuilder()
    sales = builder.stream("sales", key=String("shop"), value=Json(Sale))
    by_shop = sales.group_by_key()
    by_shop.agg("sums", total=Sum("amount"), sales=Count()).to_delta("totals")
    by_shop.windowed_by(TimeWindows.of_size_with_no_grace(10 * MINUTE)).count("by_time")
    final = Suppressed.until_window_closes(BufferConfig.unbounded())
    by_shop.windowed_by(HOPPING).agg("lately", mean=Mean("amount"), sales=Count()).suppress(final).to_delta("lately")
    by_shop.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(2 * MINUTE)).count("visits")
    sales.process(Remember)
    sales.group_by("amount").agg("by_amount", sales=Count()).to_delta("amounts")
    builder.table("prices", key=String("item"), value=Int64("cents"), store="prices", history_retention=240 * MINUTE)
    towns = builder.global_table("towns", key=String("shop"), value=String("town"), store="towns")
    sales.left_join(towns, key=col("shop")).to_delta("sold_in")
    builder.table("things", key=String("name"), value=Json(Everything), store="things")
    return Application("market", builder, commit_interval=timedelta(milliseconds=1))


app = build()


@dataclass(frozen=True)
class Sold:
    shop: str
    amount: int
    at: datetime


def sold() -> list[Sold]:
    """By time; the pauses make sessions."""
    found, at = [], NINE
    for number in range(RECORDS):
        at += timedelta(seconds=7) if number % 40 else 3 * MINUTE
        found.append(Sold(f"shop-{number * number % SHOPS}", number % 9, at))
    return found


def moved() -> list[tuple[str, str | None]]:
    """Where shops are, in order; None for nowhere any more."""
    return [(f"shop-{number}", f"town-{number % 3}") for number in range(SHOPS)] + [
        ("shop-0", "town-9"),
        ("shop-1", None),
        ("shop-2", None),
        ("shop-2", "town-8"),
    ]


def partition_of(key: str) -> int:
    return int(murmur2([key.encode()])[0] & 0x7FFFFFFF) % PARTITIONS


def records() -> dict[tuple[str, int], list]:
    """Key, value and time in ms of each record, by topic partition."""
    rows = defaultdict[tuple[str, int], list](list)
    for each in sold():
        value = json.dumps({"amount": each.amount}).encode()
        rows["sales", partition_of(each.shop)].append((each.shop.encode(), value, _ms(each.at)))
    for cents, at in ((300, NINE), (350, NINE + 30 * MINUTE)):
        rows["prices", 0].append((b"tea", cents.to_bytes(8, "big"), _ms(at)))
    for shop, town in moved():
        rows["towns", partition_of(shop)].append((shop.encode(), None if town is None else town.encode(), _ms(NINE)))
    thing = {
        "number": -(1 << 40),
        "share": 0.1,
        "flag": True,
        "text": "ß",
        "raw": "AP8=",
        "at": "2026-01-01T10:00:00.123+01:00",
        "day": "2026-01-02",
        "hour": "08:30:00.5",
        "exact": "1.000000001",
        "price": "12.30",
        "id": "2f1e0f3c-5f0e-4a6b-8a4e-0d2f6b9c1a77",
        "colour": "red",
        "place": {"town": "Ulm", "floor": None},
        "parts": [{"town": "Bonn", "floor": 2}],
        "labels": {"a": "b"},
        "missing": None,
    }
    for name in ("lamp", "lantern", "table"):
        rows["things", partition_of(name)].append((name.encode(), json.dumps(thing).encode(), _ms(NINE)))
    return rows | {("things", partition): rows["things", partition] for partition in range(PARTITIONS)}


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
