"""What leaves for a table of a SQL database: columns as declared, and what is refused when a program is built."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from polars import col

from weir import Application, BufferConfig, Int64, Json, StreamsBuilder, String, Suppressed, TimeWindows, TopologyError
from weir.testing import TopologyTestDriver

NINE = datetime(2026, 1, 1, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
URL = "postgresql://ann@host/shop"


@dataclass(frozen=True)
class Line:
    item: str
    price: float


@dataclass(frozen=True)
class Order:
    customer: str
    lines: list[Line]
    notes: dict[str, str] | None


@pytest.fixture
def builder():
    return StreamsBuilder()


@pytest.fixture
def orders(builder):
    return builder.stream("orders", key=String("number"), value=Json(Order))


def test_a_row_has_the_columns_of_key_and_value_and_nested_ones_as_json(builder, orders):
    orders.to_sql("orders", url=URL)
    with TopologyTestDriver(Application("app", builder)) as driver:
        topic = driver.create_input_topic("orders")
        topic.pipe_input("1", Order("ann", [Line("tea", 0.5)], {"gift": "yes"}))
        topic.pipe_input("2", None)
        assert driver.read_sink("orders") == [
            {
                "number": "1",
                "customer": "ann",
                "lines": '[{"item":"tea","price":0.5}]',
                "notes": '{"gift":"yes"}',
                "_deleted": False,
            },
            {"number": "2", "customer": None, "lines": None, "notes": None, "_deleted": True},
        ]
        assert driver.read_sink("orders") == []
        with pytest.raises(LookupError, match="no sink 'x' of to_sql, to_http or to_sink; it has orders"):
            driver.read_sink("x")


def test_a_table_goes_by_its_key_unless_it_is_told_another(builder, orders):
    customers = orders.group_by("customer").count("customers")
    customers.to_sql("totals", url=URL)
    customers.to_sql("updates", mode="append", url=URL, schema="log", name="all-updates")
    orders.to_sql("newest", mode="upsert", key="customer", url=URL)
    orders.to_sql("by_number", mode="upsert", url=URL)
    sinks = {sink.name: sink for sink in builder.build().outside_sinks}
    assert {name: (sink.mode, sink.key, str(sink)) for name, sink in sinks.items()} == {
        "totals": ("upsert", ("customer",), "sql table: totals, by customer"),
        "all-updates": ("append", (), "sql table: log.updates"),
        "newest": ("upsert", ("customer",), "sql table: newest, by customer"),
        "by_number": ("upsert", ("number",), "sql table: by_number, by number"),
    }
    assert {sink.kind for sink in sinks.values()} == {"postgresql"}


def test_windowed_keys_have_the_bounds_of_their_window(builder, orders):
    windows = TimeWindows.of_size_with_no_grace(MINUTE)
    counts = orders.group_by("customer").windowed_by(windows).count("n")
    counts.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_sql("counts", url=URL)
    with TopologyTestDriver(Application("app", builder)) as driver:
        topic = driver.create_input_topic("orders", start=NINE, auto_advance=MINUTE)
        for number in ("1", "2"):
            topic.pipe_input(number, Order("ann", [], None))
        (sink,) = driver._topology.outside_sinks
        assert sink.key == ("customer", "window_start", "window_end")
        assert driver.read_sink("counts") == [
            {"customer": "ann", "window_start": NINE, "window_end": NINE + MINUTE, "count": 1, "_deleted": False}
        ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"mode": "replace"}, 'got mode=\'replace\'; pass "append" or "upsert"'),
        ({"key": "customer"}, 'every record becomes a row; leave key= out, or add mode="upsert"'),
        ({"mode": "upsert", "key": "shop"}, "name each column of the key once, out of number, customer, lines, notes"),
        ({"mode": "upsert", "key": ["number", "number"]}, "name each column of the key once"),
        ({"mode": "upsert", "key": []}, "name each column of the key once"),
        ({"url": "mysql://ann:secret@host/shop"}, "got a url= for neither PostgreSQL nor a file of SQLite; pass one"),
        ({"url": "sqlite://"}, "got a url= for neither PostgreSQL nor a file of SQLite"),
        (
            {"url": "sqlite:///shop.db"},
            'without the full path of a file, .*; pass it with four slashes, for example "sq',
        ),
        ({"url": "sqlite:///:memory:"}, "without the full path of a file"),
        ({"url": "postgresql://ann:secret@host/shop"}, 'with a password; leave it out, .* instead: url="env:NAME"'),
        ({"url": "postgresql://ann:a@secret@host/shop"}, "with a password"),
        ({"url": "postgresql://host/shop?user=ann&password=secret"}, "with a password"),
        ({"url": "env:"}, 'or "env:NAME" for that of a variable'),
        ({"table": ""}, "the table '' is no name"),
        ({"table": None, "name": "orders"}, "the table None is no name"),
        ({"table": "x" * 64}, "is longer than the 63 bytes that PostgreSQL takes; shorten it"),
        ({"schema": "é" * 32}, "is longer than the 63 bytes"),
        ({"table": "my orders"}, "the sink name 'my orders' is invalid"),
    ],
)
def test_what_cannot_be_a_table_is_refused_when_the_program_is_built(orders, arguments, reason):
    with pytest.raises(TopologyError, match=reason) as error:
        orders.to_sql(**{"table": "orders", **arguments})
    assert "secret" not in str(error.value)


def test_a_table_with_any_name_needs_one_for_its_sink(builder, orders):
    orders.to_sql("my orders", name="orders", url=URL)
    (sink,) = builder.build().outside_sinks
    assert (sink.name, sink.table) == ("orders", "my orders")


def test_a_key_of_a_table_has_no_columns_of_the_value(builder):
    stock = builder.table("stock", key=String("item"), value=Int64("pieces"), store="stock")
    with pytest.raises(TopologyError, match="the row of a deleted key is found by the table's key: leave key= out, or"):
        stock.to_sql("stock", key=["item", "pieces"])
    stock.to_sql("stock", key=["item"], url=URL)
    stock.filter(col("pieces") > 0).to_sql("available", url="env:SHOP")
    assert [sink.key for sink in builder.build().outside_sinks] == [("item",), ("item",)]
    assert [sink.kind for sink in builder.build().outside_sinks] == ["postgresql", "sql"]
