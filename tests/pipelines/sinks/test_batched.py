"""What leaves for sinks that get batches: the record's columns as they are, and the JSON of a request."""

import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from uuid import UUID

import polars as pl
import pytest
from polars import col

from weir import Application, Batch, Json, Sink, StreamsBuilder, String, TimeWindows, TopologyError
from weir.pipelines.sinks.json_rows import json_rows
from weir.testing import TopologyTestDriver

NINE = datetime(2026, 1, 1, 9, tzinfo=UTC)
URL = "https://example.org/orders"


class Size(Enum):
    SMALL = "small"


@dataclass(frozen=True)
class Item:
    name: str
    price: Decimal | None


@dataclass(frozen=True)
class Order:
    number: UUID
    size: Size
    items: list[Item]
    labels: dict[str, int]
    paid: datetime
    on: date
    at: time
    photo: bytes
    weight: float
    note: str | None


ORDER = Order(
    number=UUID(int=5),
    size=Size.SMALL,
    items=[Item("tea", Decimal("1.500000000")), Item('"jam"\n', None)],
    labels={"é": 1},
    paid=NINE,
    on=date(2026, 1, 2),
    at=time(8, 30),
    photo=b"\xff",
    weight=0.5,
    note=None,
)


class Nothing(Sink):
    def send(self, batch: Batch) -> None:
        pass


@pytest.fixture
def builder():
    return StreamsBuilder()


@pytest.fixture
def orders(builder):
    return builder.stream("orders", key=String("user"), value=Json(Order))


def only_sink(builder):
    (node,) = builder.build().sinks
    return node.sink


def test_every_type_is_written_as_the_json_serde_writes_it(builder, orders):
    """And the outbox has for each row how many bytes it takes with what separates it from the next."""
    orders.to_http(URL, name="shop")
    sink = only_sink(builder)
    columns = dict(zip(sink.value.columns, sink.value.to_columns([ORDER]), strict=True))
    rows = pl.DataFrame({"user": ["ann"], **columns, "_ts": [7], "_deleted": [False], "_offset": [3]})
    outgoing = sink.outgoing(rows)
    assert outgoing.schema == sink.columns
    (text,) = json_rows(sink.rows(outgoing), sink.fields)
    expected = {"user": "ann", **json.loads(Json(Order).encode(ORDER)), "_ts": "1970-01-01T00:00:00.007000Z"}
    assert json.loads(text) == {**expected, "_deleted": False}
    assert expected["items"] == [{"name": "tea", "price": "1.500000000"}, {"name": '"jam"\n', "price": None}]
    assert outgoing["_bytes"].to_list() == [len(text) + 1]


def test_what_json_has_no_number_for_is_null(builder):
    builder.stream("in", key=String("user"), value=Json(Item)).map_values(x=pl.lit(math.nan)).to_http(URL, name="shop")
    sink = only_sink(builder)
    outgoing = sink.outgoing(pl.DataFrame({"user": ["ann"], "x": [math.nan], "_ts": [7], "_deleted": [False]}))
    assert json.loads(json_rows(sink.rows(outgoing), sink.fields)[0])["x"] is None


def test_a_tombstone_has_null_columns_and_says_so(builder, orders):
    orders.to_sink(Nothing(), name="own")
    with TopologyTestDriver(Application("app", builder)) as driver:
        driver.create_input_topic("orders").pipe_input("ann", None, timestamp=NINE)
        (row,) = driver.read_sink("own")
    assert row == {"user": "ann", **dict.fromkeys(ORDER.__dataclass_fields__), "_ts": NINE, "_deleted": True}


def test_a_window_is_two_columns(builder, orders):
    windows = TimeWindows.of_size_with_no_grace(timedelta(minutes=1))
    orders.group_by_key().windowed_by(windows).count("n").to_stream().to_sink(Nothing(), name="own")
    with TopologyTestDriver(Application("app", builder)) as driver:
        driver.create_input_topic("orders").pipe_input("ann", ORDER, timestamp=NINE)
        (row,) = driver.read_sink("own")
    times = {"window_start": NINE, "window_end": NINE + timedelta(minutes=1), "_ts": NINE}
    assert row == {"user": "ann", "count": 1, **times, "_deleted": False}


