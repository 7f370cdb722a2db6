"""Global tables and joins with them (Kafka Streams features, sections 5 and 7)."""

from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from polars import col

from weir import Application, BadInputError, Json, StreamsBuilder, String, TopologyError
from weir.infra.kafka.raw_records import RawRecords
from weir.pipelines.serdes.source import RAW_SCHEMA
from weir.pipelines.tasks.global_table import TRIES
from weir.pipelines.tasks.global_tables import GlobalTables
from weir.pipelines.tasks.plan import OffsetRange
from weir.testing import TopologyTestDriver


@dataclass(frozen=True)
class Sale:
    product: str | None
    amount: int


@dataclass(frozen=True)
class Product:
    title: str


@contextmanager
def driven(join="join", key="product", **settings):
    """The topics ``sales`` and ``products``, the table ``out``, and the driver."""
    builder = StreamsBuilder()
    products = builder.global_table("products", key=String("id"), value=Json(Product), store="products")
    sales = builder.stream("sales", key=String("shop"), value=Json(Sale))
    getattr(sales, join)(products, key=key).to_delta("out")
    with TopologyTestDriver(Application("test", builder, **settings)) as driver:
        yield (
            driver.create_input_topic("sales"),
            driver.create_input_topic("products"),
            driver.create_output_table("out"),
            driver,
        )


def by_letter(shop: str | None, sale: Sale | None) -> str | None:
    return sale.product[0] if sale and sale.product else None


@pytest.mark.parametrize(
    "key", ["product", col("product").str.slice(0, 1), by_letter, {"letter": col("product").str.head(1)}]
)
def test_a_record_joins_the_row_of_the_key_that_it_names(key):
    with driven(key=key) as (sales, products, out, _):
        products.pipe_input("x", Product("xylophone"))
        sales.pipe_input("rome", Sale("x", 3), timestamp_ms=7)
        record = out.read_record()
        assert record.row == dict(shop="rome", product="x", amount=3, title="xylophone")
        assert record.timestamp.timestamp() == 0.007


def test_updates_of_the_table_produce_no_results_and_tombstones_delete():
    with driven("left_join") as (sales, products, out, _):
        products.pipe_input("x", Product("old"))
        products.pipe_input("x", Product("new"))
        sales.pipe_input("rome", Sale("x", 1), timestamp_ms=1)
        products.pipe_input("x", None)
        products.pipe_input(None, Product("nobody"))
        sales.pipe_input("rome", Sale("x", 2), timestamp_ms=2)
        assert [row["title"] for row in out.read_rows()] == ["new", None]


@pytest.mark.parametrize(("join", "titles"), [("join", ["xylophone"]), ("left_join", ["xylophone", None, None])])
def test_null_keys_are_fine_if_they_name_a_row_and_null_values_are_dropped(join, titles):
    with driven(join) as (sales, products, out, driver):
        products.pipe_input("x", Product("xylophone"))
        for value in (Sale("x", 1), Sale(None, 2), Sale("y", 3), None):
            sales.pipe_input(None, value, timestamp_ms=1)
        assert [row["title"] for row in out.read_rows()] == titles
        assert (driver.counts["null_values"], driver.counts["null_keys"]) == (1, join == "join")


def test_a_bad_record_stops_the_run_or_is_skipped():
    with driven() as (_, products, _, _), pytest.raises(BadInputError, match="topic 'products', partition 0, offset 0"):
        products.pipe_input("x", b"{")
    with driven(on_error="dead_letter") as (sales, products, out, _):
        products.pipe_input("x", b"{")
        sales.pipe_input("rome", Sale("x", 1), timestamp_ms=1)
        assert out.is_empty()


def test_brokers_that_return_nothing_are_waited_for_then_reported():
    builder = StreamsBuilder()
    builder.global_table("products", key=String("id"), value=Json(Product), store="products")
    builder.stream("sales", key=String("shop"), value=Json(Sale)).to_delta("out")
    asked = []

    def read(topic, partition, start, end):
        asked.append(start)
        return RawRecords(topic, partition, RAW_SCHEMA.to_frame(), start)

    tables = GlobalTables(builder.build(), "fail")
    with pytest.raises(TimeoutError, match=r"'products', partition 1.*nothing at offset 3 of 9"):
        tables.read_on([OffsetRange(topic="products", partition=1, start=3, end=9)], read, 0, 1)
    assert asked == [3] * TRIES


def test_a_global_table_generates_no_tasks_and_needs_no_equal_partition_count():
    builder = StreamsBuilder()
    products = builder.global_table("products", key=String("id"), value=Json(Product), store="products")
    builder.stream("sales", key=String("shop"), value=Json(Sale)).join(products, key="product").to_delta("out")
    topology = builder.build()
    assert topology.partition_counts({"sales": 3, "products": 5}) == {1: 3}


def test_the_key_of_the_row_must_be_named():
    builder = StreamsBuilder()
    products = builder.global_table("products", key=String("id"), value=Json(Product), store="products")
    sales = builder.stream("sales", key=String("shop"), value=Json(Sale))
    with pytest.raises(TopologyError, match="pass key="):
        sales.join(products)
    with pytest.raises(TopologyError, match=r"the key \(amount: Int64\) with the key \(id: String\)"):
        sales.join(products, key="amount")
