"""Cogrouped streams, record by record (KIP-150; Kafka Streams features, section 3)."""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from polars import col

from weir import (
    Application,
    BufferConfig,
    CogroupedKStream,
    CoPartitioningError,
    Count,
    EmitStrategy,
    Json,
    KStream,
    KTable,
    Max,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
    TopologyError,
    UserFunctionError,
)
from weir.testing import TopologyTestDriver


@dataclass(frozen=True)
class Click:
    page: str


@dataclass(frozen=True)
class Purchase:
    buyer: str
    cents: int


@dataclass(frozen=True)
class Visit:
    pages: str = ""
    cents: int = 0


def clicked(user: str, click: Click | None, visit: Visit) -> Visit:
    return Visit(visit.pages + (click.page if click else "-"), visit.cents)


def bought(user: str, purchase: Purchase | None, visit: Visit) -> Visit | None:
    if purchase is None or purchase.cents == 0:
        return None
    return Visit(visit.pages, visit.cents * 10 + purchase.cents)


def together(user: str, one: Visit, other: Visit) -> Visit:
    return Visit(f"{one.pages}({other.pages})", one.cents + other.cents)


def topics(builder: StreamsBuilder) -> tuple[KStream, KStream]:
    return (
        builder.stream("clicks", key=String("user"), value=Json(Click)),
        builder.stream("purchases", key=String("id"), value=Json(Purchase)),
    )


@contextmanager
def driven(program: Callable[[CogroupedKStream], KTable]):
    """The topics ``clicks`` and ``purchases``, the table ``out`` and the driver, for cogrouped functions."""
    builder = StreamsBuilder()
    clicks, purchases = topics(builder)
    cogrouped = clicks.group_by_key().cogroup(clicked).cogroup(purchases.group_by_key(), bought)
    program(cogrouped).to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        yield (
            driver.create_input_topic("clicks"),
            driver.create_input_topic("purchases"),
            driver.create_output_table("out"),
            driver,
        )


def visits(out):
    return [(row["user"], row["pages"], row["cents"]) for row in out.read_rows()]


def test_each_stream_has_its_aggregator_and_all_share_one_state_per_key():
    with driven(lambda cogrouped: cogrouped.aggregate("visits", Visit)) as (clicks, purchases, out, driver):
        clicks.pipe_input("ann", Click("a"), timestamp_ms=1)
        purchases.pipe_input("ann", Purchase("", 3), timestamp_ms=2)
        purchases.pipe_input("bob", Purchase("", 5), timestamp_ms=3)
        clicks.pipe_input("ann", Click("b"), timestamp_ms=4)
        assert visits(out) == [("ann", "a", 0), ("ann", "a", 3), ("bob", "", 5), ("ann", "ab", 3)]
        assert driver.get_key_value_store("visits").get("ann") == dict(pages="ab", cents=3)


def test_a_result_has_the_greatest_time_of_all_streams():
    with driven(lambda cogrouped: cogrouped.aggregate("visits", Visit)) as (clicks, purchases, out, _):
        clicks.pipe_input("ann", Click("a"), timestamp_ms=9)
        purchases.pipe_input("ann", Purchase("", 3), timestamp_ms=4)
        assert [record.timestamp for record in out.read_records()] == [datetime(1970, 1, 1, 0, 0, 0, 9000, UTC)] * 2


def test_null_keys_and_null_values_are_dropped_and_counted():
    with driven(lambda cogrouped: cogrouped.aggregate("visits", Visit)) as (clicks, purchases, out, driver):
        clicks.pipe_input(None, Click("a"), timestamp_ms=1)
        purchases.pipe_input("ann", None, timestamp_ms=2)
        assert out.is_empty()
        assert (driver.counts["null_keys"], driver.counts["null_values"]) == (1, 1)


def test_an_aggregator_that_returns_none_deletes_the_row_and_the_next_record_starts_over():
    with driven(lambda cogrouped: cogrouped.aggregate("visits", Visit)) as (clicks, purchases, out, driver):
        clicks.pipe_input("ann", Click("a"), timestamp_ms=1)
        purchases.pipe_input("ann", Purchase("", 0), timestamp_ms=2)
        assert [record.is_deleted for record in out.read_records()] == [False, True]
        assert driver.get_key_value_store("visits").get("ann") is None
        clicks.pipe_input("ann", Click("b"), timestamp_ms=3)
        assert visits(out) == [("ann", "b", 0)]


