"""A partition of which everything has been read, while some of it waits on the way, keeps its order when more comes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

from polars import col

from tests.pipelines.spark.away import put_away, put_back
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Json, StreamsBuilder, String
from weir.pipelines.spark.planner import Limits
from weir.state.commit.tables import read_table
from weir.state.types import TaskId

LIMITS = Limits(max_records=50, max_bytes=1 << 20, max_skew_ms=None)


@dataclass(frozen=True)
class Click:
    page: str
    n: int


@dataclass(frozen=True)
class Seen:
    all: str


def seen(key, value: Click, state: Seen) -> Seen:
    return Seen(state.all + str(value.n))


def nothing() -> Seen:
    return Seen("")


def program() -> Application:
    """The numbers of clicks in the order in which they are taken, after a detour by page."""
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click))
    by_page = clicks.select_key(page=col("page")).repartition("by-page", partitions=2)
    by_page.select_key(user=col("page").str.len_chars()).group_by_key().aggregate("order", nothing, seen).to_delta(
        "order"
    )
    return Application("clicks", builder, commit_interval=timedelta(milliseconds=1))


def click(n: int, page: str, time_ms: int):
    return b"u", json.dumps({"page": page, "n": n}).encode(), time_ms


def test_late_records_do_not_overtake_what_came_before_them_and_waits(tmp_path):
    """1 and 3 go one way, 2 and 4 the other, which is held up. 3 is late, and so comes after 2; 4 is late, too."""
    topics = Topics({("clicks", 0): [click(1, "a", 100), click(2, "d", 1_000), click(3, "a", 10)]})
    place = Place(program(), topics, tmp_path)
    coordinator = place.driver()._coordinator
    held = coordinator.tasks[TaskId(1, 1)]

    def step(now_ms: int) -> int:
        coordinator.run_epoch(topics.end_offsets(list(topics.rows)), LIMITS, now_ms=now_ms)
        return sum(blob.rows - blob.taken for task in coordinator.tasks.values() for blob in task.pending)

    put_away(held)
    assert step(1) == 2
    topics.rows["clicks", 0].append(click(4, "d", 20))
    put_back(held)
    assert step(2) == 0
    coordinator.commit("end")
    assert read_table(place.warehouse / "clicks" / "order")["all"].to_list() == ["1234"]


def joined() -> Application:
    """Orders by customer, which moves them, with the customers, whose topic is read where the orders arrive."""
    builder = StreamsBuilder()
    customers = builder.table("customers", key=String("customer"), value=String("city"), store="customers")
    orders = builder.stream("orders", key=String("order"), value=String("by"))
    orders.select_key(customer=col("by")).join(customers).to_delta("shipping")
    return Application("shop", builder, commit_interval=timedelta(milliseconds=1))


def test_rows_that_the_epoch_itself_sends_are_not_waiting(tmp_path):
    """A late update of a customer comes before an order after its time, though the order is on its way by then."""
    topics = Topics({("customers", 0): [(b"ann", b"Bonn", 1_000)], ("orders", 0): []})
    place = Place(joined(), topics, tmp_path)
    place.run()
    topics.rows["customers", 0].append((b"ann", b"Rome", 100))
    topics.rows["orders", 0].append((b"o-1", b"ann", 500))
    place.run()
    assert read_table(place.warehouse / "shop" / "shipping")["city"].to_list() == ["Rome"]