def test_the_driver_gives_rows_once_and_names_the_sinks_that_there_are(builder, orders):
    orders.filter(col("weight") > 9).to_http(URL, name="heavy")
    orders.to_sink(Nothing(), name="own")
    with TopologyTestDriver(Application("app", builder)) as driver:
        driver.create_input_topic("orders").pipe_input("ann", ORDER)
        assert driver.read_sink("heavy") == []
        assert [row["user"] for row in driver.read_sink("own")] == ["ann"]
        assert driver.read_sink("own") == []
        with pytest.raises(LookupError, match="no sink 'other' of to_sql, to_http or to_sink; it has heavy, own"):
            driver.read_sink("other")


def test_describe_says_where_rows_go_and_how_often(builder, orders):
    orders.to_http(URL, name="shop", method="PUT", headers={"Authorization": "env:TOKEN"})
    orders.to_sink(Nothing(), name="own")
    shown = str(Application("app", builder).topology.describe())
    assert f"(http: PUT {URL}, at least once)" in shown
    assert "(sink: Nothing, at least once)" in shown


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"url": "example.org"}, "got the URL 'example.org'; pass a whole one"),
        ({"url": "ftp://example.org"}, "pass a whole one"),
        ({"url": "http://"}, "pass a whole one"),
        ({"url": "http://[::1"}, "pass a whole one"),
        ({"url": "http://host:99999/"}, "pass a whole one"),
        ({"url": None}, "got the URL None"),
        ({"method": "post"}, """method='post'; pass one in capitals, for example "PUT\""""),
        ({"format": "csv"}, """format='csv'; pass "json" or "ndjson\""""),
        (
            {"headers": ["X-A"]},
            'to_http got a list as its headers; pass a dictionary, for example {"Authorization": "env:',
        ),
        ({"headers": []}, "to_http got a list as its headers"),
        ({"headers": {"X-A": "b\n"}}, "the header 'X-A', whose name or value HTTP does not allow"),
        ({"headers": {"X A": "b"}}, "the header 'X A'"),
        ({"headers": {"X-A": "ł"}}, "the header 'X-A'"),
        ({"headers": {"X-A": 5}}, "the header 'X-A'"),
        ({"timeout": timedelta(0)}, "to_http: timeout is 0:00:00; it must be at least one millisecond"),
        ({"timeout": 5}, "to_http: timeout is 5; pass a datetime.timedelta"),
        ({"max_records": 0}, "the sink 'shop': max_records is 0; it must be a whole number from 1"),
        ({"max_bytes": 0.5}, "the sink 'shop': max_bytes is 0.5"),
        ({"name": "a/b"}, "the sink name 'a/b' is invalid"),
        ({"name": ""}, "the sink has no name"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_program_is_built(orders, arguments, reason):
    with pytest.raises(TopologyError, match=reason):
        orders.to_http(**{"url": URL, "name": "shop", **arguments})


def test_a_login_is_left_out_of_the_url_and_becomes_a_header(builder, orders):
    url = "https://ann:secret@example.org"
    with pytest.raises(TopologyError, match=r'with a login; leave it out.*"env:NAME"') as error:
        orders.to_http(url, name="shop")
    assert "secret" not in str(error.value)
    orders.to_http("https://example.org", name="shop", headers={"Authorization": "env:NAME"})
    assert only_sink(builder).target.headers == {"Authorization": "env:NAME"}


@pytest.mark.parametrize(("sink", "found"), [(Nothing, "the class Nothing"), (print, "a builtin_function_or_method")])
def test_a_sink_is_an_object_of_a_class_derived_from_the_base(orders, sink, found):
    with pytest.raises(TopologyError, match=f"to_sink got {found}; pass an object of a class"):
        orders.to_sink(sink, name="own")


def test_two_sinks_of_one_name_are_refused(builder, orders):
    orders.to_sink(Nothing(), name="own")
    orders.to_http(URL, name="own")
    with pytest.raises(TopologyError, match="declared 2 times; give each its own name"):
        builder.build()
