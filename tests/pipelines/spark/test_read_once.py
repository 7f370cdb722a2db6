"""A record that an epoch has read and left for the next is read once, whichever of the bounds of an epoch left it."""

import json
import random
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

from tests.examples import combined
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Count, FailOnInvalidTimestamp, Json, StreamsBuilder, String
from weir.state.commit.tables import read_rows, read_table

PARTITIONS, ORDERS, USERS = 2, 600, 30
START_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Order:
    number: int
    quantity: int
    at: datetime


@dataclass(frozen=True)
class User:
    name: str


def shop(**settings) -> Application:
    """Two topics meet in the first task; a repartition makes the tasks keep pace by stream time."""
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=String("user"), value=Json(Order), timestamp=FailOnInvalidTimestamp("at"))
    users = builder.table("users", key=String("user"), value=Json(User), store="users")
    orders.left_join(users).to_delta("enriched")
    orders.group_by("quantity").agg("quantities", orders=Count()).to_delta("quantities")
    return Application("shop", builder, **settings)


def topics(seed: int) -> tuple[Topics, list[dict]]:
    """Orders whose times are roughly in order, unlike the times of their records; users among them."""
    rng = random.Random(seed)
    rows = {(topic, partition): [] for topic in ("orders", "users") for partition in range(PARTITIONS)}
    orders = []
    for number in range(ORDERS):
        user, at_ms = rng.randrange(USERS), START_MS + number * 1_000 + rng.randrange(-20_000, 20_000)
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
        orders.append({"number": number, "quantity": rng.randrange(5), "at": at.isoformat()})
        rows["orders", user % PARTITIONS].append(
            (f"user-{user}".encode(), json.dumps(orders[-1]).encode(), START_MS + rng.randrange(10_000_000))
        )
        if rng.random() < 0.2:
            user = rng.randrange(USERS)
            value = json.dumps({"name": f"name-{number}"}).encode()
            rows["users", user % PARTITIONS].append((f"user-{user}".encode(), value, at_ms))
    return Topics(rows), orders


@combined("max_records,uncommitted_max_bytes", [7, 20, 64, 10_000], [500, 64 << 20])
def test_each_order_is_taken_once(tmp_path, max_records, uncommitted_max_bytes):
    log, orders = topics(max_records)
    place = Place(shop(uncommitted_max_bytes=uncommitted_max_bytes), log, tmp_path, max_records=max_records)
    assert place.run().records_in == sum(map(len, log.rows.values()))
    numbers = Counter(read_rows(place.warehouse / "shop" / "enriched")["number"])
    assert numbers == Counter(order["number"] for order in orders)
    quantities = read_table(place.warehouse / "shop" / "quantities")
    assert dict(quantities.select("quantity", "orders").rows()) == Counter(order["quantity"] for order in orders)