def test_an_aggregator_that_fails_is_named():
    with (
        driven(lambda cogrouped: cogrouped.aggregate("visits", lambda: 7)) as (clicks, _, _, _),
        pytest.raises(UserFunctionError, match=r"clicked or bought.*no attribute 'pages'"),
    ):
        clicks.pipe_input("ann", Click("a"), timestamp_ms=1)


TEN = TimeWindows.of_size_and_grace(timedelta(milliseconds=10), timedelta(milliseconds=5))


def test_windows_of_all_streams_close_by_one_stream_time():
    final = Suppressed.until_window_closes(BufferConfig.unbounded())
    with driven(lambda cogrouped: cogrouped.windowed_by(TEN).aggregate("visits", Visit).suppress(final)) as (
        clicks,
        purchases,
        out,
        driver,
    ):
        clicks.pipe_input("ann", Click("a"), timestamp_ms=1)
        purchases.pipe_input("bob", Purchase("", 2), timestamp_ms=14)
        clicks.pipe_input("ann", Click("b"), timestamp_ms=9)
        assert out.is_empty()
        purchases.pipe_input("bob", Purchase("", 2), timestamp_ms=15)
        assert visits(out) == [("ann", "ab", 0)]
        clicks.pipe_input("ann", Click("c"), timestamp_ms=9)
        assert out.is_empty()
        assert driver.counts["late_records"] == 1


def test_null_values_reach_the_aggregators_of_windows():
    with driven(lambda cogrouped: cogrouped.windowed_by(TEN).aggregate("visits", Visit)) as (clicks, purchases, out, _):
        clicks.pipe_input("ann", None, timestamp_ms=1)
        assert visits(out) == [("ann", "-", 0)]
        purchases.pipe_input("ann", None, timestamp_ms=2)
        assert [record.is_deleted for record in out.read_records()] == [True]


def test_records_of_all_streams_make_sessions_and_merge_them():
    gap = SessionWindows.of_inactivity_gap_and_grace(timedelta(milliseconds=5), timedelta(milliseconds=50))
    with driven(lambda cogrouped: cogrouped.windowed_by(gap).aggregate("visits", Visit, together)) as (
        clicks,
        purchases,
        out,
        _,
    ):
        clicks.pipe_input("ann", Click("a"), timestamp_ms=0)
        clicks.pipe_input("ann", Click("b"), timestamp_ms=10)
        out.read_records()
        purchases.pipe_input("ann", Purchase("", 3), timestamp_ms=5)
        *gone, merged = out.read_records()
        assert [record.is_deleted for record in gone] == [True, True]
        assert (merged.row["pages"], merged.row["cents"]) == ("(a)(b)", 3)


def test_sliding_windows_hold_records_of_all_streams_and_are_forwarded_on_close():
    sliding = SlidingWindows.of_time_difference_with_no_grace(timedelta(milliseconds=5))
    with driven(
        lambda cogrouped: (
            cogrouped.windowed_by(sliding).emit_strategy(EmitStrategy.on_window_close()).aggregate("visits", Visit)
        )
    ) as (clicks, purchases, out, _):
        clicks.pipe_input("ann", Click("a"), timestamp_ms=10)
        purchases.pipe_input("ann", Purchase("", 3), timestamp_ms=12)
        clicks.pipe_input("bob", Click("z"), timestamp_ms=40)
        assert visits(out) == [("ann", "a", 0), ("ann", "a", 3), ("ann", "", 3)]


