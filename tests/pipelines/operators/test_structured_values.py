"""Structured values through whole programs: operators, stores, windows, buffers, joins and outputs."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Literal
from uuid import UUID

import polars as pl
import pytest
from polars import col

from weir import (
    Application,
    ApproxDistinct,
    ApproxQuantiles,
    BufferConfig,
    Collect,
    Count,
    First,
    JoinWindows,
    Json,
    Last,
    Max,
    Mean,
    Min,
    SessionWindows,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
    TopologyError,
    UserFunctionError,
)
from weir.testing import TopologyTestDriver


class Status(Enum):
    OPEN = "open"
    PAID = "paid"


@dataclass(frozen=True)
class Address:
    city: str
    zip: int | None


@dataclass(frozen=True)
class Line:
    sku: str
    price: Annotated[Decimal, pl.Decimal(12, 2)]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Order:
    id: UUID
    status: Status
    unit: Literal["box", "bag"]
    address: Address | None
    lines: list[Line]
    labels: dict[str, int | None]
    total: Decimal
    day: date
    at: time


ONE = UUID("9f0c3b6e-3a2d-4c5b-8f4e-0123456789ab")
TEA = Line("tea", Decimal("1.50"), ("green", "hot"))
CUP = Line("cup", Decimal("4.25"), ())
ORDER = Order(
    ONE,
    Status.PAID,
    "box",
    Address("Oslo", None),
    [TEA, CUP],
    {"b": 2, "a": None},
    Decimal("5.75"),
    date(2024, 5, 1),
    time(8, 30, 0, 250),
)
BARE = Order(ONE, Status.OPEN, "bag", None, [], {}, Decimal(0), date(2024, 5, 2), time(0))


def orders(builder):
    return builder.stream("orders", key=String("customer"), value=Json(Order))


def run(builder, *records, advance=timedelta(seconds=1)):
    """The driver after ``records``, one a second, all in one batch."""
    driver = TopologyTestDriver(Application("shop", builder))
    topic = driver.create_input_topic("orders", start=datetime(2024, 5, 1, tzinfo=UTC), auto_advance=advance)
    topic.pipe_key_value_list(list(records))
    return driver


def test_functions_get_the_objects_that_were_sent_and_columns_are_polars_own():
    builder, seen = StreamsBuilder(), []
    orders(builder).peek(lambda key, order: seen.append(order)).to_delta("all")
    with run(builder, ("ann", ORDER), ("bob", BARE), ("cid", None)) as driver:
        rows = driver.create_output_table("all").read_rows()
    assert seen == [ORDER, BARE, None]
    assert rows[0] == {
        "customer": "ann",
        "id": str(ONE),
        "status": "paid",
        "unit": "box",
        "address": {"city": "Oslo", "zip": None},
        "lines": [
            {"sku": "tea", "price": Decimal("1.50"), "tags": ["green", "hot"]},
            {"sku": "cup", "price": Decimal("4.25"), "tags": []},
        ],
        "labels": [{"key": "b", "value": 2}, {"key": "a", "value": None}],
        "total": Decimal("5.75"),
        "day": date(2024, 5, 1),
        "at": time(8, 30, 0, 250),
    }
    assert rows[1]["address"] is None


def test_expressions_reach_into_structs_lists_and_dictionaries():
    builder = StreamsBuilder()
    (
        orders(builder)
        .filter(col("address").struct.field("city") == "Oslo")
        .map_values(
            city=col("address").struct.field("city"),
            price=col("lines").list.get(1).struct.field("price"),
            b=col("labels").list.first().struct.field("value"),
            hour=col("at").dt.hour(),
        )
        .to_delta("all")
    )
    with run(builder, ("ann", ORDER), ("bob", BARE)) as driver:
        assert driver.create_output_table("all").read_rows() == [
            {"customer": "ann", "city": "Oslo", "price": Decimal("4.25"), "b": 2, "hour": 8}
        ]


def test_columns_that_go_on_unchanged_keep_their_python_types_and_others_have_a_dataclass():
    builder, seen = StreamsBuilder(), []
    stream = orders(builder)
    renamed = stream.map_values(lines="lines", status="status", where="address", labels="labels", number="id")
    renamed.peek(lambda key, value: seen.append(value)).to_delta("a")
    lines = stream.flat_map_values(line="lines", order="id")
    lines.peek(lambda key, value: seen.append(value)).to_delta("b")
    made = stream.map_values(place=pl.struct(city=col("address").struct.field("city"), day="day"))
    made.peek(lambda key, value: seen.append(value)).to_delta("c")
    by_id = stream.select_key("id")
    by_id.peek(lambda key, value: seen.append(key)).to_delta("d")
    with run(builder, ("ann", ORDER)):
        pass
    kept, tea, cup, place, key = seen
    assert (kept.lines, kept.status, kept.where, kept.labels, kept.number) == (
        ORDER.lines, Status.PAID, ORDER.address, ORDER.labels, ONE,
    )  # fmt: skip
    assert [(each.line, each.order) for each in (tea, cup)] == [(TEA, ONE), (CUP, ONE)]
    assert (place.place.city, place.place.day) == ("Oslo", date(2024, 5, 1))
    assert key == ONE


@dataclass(frozen=True)
class Basket:
    lines: tuple[Line, ...]
    by_status: dict[str, list[UUID]]
    last: Order | None
    spent: Decimal


def test_a_function_folds_structured_state_in_key_value_window_and_session_stores():
    def empty() -> Basket:
        return Basket((), {}, None, Decimal(0))

    def add(key: str, order: Order, basket: Basket) -> Basket:
        ids = {**basket.by_status, order.status.value: [*basket.by_status.get(order.status.value, []), order.id]}
        return Basket((*basket.lines, *order.lines), ids, order, basket.spent + order.total)

    def both(key: str, one: Basket, other: Basket) -> Basket:
        return Basket((*one.lines, *other.lines), other.by_status, other.last, one.spent + other.spent)

    builder = StreamsBuilder()
    grouped = orders(builder).group_by_key()
    hour = timedelta(hours=1)
    grouped.aggregate("baskets", empty, add).to_delta("a")
    grouped.windowed_by(TimeWindows.of_size_with_no_grace(hour)).aggregate("hourly", empty, add).to_delta("b")
    sessions = grouped.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(hour))
    sessions.aggregate("visits", empty, add, both).to_delta("c")
    with TopologyTestDriver(Application("shop", builder)) as driver:
        topic = driver.create_input_topic("orders", start=datetime(2024, 5, 1, tzinfo=UTC))
        topic.pipe_input("ann", ORDER)
        topic.pipe_input("ann", BARE)  # a batch of its own: the state is read back from the store
        held = driver.get_key_value_store("baskets").get("ann")
        ((_, windowed),) = driver.get_window_store("hourly").fetch_all("ann")
        ((_, visit),) = driver.get_session_store("visits").fetch("ann")
    assert held == windowed == visit
    assert held["lines"] == [
        {"sku": "tea", "price": Decimal("1.50"), "tags": ["green", "hot"]},
        {"sku": "cup", "price": Decimal("4.25"), "tags": []},
    ]
    assert held["by_status"] == [{"key": "paid", "value": [str(ONE)]}, {"key": "open", "value": [str(ONE)]}]
    assert (held["last"]["lines"], held["last"]["address"]) == ([], None)
    assert held["spent"] == Decimal("5.75")


def test_aggregates_take_structs_and_decimals():
    builder = StreamsBuilder()
    (
        orders(builder)
        .group_by_key()
        .agg(
            "facts",
            first=First("address"),
            last=Last("lines"),
            all=Collect("address", 5),
            paid=Sum("total"),
            usual=Mean("total"),
            least=Min("total"),
            most=Max("total"),
            early=Min("at"),
            kinds=ApproxDistinct("total"),
            half=ApproxQuantiles("total", at=(0, 1)),
            orders=Count(),
        )
        .to_delta("facts")
    )
    driver = TopologyTestDriver(Application("shop", builder))
    with driver:
        topic = driver.create_input_topic("orders")
        topic.pipe_key_value_list([("ann", BARE), ("ann", ORDER)])
        topic.pipe_key_value_list([("ann", ORDER), ("ann", BARE)])
        row = driver.create_output_table("facts").read_rows()[-1]
    place = {"city": "Oslo", "zip": None}
    assert row == {
        "customer": "ann", "first": place, "last": [], "all": [place, place], "paid": Decimal("11.50"),
        "usual": 2.875, "least": Decimal(0), "most": Decimal("5.75"), "early": time(0), "kinds": 2,
        "half": [0.0, 5.75], "orders": 4,
    }  # fmt: skip


def test_suppression_and_join_buffers_hold_structured_values():
    builder = StreamsBuilder()
    stream = orders(builder)
    minute = timedelta(minutes=1)
    kept = stream.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(minute))
    kept.agg("latest", order=Last("address"), lines=Last("lines")).suppress(
        Suppressed.until_window_closes(BufferConfig.unbounded())
    ).to_delta("final")
    others = builder.stream("others", key=String("customer"), value=Json(Order))
    seen = []

    def pair(one: Order, other: Order) -> Basket:
        seen.append((one, other))
        return Basket(tuple(one.lines), {}, other, one.total)

    windows = JoinWindows.of_time_difference_with_no_grace(minute)
    stream.join(others, pair, windows=windows, store="held").to_delta("pairs")
    with TopologyTestDriver(Application("shop", builder)) as driver:
        start = datetime(2024, 5, 1, tzinfo=UTC)
        topic, other = (
            driver.create_input_topic("orders", start=start),
            driver.create_input_topic("others", start=start),
        )
        topic.pipe_input("ann", ORDER)
        other.pipe_input("ann", BARE)
        topic.pipe_input("bob", BARE, timestamp=start + 5 * minute)
        final = driver.create_output_table("final").read_rows()
        pairs = driver.create_output_table("pairs").read_rows()
    assert seen == [(ORDER, BARE)]
    assert (pairs[0]["last"]["status"], pairs[0]["lines"][0]["sku"]) == ("open", "tea")
    assert final[0]["order"] == {"city": "Oslo", "zip": None}


def test_tables_are_joined_and_versioned_stores_hold_structured_values():
    builder = StreamsBuilder()
    table = builder.table(
        "orders", key=String("customer"), value=Json(Order), store="orders", history_retention=timedelta(days=1)
    )
    other = builder.table("others", key=String("customer"), value=Json(Order), store="others")
    table.join(other).to_delta("both")
    start = datetime(2024, 5, 1, tzinfo=UTC)
    with TopologyTestDriver(Application("shop", builder)) as driver:
        topic = driver.create_input_topic("orders", start=start, auto_advance=timedelta(hours=1))
        topic.pipe_key_value_list([("ann", ORDER), ("ann", BARE)])
        driver.create_input_topic("others", start=start + timedelta(hours=2)).pipe_input("ann", ORDER)
        store = driver.get_versioned_store("orders")
        assert store.get("ann", as_of=start)["address"] == {"city": "Oslo", "zip": None}
        assert store.get("ann")["address"] is None
        row = driver.create_output_table("both").read_rows()[-1]
    assert (row["address"], row["address_right"]) == (None, {"city": "Oslo", "zip": None})


@dataclass(frozen=True)
class Account:
    id: UUID
    kind: Status
    since: date
    limit: Annotated[Decimal, pl.Decimal(10, 2)]
    opened: time


def test_single_values_of_every_type_are_keys_and_rows_are_found_by_them():
    builder = StreamsBuilder()
    accounts = builder.stream("orders", key=Json(Account), value=String("what"))
    accounts.group_by_key().count("visits").to_delta("visits")
    accounts.group_by("limit").count("limits").to_delta("limits")
    accounts.group_by("id").count("ids").to_delta("ids")
    one = Account(ONE, Status.PAID, date(2024, 5, 1), Decimal("-3.10"), time(8))
    two = Account(ONE, Status.PAID, date(2024, 5, 1), Decimal("12.00"), time(8))
    with run(builder, (one, "a"), (two, "b"), (one, "c")) as driver:
        assert driver.get_key_value_store("visits").get(one) == 2
        assert driver.get_key_value_store("limits").get(Decimal("12")) == 1
        assert driver.get_key_value_store("ids").get(ONE) == 3
        assert driver.create_output_table("visits").read_key_values_to_map() == {one: 2, two: 1}


@dataclass(frozen=True)
class Placed:
    id: int
    address: Address


def test_state_by_a_struct_or_a_list_is_refused_and_the_way_out_works():
    builder = StreamsBuilder()
    stream = builder.stream("orders", key=Json(Placed), value=String("what"))
    with pytest.raises(TopologyError, match=r"'address', which is a struct; .*select_key\(id=col\(\"address\"\)"):
        stream.group_by_key().count("visits")
    by_city = stream.select_key(city=col("address").struct.field("city"))
    by_city.group_by_key().count("visits").to_delta("visits")
    with run(builder, (Placed(1, Address("Oslo", 1)), "a")) as driver:
        assert driver.create_output_table("visits").read_rows() == [{"city": "Oslo", "count": 1}]
    with pytest.raises(TopologyError, match="'lines', which is a list"):
        orders(StreamsBuilder()).group_by("lines").count("visits")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (Address(3, 1), "'place.city' is declared str, and it returned int"),
        (Address("a", 2**63), "'place.zip' is declared int | None, and it returned int beyond 64 bits"),
        ("Oslo", "'place' is declared Address, and it returned str"),
    ],
)
def test_a_result_that_does_not_fit_is_named_by_its_path(made, words):
    @dataclass(frozen=True)
    class Result:
        place: Address

    def wrong(order: object) -> Result:
        return Result(made)

    wrong.__annotations__["return"] = Result
    builder = StreamsBuilder()
    orders(builder).map_values(wrong).to_delta("all")
    with pytest.raises(UserFunctionError) as caught:
        run(builder, ("ann", ORDER))
    assert f"its result does not fit the annotation: the column {words}" in str(caught.value)
