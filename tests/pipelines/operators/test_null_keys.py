"""Records without a key: left and outer joins let them through where a side may stand alone (KIP-962), all else drops
and counts them. The same records have the same results whether or not a repartition lies before the operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from weir import (
    Application,
    Count,
    JoinWindows,
    Json,
    KStream,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    String,
    TimeWindows,
)
from weir.testing import TopologyTestDriver

SOON = timedelta(seconds=10)
NEAR = JoinWindows.of_time_difference_with_no_grace(SOON)


@dataclass(frozen=True)
class Click:
    user: str | None
    page: str


@dataclass(frozen=True)
class Order:
    user: str | None
    item: str


@dataclass
class Sides:
    """Two streams by user, and a table and a global table of their towns."""

    clicks: KStream
    orders: KStream
    builder: StreamsBuilder

    @property
    def towns(self):
        return self.builder.table("towns", key=String("user"), value=String("town"), store="towns")

    @property
    def versioned_towns(self):
        return self.builder.table(
            "towns", key=String("user"), value=String("town"), store="towns", history_retention=SOON
        )

    @property
    def global_towns(self):
        return self.builder.global_table("towns", key=String("user"), value=String("town"), store="towns")


def moved(builder: StreamsBuilder) -> Sides:
    """Both streams have another key in their topics, so a repartition lies before what needs their users."""
    clicks, orders = (
        builder.stream(topic, key=String("id"), value=Json(kind))
        for topic, kind in (("clicks", Click), ("orders", Order))
    )
    return Sides(
        clicks.map(key="user", value={"page": "page"}), orders.map(key="user", value={"item": "item"}), builder
    )


def direct(builder: StreamsBuilder) -> Sides:
    """The topics have the users as keys."""
    clicks, orders = (
        builder.stream(topic, key=String("user"), value=String(value))
        for topic, value in (("clicks", "page"), ("orders", "item"))
    )
    return Sides(clicks, orders, builder)


CLICKS = [("ann", "/"), (None, "/docs"), ("bob", "/")]
ORDERS = [("ann", "tea"), (None, "salt"), ("joe", "tea")]


def results(side: Callable[[StreamsBuilder], Sides], program: Callable[[Sides], Any]) -> tuple[Counter[Any], int]:
    """How often each row was written, and how many null keys were dropped."""
    builder = StreamsBuilder()
    program(side(builder)).to_delta("out")
    application = Application("clicks", builder)
    with TopologyTestDriver(application) as driver:
        known = (*application.topology.topics(), *(table.source.topic for table in application.topology.global_tables))
        if "towns" in known:
            driver.create_input_topic("towns").pipe_input("ann", "Oslo", timestamp_ms=0)
        kinds = dict(clicks=Click, orders=Order)

        def pipe(topic: str, user: str | None, value: str, time_ms: int) -> None:
            record = (user, value) if side is direct else ("1", kinds[topic](user, value))
            driver.create_input_topic(topic).pipe_input(*record, timestamp_ms=time_ms)

        for topic, records in dict(clicks=CLICKS, orders=ORDERS).items():
            if topic in known:
                for user, value in records:
                    pipe(topic, user, value, 1_000)
        pipe("clicks", "end", "", 60_000)  # closes all windows
        rows = driver.create_output_table("out").read_rows()
        kept = ("user", "page", "item", "town", "count")
        written = Counter(tuple(row[name] for name in kept if name in row) for row in rows)
        return Counter({row: n for row, n in written.items() if row[0] != "end"}), driver.counts["null_keys"]


PAIRED = [("ann", "/", "tea")]
ALONE_LEFT = [("bob", "/", None), (None, "/docs", None)]
ALONE_RIGHT = [("joe", None, "tea"), (None, None, "salt")]
IN_TOWN = [("ann", "/", "Oslo")]
NOWHERE = [("bob", "/", None), (None, "/docs", None)]


@pytest.mark.parametrize("side", [direct, moved])
@pytest.mark.parametrize(
    ("program", "rows", "null_keys"),
    [
        (lambda on: on.clicks.join(on.orders, windows=NEAR, store="s"), PAIRED, 2),
        (lambda on: on.clicks.left_join(on.orders, windows=NEAR, store="s"), PAIRED + ALONE_LEFT, 1),
        (lambda on: on.clicks.outer_join(on.orders, windows=NEAR, store="s"), PAIRED + ALONE_LEFT + ALONE_RIGHT, 0),
        (lambda on: on.clicks.join(on.towns), IN_TOWN, 1),
        (lambda on: on.clicks.left_join(on.towns), IN_TOWN + NOWHERE, 0),
        (lambda on: on.clicks.left_join(on.versioned_towns, grace=SOON, store="s"), IN_TOWN + NOWHERE, 0),
        (lambda on: on.clicks.join(on.versioned_towns, grace=SOON, store="s"), IN_TOWN, 1),
        (lambda on: on.clicks.join(on.global_towns, key="user"), IN_TOWN, 1),
        (lambda on: on.clicks.left_join(on.global_towns, key="user"), IN_TOWN + NOWHERE, 0),
        (lambda on: on.clicks.group_by_key().count("s"), [("ann", 1), ("bob", 1)], 1),
        (
            lambda on: on.clicks.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(SOON)).count("s"),
            [("ann", 1), ("bob", 1)],
            1,
        ),
        (
            lambda on: (
                on.clicks.group_by_key().windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(SOON)).count("s")
            ),
            [("ann", 1), ("bob", 1)],
            1,
        ),
        (
            lambda on: (
                on.clicks.group_by_key().windowed_by(SlidingWindows.of_time_difference_with_no_grace(SOON)).count("s")
            ),
            [("ann", 1), ("bob", 1)],
            1,
        ),
        (
            lambda on: on.clicks.group_by_key().cogroup(count=Count()).agg("s"),
            [("ann", 1), ("bob", 1)],
            1,
        ),
        (lambda on: on.clicks.to_table("s"), [("ann", "/"), ("bob", "/")], 1),
    ],
    ids=[
        "stream join",
        "left stream join",
        "outer stream join",
        "table join",
        "left table join",
        "left join of held records",
        "join of held records",
        "global join",
        "left global join",
        "count",
        "windowed count",
        "sessions",
        "sliding windows",
        "cogroup",
        "table",
    ],
)
def test_null_keys_pass_where_a_side_may_stand_alone_and_are_counted_where_not(program, rows, null_keys, side):
    assert results(side, program) == (Counter(rows), null_keys)