def test_aggregates_of_all_streams_are_columns_of_one_row():
    builder = StreamsBuilder()
    clicks, purchases = topics(builder)
    (
        clicks.group_by_key()
        .cogroup(clicks=Count(), short=Sum(col("page").str.len_chars() < 2))
        .cogroup(purchases.group_by_key(), cents=Sum("cents"), most=Max("cents"), unpaid=Sum(col("cents").is_null()))
        .agg("visits")
        .to_delta("out")
    )
    with TopologyTestDriver(Application("test", builder)) as driver:
        out = driver.create_output_table("out")
        driver.create_input_topic("clicks").pipe_input("ann", Click("a"), timestamp_ms=1)
        assert out.read_row() == dict(user="ann", clicks=1, short=1, cents=0, most=None, unpaid=0)
        for cents in (3, 8, 5):
            driver.create_input_topic("purchases").pipe_input("ann", Purchase("", cents), timestamp_ms=2)
        driver.create_input_topic("clicks").pipe_input("ann", Click("long"), timestamp_ms=3)
        assert out.read_rows()[-1] == dict(user="ann", clicks=2, short=1, cents=16, most=8, unpaid=0)
        assert driver.get_key_value_store("visits").get("ann")["most"] == 8


def test_a_stream_with_a_new_key_moves_to_the_tasks_of_the_others():
    builder = StreamsBuilder()
    clicks, purchases = topics(builder)
    moved = purchases.group_by("buyer").cogroup(bought).cogroup(clicks.group_by_key(), clicked)
    moved.aggregate("visits", Visit).to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        driver.create_input_topic("clicks").pipe_input("ann", Click("a"), timestamp_ms=1)
        driver.create_input_topic("purchases").pipe_input("7", Purchase("ann", 3), timestamp_ms=2)
        assert driver.create_output_table("out").read_rows()[-1] == dict(buyer="ann", pages="a", cents=3)


def test_several_streams_with_new_keys_have_an_edge_each():
    builder = StreamsBuilder()
    clicks, purchases = topics(builder)
    clicks.group_by("page").cogroup(clicked).cogroup(purchases.group_by("buyer"), bought).aggregate("visits", Visit)
    assert [edge.name for edge in builder.build().edges] == ["visits-0-repartition", "visits-1-repartition"]


def test_topics_that_are_cogrouped_need_equal_partition_counts():
    builder = StreamsBuilder()
    clicks, purchases = topics(builder)
    clicks.group_by_key().cogroup(clicked).cogroup(purchases.group_by_key(), bought).aggregate("visits", Visit)
    topology = builder.build()
    assert topology.partition_counts({"clicks": 3, "purchases": 3}) == {0: 3}
    with pytest.raises(CoPartitioningError, match=r"clicks.*3.*purchases.*4"):
        topology.partition_counts({"clicks": 3, "purchases": 4})


def count_pages(user: str, click: Click, pages: int) -> int:
    return pages + 1


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda clicks, purchases: clicks.cogroup(), "one function .* or named aggregates"),
        (lambda clicks, purchases: clicks.cogroup(clicked, n=Count()), "one function .* or named aggregates"),
        (lambda clicks, purchases: clicks.cogroup(n=3), "n is 3; pass Count"),
        (lambda clicks, purchases: clicks.cogroup(clicked).cogroup(purchases), "cogroup got .*; pass a grouped stream"),
        (
            lambda clicks, purchases: clicks.cogroup(clicked).cogroup(purchases.group_by("cents"), bought),
            "group all streams by keys of one type",
        ),
        (lambda clicks, purchases: clicks.cogroup(n=Count()).cogroup(purchases.group_by_key(), n=Count()), "'n' twice"),
        (lambda clicks, purchases: clicks.cogroup(n=Count()).aggregate("s", Visit), r"use agg\(...\)"),
        (lambda clicks, purchases: clicks.cogroup(clicked).agg("s"), r"use aggregate\(...\)"),
        (
            lambda clicks, purchases: (
                clicks.cogroup(count_pages).cogroup(purchases.group_by_key(), bought).aggregate("s", int)
            ),
            "count_pages and bought return different types",
        ),
        (lambda clicks, purchases: clicks.cogroup(n=Sum("cents")).agg("s"), "n: there is no column 'cents'"),
        (lambda clicks, purchases: clicks.cogroup(clicked).windowed_by(TEN).aggregate("", Visit), "store has no name"),
    ],
)
def test_what_cannot_be_cogrouped_says_why(program, message):
    clicks, purchases = topics(StreamsBuilder())
    with pytest.raises(TopologyError, match=message):
        program(clicks.group_by_key(), purchases)
