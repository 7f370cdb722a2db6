"""Stream-table joins, record by record (Kafka Streams features, section 5; section 18, rule 11)."""

from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from polars import col

from weir import Application, CoPartitioningError, Int64, Json, StreamsBuilder, String, TopologyError
from weir.testing import TopologyTestDriver


@dataclass(frozen=True)
class Order:
    amount: int
    note: str | None = None


@dataclass(frozen=True)
class Customer:
    tier: str
    note: str | None = None


@dataclass(frozen=True)
class Priced:
    price: int
    tier: str


def sides(builder):
    return (
        builder.stream("orders", key=String("customer"), value=Json(Order)),
        builder.table("customers", key=String("id"), value=Json(Customer), store="customers"),
    )


@contextmanager
def driven(program):
    """The topics ``orders`` and ``customers``, the table ``out`` and the driver."""
    builder = StreamsBuilder()
    program(*sides(builder)).to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        yield (
            driver.create_input_topic("orders"),
            driver.create_input_topic("customers"),
            driver.create_output_table("out"),
            driver,
        )


def test_a_record_joins_the_row_of_its_key_and_only_the_stream_produces_results():
    with driven(lambda orders, customers: orders.join(customers)) as (orders, customers, out, _):
        orders.pipe_input("a", Order(1), timestamp_ms=1)
        customers.pipe_input("a", Customer("gold"), timestamp_ms=2)
        assert out.is_empty()
        orders.pipe_input("a", Order(2, "x"), timestamp_ms=3)
        assert out.read_rows() == [dict(customer="a", amount=2, note="x", tier="gold", note_right=None)]


def test_a_left_join_forwards_records_without_a_row():
    with driven(lambda orders, customers: orders.left_join(customers)) as (orders, customers, out, _):
        orders.pipe_input("a", Order(1), timestamp_ms=1)
        customers.pipe_input("a", Customer("gold"), timestamp_ms=2)
        customers.pipe_input("a", None, timestamp_ms=3)
        orders.pipe_input("a", Order(2), timestamp_ms=4)
        assert [(row["amount"], row["tier"]) for row in out.read_rows()] == [(1, None), (2, None)]


def test_the_result_has_the_streams_time_and_an_older_record_may_join_a_newer_row():
    with driven(lambda orders, customers: orders.join(customers)) as (orders, customers, out, _):
        customers.pipe_input("a", Customer("gold"), timestamp_ms=9_000)
        orders.pipe_input("a", Order(1), timestamp_ms=1_000)
        record = out.read_record()
        assert (record.row["tier"], record.timestamp.timestamp()) == ("gold", 1.0)


@pytest.mark.parametrize(("join", "rows", "null_keys"), [("join", [], 1), ("left_join", [(1, None)], 0)])
def test_null_values_are_dropped_and_null_keys_match_nothing(join, rows, null_keys):
    with driven(lambda orders, customers: getattr(orders, join)(customers)) as (orders, customers, out, driver):
        customers.pipe_input("a", Customer("gold"), timestamp_ms=1)
        orders.pipe_input("a", None, timestamp_ms=2)
        orders.pipe_input(None, None, timestamp_ms=2)
        orders.pipe_input(None, Order(1), timestamp_ms=3)
        assert [(row["amount"], row["tier"]) for row in out.read_rows()] == rows
        assert (driver.counts["null_keys"], driver.counts["null_values"]) == (null_keys, 2)


def priced(order: Order, customer: Customer | None) -> Priced | None:
    if order.amount == 13:
        return None
    return Priced(order.amount, customer.tier if customer else "none")


def keyed(key: str, order: Order, customer: Customer | None) -> Priced:
    return Priced(order.amount, key)


