"""What sinks get of a table's updates: the newest per key and epoch, or all; the last of each key is the model's."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate

import msgspec
import polars as pl
import pytest
from polars import col

from tests.pipelines.spark.inline import Place, Topics
from weir import (
    Application,
    BufferConfig,
    Int64,
    Json,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindowed,
    TimeWindows,
    TopologyError,
)
from weir.state.commit.outbox import outbox_name
from weir.state.commit.tables import read_table

RECORDS, USERS, EPOCH_ROWS, BAD = 200, 5, 50, 73


@dataclass(frozen=True)
class Order:
    number: int


def checked(order: Order) -> Order:
    if order.number == BAD:
        raise ValueError("a bad order")
    return order


def numbers_of(user: int) -> list[int]:
    return [number for number in range(user, RECORDS, USERS) if number != BAD]


def run(tmp_path, make) -> pl.DataFrame:
    """The rows of the outbox of ``make``'s sink, in order."""
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=String("user"), value=Json(Order)).map_values(checked)
    make(orders.group_by_key().agg("sums", total=Sum("number")))
    records = [
        (b"user-%d" % (number % USERS), msgspec.json.encode(Order(number)), 1_000 + number) for number in range(RECORDS)
    ]
    application = Application("shop", builder, on_processing_error="continue")
    place = Place(application, Topics({("orders", 0): records}), tmp_path, max_records=EPOCH_ROWS)
    place.run()
    (sink,) = application.topology.outside_sinks
    return read_table(place.warehouse / "shop" / outbox_name(sink.name)).sort("_epoch", maintain_order=True)


def test_a_topic_gets_the_newest_update_of_each_key_and_epoch(tmp_path):
    rows = run(tmp_path, lambda sums: sums.to("sums", value=Int64("total")))
    assert rows.height == rows.n_unique(["key", "_epoch"]) == USERS * RECORDS // EPOCH_ROWS
    for user in range(USERS):
        found = rows.filter(col("key") == b"user-%d" % user)["value"].to_list()
        totals = [int.from_bytes(value, "big") for value in found]
        updates = list(accumulate(numbers_of(user)))
        assert totals == sorted(set(totals) & set(updates)), "updates, in their order"
        assert totals[-1] == updates[-1]


@pytest.mark.parametrize(
    "make",
    [
        lambda sums: sums.to("sums", value=Int64("total"), emit="record"),
        lambda sums: sums.to_stream().to("sums", value=Int64("total")),
    ],
)
def test_or_every_update(tmp_path, make):
    rows = run(tmp_path, make)
    for user in range(USERS):
        found = rows.filter(col("key") == b"user-%d" % user)["value"].to_list()
        assert [int.from_bytes(value, "big") for value in found] == list(accumulate(numbers_of(user)))


def test_a_table_of_a_database_gets_the_newest_if_it_goes_by_the_same_key(tmp_path):
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    rows = run(tmp_path / "newest", lambda sums: sums.to_sql("sums", url=url))
    assert rows.height == USERS * RECORDS // EPOCH_ROWS
    assert dict(rows.unique("user", keep="last", maintain_order=True).select("user", "total").iter_rows()) == {
        f"user-{user}": sum(numbers_of(user)) for user in range(USERS)
    }
    for number, make in enumerate(
        [
            lambda sums: sums.to_sql("sums", mode="append", url=url),
            lambda sums: sums.to_stream().to_sql("sums", mode="upsert", key="total", url=url),
        ]
    ):
        assert run(tmp_path / str(number), make).height == RECORDS - 1


def test_of_final_results_none_is_left_out(tmp_path):
    """In one epoch ten windows of a key close: all of them are results."""
    builder = StreamsBuilder()
    windows = TimeWindows.of_size_with_no_grace(timedelta(milliseconds=10))
    orders = builder.stream("orders", key=String("user"), value=Json(Order)).group_by_key().windowed_by(windows)
    final = orders.agg("sums", total=Sum("number")).suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    final.to("sums", key=TimeWindowed(String("user"), size=timedelta(milliseconds=10)), value=Int64("total"))
    records = [(b"ann", msgspec.json.encode(Order(number)), number) for number in range(101)]
    place = Place(Application("shop", builder), Topics({("orders", 0): records}), tmp_path, max_records=1_000)
    place.run()
    rows = read_table(place.warehouse / "shop" / outbox_name("sums"))
    totals = [int.from_bytes(value, "big") for value in rows["value"]]
    assert totals == [sum(range(start, start + 10)) for start in range(0, 100, 10)]


def test_another_word_is_refused():
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=String("user"), value=Json(Order)).group_by_key()
    with pytest.raises(TopologyError, match="emit is 'all'; it must be"):
        orders.agg("sums", total=Sum("number")).to("sums", value=Int64("total"), emit="all")
