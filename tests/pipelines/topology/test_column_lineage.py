"""From which columns of topics the columns of outputs come, and where nothing is said of it."""

from dataclasses import dataclass
from datetime import timedelta

import pytest
from polars import col, lit

from weir import (
    Application,
    Count,
    JoinWindows,
    Json,
    Last,
    Max,
    Mean,
    StreamsBuilder,
    String,
    Sum,
    TimeWindows,
)
from weir.pipelines.topology.column_lineage import ColumnLineage

HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Order:
    item: str
    amount: int
    price: int
    tags: list[str]


@dataclass(frozen=True)
class Item:
    title: str
    seller: str


@dataclass(frozen=True)
class Seller:
    country: str


class Shop:
    """Streams and tables to make outputs of."""

    def __init__(self) -> None:
        self.builder = builder = StreamsBuilder()
        self.orders = builder.stream("orders", key=String("user"), value=Json(Order))
        self.returns = builder.stream("returns", key=String("user"), value=Json(Order))
        self.items = builder.table("items", key=String("item"), value=Json(Item), store="items")
        self.sellers = builder.table("sellers", key=String("seller"), value=Json(Seller), store="sellers")
        self.names = builder.global_table("names", key=String("seller"), value=Json(Seller), store="names")


def doubled(order: Order) -> Order:
    return Order(order.item, 2 * order.amount, order.price, order.tags)


def first(order: Order, item: Item) -> Seller:
    return Seller(order.item)


def by_item(shop):
    return shop.orders.group_by("item")


CASES = {
    "as they are": (
        lambda shop: shop.orders.filter(col("price") > 0).peek(print),
        {
            "user": "orders.user",
            "item": "orders.item",
            "amount": "orders.amount",
            "price": "orders.price",
            "tags": "orders.tags",
        },
    ),
    "expressions": (
        lambda shop: shop.orders.map_values(
            total=col("amount") * col("price"), name=col("user") + col("item"), one=lit(1)
        ),
        {"user": "orders.user", "total": "orders.amount orders.price", "name": "orders.item orders.user"},
    ),
    "functions": (lambda shop: shop.orders.map_values(doubled), {"user": "orders.user"}),
    "after a function": (
        lambda shop: shop.orders.map_values(doubled).map_values(amount=col("amount"), who=col("user")),
        {"user": "orders.user", "who": "orders.user"},
    ),
    "pairs of expressions": (
        lambda shop: shop.orders.map(key={"item": col("item")}, value={"worth": col("amount") * col("price")}),
        {"item": "orders.item", "worth": "orders.amount orders.price"},
    ),
    "elements": (
        lambda shop: shop.orders.flat_map_values(tag=col("tags")),
        {"user": "orders.user", "tag": "orders.tags"},
    ),
    "aggregates": (
        lambda shop: by_item(shop).agg(
            "x", n=Count(), total=Sum("amount"), mean=Mean(col("amount") * col("price")), last=Last("price")
        ),
        {"item": "orders.item", "total": "orders.amount", "mean": "orders.amount orders.price", "last": "orders.price"},
    ),
    "windows": (
        lambda shop: (
            by_item(shop)
            .windowed_by(TimeWindows.of_size_and_grace(HOUR, HOUR))
            .agg("x", biggest=Max("amount"))
            .to_stream()
        ),
        {"item": "orders.item", "biggest": "orders.amount"},
    ),
    "a key of an expression": (
        lambda shop: shop.orders.group_by(kind=col("item").str.slice(0, 2)).agg("x", total=Sum("amount")),
        {"kind": "orders.item", "total": "orders.amount"},
    ),
    "merged": (
        lambda shop: shop.orders.merge(shop.returns).map_values(amount=col("amount")),
        {"user": "orders.user returns.user", "amount": "orders.amount returns.amount"},
    ),
    "merged with what a function returns": (
        lambda shop: shop.orders.merge(shop.returns.map_values(doubled)).map_values(amount=col("amount")),
        {"user": "orders.user returns.user"},
    ),
    "with a table": (
        lambda shop: (
            shop.orders.select_key("item").join(shop.items).map_values(title=col("title"), amount=col("amount"))
        ),
        {"item": "orders.item", "title": "items.title", "amount": "orders.amount"},
    ),
    "with a table, by a function": (
        lambda shop: shop.orders.select_key("item").join(shop.items, first),
        {"item": "orders.item"},
    ),
    "with a global table": (
        lambda shop: (
            shop.items.to_stream()
            .join(shop.names, key="seller")
            .map_values(country=col("country"), seller=col("seller"))
        ),
        {"item": "items.item", "country": "names.country", "seller": "items.seller"},
    ),
    "streams": (
        lambda shop: shop.orders.map_values(amount=col("amount")).join(
            shop.returns.map_values(back=col("amount")),
            windows=JoinWindows.of_time_difference_and_grace(HOUR, HOUR),
            store="x",
        ),
        {"user": "orders.user returns.user", "amount": "orders.amount", "back": "returns.amount"},
    ),
    "by foreign key": (
        lambda shop: shop.items.join(shop.sellers, foreign_key="seller"),
        {"item": "items.item", "title": "items.title", "seller": "items.seller", "country": "sellers.country"},
    ),
    "a table by another key": (
        lambda shop: shop.items.group_by("seller").agg("x", items=Count(), longest=Sum(col("title").str.len_chars())),
        {"seller": "items.seller", "longest": "items.title"},
    ),
    "cogrouped": (
        lambda shop: (
            shop.orders.group_by_key()
            .cogroup(bought=Sum("amount"))
            .cogroup(shop.returns.group_by_key(), back=Sum("amount"))
            .agg("x")
        ),
        {"user": "orders.user returns.user"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_columns_come_from_those_that_their_values_are_made_of(case):
    make, origins = CASES[case]
    shop = Shop()
    make(shop).to_delta("out")
    (sink,) = Application("shop", shop.builder).topology.sinks
    found = ColumnLineage().of(sink)
    assert {name: " ".join(sorted(map(".".join, columns))) for name, columns in found.items()} == origins