def test_a_function_makes_the_result_and_none_is_forwarded_as_a_null_value():
    with driven(lambda orders, customers: orders.left_join(customers, priced)) as (orders, customers, out, _):
        customers.pipe_input("a", Customer("gold"), timestamp_ms=1)
        orders.pipe_records([("a", Order(1), 2), ("b", Order(2), 3), ("a", Order(13), 4)])
        assert [(r.row["price"], r.row["tier"], r.is_deleted) for r in out.read_records()] == [
            (1, "gold", False),
            (2, "none", False),
            (None, None, True),
        ]
    with driven(lambda orders, customers: orders.left_join(customers, keyed)) as (orders, _, out, _):
        orders.pipe_input("b", Order(2), timestamp_ms=1)
        assert out.read_row() == dict(customer="b", price=2, tier="b")


def test_a_filtered_table_shows_only_what_passes():
    with driven(lambda orders, customers: orders.left_join(customers.filter(col("tier") == "gold"))) as (
        orders,
        customers,
        out,
        _,
    ):
        customers.pipe_records([("a", Customer("gold"), 1), ("b", Customer("tin"), 1)])
        orders.pipe_records([("a", Order(1), 2), ("b", Order(2), 3)])
        assert [row["tier"] for row in out.read_rows()] == ["gold", None]


def test_a_stream_with_a_new_key_moves_to_the_tables_tasks():
    builder = StreamsBuilder()
    orders, customers = sides(builder)
    orders.select_key(who=col("note")).join(customers, name="billed").to_delta("out")
    application = Application("test", builder)
    with TopologyTestDriver(application) as driver:
        driver.create_input_topic("customers").pipe_input("x", Customer("gold"), timestamp_ms=1)
        driver.create_input_topic("orders").pipe_input("a", Order(1, "x"), timestamp_ms=2)
        assert driver.create_output_table("out").read_row()["tier"] == "gold"
    assert application.topology.partition_counts({"orders": 4, "customers": 6}) == {0: 4, 1: 6}


def test_topics_that_are_joined_need_equal_partition_counts():
    builder = StreamsBuilder()
    orders, customers = sides(builder)
    orders.join(customers).to_delta("out")
    topology = builder.build()
    assert topology.partition_counts({"orders": 4, "customers": 4}) == {0: 4}
    with pytest.raises(CoPartitioningError, match=r"customers has 6, orders has 4.*same number of partitions"):
        topology.partition_counts({"orders": 4, "customers": 6})


def test_at_equal_times_the_table_comes_first():
    builder = StreamsBuilder()
    orders, customers = sides(builder)
    orders.join(customers).to_delta("out")
    assert builder.build().sub_topologies[0].inputs == ("customers", "orders")


def test_what_cannot_be_joined_is_refused_with_the_way_out():
    builder = StreamsBuilder()
    orders, customers = sides(builder)
    with pytest.raises(TopologyError, match=r"the key \(amount: Int64\) with the key \(id: String\)"):
        orders.select_key("amount").join(customers)
    windowless = builder.table("short", key=String("id"), value=Json(Customer), store="short")
    with pytest.raises(TopologyError, match=r"'tier', .* would be called 'tier_right'.*; rename one"):
        orders.map_values(tier=col("note"), tier_right=col("note")).join(windowless)


def test_a_record_that_changes_one_side_of_a_joined_table_is_joined_with_its_own_row():
    """As in Kafka Streams, which reads the joined table from the stores of both sides."""
    builder = StreamsBuilder()
    prices = builder.table("prices", key=String("item"), value=Int64("price"), store="prices")
    stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
    prices.to_stream().map_values(asked="price").join(prices.join(stock)).to_delta("out")
    with TopologyTestDriver(Application("shop", builder)) as driver:
        driver.create_input_topic("stock").pipe_input("tea", 9)
        driver.create_input_topic("prices").pipe_key_value_list([("tea", 300), ("tea", 310)])
        rows = driver.create_output_table("out").read_rows()
    assert rows == [dict(item="tea", asked=price, price=price, pieces=9) for price in (300, 310)]
