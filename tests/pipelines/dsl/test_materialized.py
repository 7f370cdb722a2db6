"""Every place where the store of an aggregation or table is named takes a store of the user's there."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.state.engine.own_store import InMemory
from weir import (
    Application,
    Int64,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    String,
    Sum,
    TimeWindows,
)
from weir.testing import TopologyTestDriver

HOUR = timedelta(hours=1)
KEPT = Materialized("kept", InMemory)


def start() -> int:
    return 0


def add(key: str, value: int, aggregate: int) -> int:
    return aggregate + value


def both(key: str, one: int, other: int) -> int:
    return one + other


def plus(reduced: int, value: int) -> int:
    return reduced + value


def minus(reduced: int, value: int) -> int:
    return reduced - value


def by_key(builder, **options):
    return builder.stream("in", key=String("user"), value=Int64("n")).group_by_key(**options)


def table_groups(builder):
    return builder.table("in", key=String("user"), value=Int64("n"), store="rows").group_by(group="user")


def cogroup(builder):
    return by_key(builder).cogroup(total=Sum("n"))


def by_table(builder, **options):
    return builder.table("in", key=String("user"), value=Int64("n"), store=KEPT, **options)


DAY = timedelta(days=1)
SLIDING = SlidingWindows.of_time_difference_and_grace(HOUR, HOUR)
PROGRAMS = {
    "agg": (lambda b: by_key(b).agg(KEPT, total=Sum("n")), {"total": 6}),
    "count": (lambda b: by_key(b).count(KEPT), 3),
    "reduce": (lambda b: by_key(b).reduce(KEPT, plus), 6),
    "aggregate": (lambda b: by_key(b).aggregate(KEPT, start, add), 6),
    "another key": (
        lambda b: b.stream("in", key=String("id"), value=Int64("n")).group_by(user="id").count(KEPT),
        3,
    ),
    "cogroup": (lambda b: cogroup(b).agg(KEPT), {"total": 6}),
    "cogroup by functions": (lambda b: by_key(b).cogroup(add).aggregate(KEPT, start), 6),
    "table": (lambda b: by_table(b), 3),
    "table with a ttl": (lambda b: by_table(b, ttl=DAY), 3),
    "to_table": (lambda b: b.stream("in", key=String("user"), value=Int64("n")).to_table(KEPT), 3),
    "agg of a table": (lambda b: table_groups(b).agg(KEPT, total=Sum("n")), {"total": 3}),
    "count of a table": (lambda b: table_groups(b).count(KEPT), 1),
    "reduce of a table": (lambda b: table_groups(b).reduce(KEPT, plus, minus), 3),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_key_value_store_may_be_ones_own(name):
    program, wanted = PROGRAMS[name]
    builder = StreamsBuilder()
    program(builder).to_delta("out")
    with TopologyTestDriver(Application("own", builder)) as driver:
        driver.create_input_topic("in").pipe_key_value_list([("ann", 1), ("bob", 5), ("ann", 2), ("ann", 3)])
        assert driver.get_key_value_store("kept").get("ann") == wanted
        assert len(in_own_store(driver)) == 2


@pytest.mark.parametrize(
    ("windows", "rows"),
    [
        (TimeWindows.of_size_and_grace(HOUR, HOUR), 3),
        (SessionWindows.of_inactivity_gap_and_grace(HOUR, HOUR), 3),
        (SLIDING, 4),
    ],
)
def test_windows_and_sessions_may_be_in_ones_own_store(windows, rows):
    """ann at 0 and 30 minutes, and again after three hours; bob once."""
    builder = StreamsBuilder()
    by_key(builder).windowed_by(windows, retention=DAY).count(KEPT).to_delta("out")
    with TopologyTestDriver(Application("own", builder)) as driver:
        topic = driver.create_input_topic("in")
        for user, minute in (("ann", 0), ("ann", 30), ("bob", 31), ("ann", 180)):
            topic.pipe_input(user, 1, timestamp_ms=minute * 60_000)
        written = [row["count"] for row in driver.create_output_table("out").read_rows()]
        assert max(count for count in written if count) == 2
        assert len(in_own_store(driver)) >= rows


def test_a_versioned_table_may_be_in_ones_own_store():
    builder = StreamsBuilder()
    by_table(builder, history_retention=DAY).to_delta("out")
    with TopologyTestDriver(Application("own", builder)) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_input("ann", 1, timestamp_ms=0)
        topic.pipe_input("ann", 2, timestamp_ms=60_000)
        store = driver.get_versioned_store("kept")
        assert [value for _, value in store.versions("ann")] == [1, 2]
        assert len(in_own_store(driver)) == 2


def in_own_store(driver) -> dict[bytes, bytes]:
    """The rows that the user's store holds."""
    (own,) = [own for task in driver._tasks.values() for own in task.store._backing.stores.values()]
    return {key: value for key, value in own.rows.items() if value is not None}
